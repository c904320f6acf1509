"""How forms are measured: in rounds, until that is clear or time is over; nothing here asserts a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from ortopt.cancellation import CancellationToken
from ortopt.errors import OptimizationCancelled
from ortopt.measurement import costs
from ortopt.measurement.asking import MeasurementBudget
from ortopt.measurement.cost_tables import processor
from ortopt.measurement.costs import Case, Measurement, measure
from ortopt.measurement.forms.entry import Entry
from ortopt.measurement.pairs import Pair, Sample


def entry(op: str = "Abs", rows: Sequence[int] = (1, 8), after: str = "y = Abs (x)") -> Entry:
    return Entry(
        op=op,
        instead_of="two of Neg",
        sizes={"rows": tuple(rows)},
        values="x = normal(rows, 4)",
        before="t = Neg (x) y = Neg (t)",
        after=after,
        repeats=True,
    )


class Fake:
    """Processes that answer with made-up ratios, and a clock that goes on with each of them."""

    def __init__(self, *ratios: float, error: str = "") -> None:
        self.ratios = ratios
        self.error = error
        self.asked: list[tuple[int, bool]] = []
        self.now = 0.0

    def sample(
        self, pairs: Sequence[Pair], budget: MeasurementBudget, *, swapped: bool, token: CancellationToken
    ) -> list[Sample]:
        token.check()
        assert budget.threads == 1
        assert all(path.exists() for pair in pairs for path in (pair.first, pair.second, *pair.inputs))
        self.asked.append((len(pairs), swapped))
        self.now += 1.0
        if self.error and len(pairs) > 1:
            return [Sample(error=self.error)] * len(pairs)
        rows = itertools.islice(itertools.cycle(self.ratios), 20)
        return [Sample(tuple(rows), 1e-3)] + [Sample(self.ratios * 20, 1e-3) for _ in pairs[1:]]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(costs, "sample", self.sample)
        monkeypatch.setattr(costs.time, "monotonic", lambda: self.now)


def measured(monkeypatch: pytest.MonkeyPatch, fake: Fake, *entries: Entry, seconds: float = 100.0) -> Measurement:
    fake.install(monkeypatch)
    return measure(entries, seconds=seconds)


def test_what_is_clear_is_measured_twice_each_model_opened_first_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(2.0)
    done = measured(monkeypatch, fake, entry())
    assert fake.asked == [(2, False), (2, True)]
    assert [speed.median for case in done.cases if (speed := case.speed)] == [2.0, 2.0]
    assert done.seconds == 2.0


def test_what_is_not_clear_is_measured_until_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(0.8, 1.25)
    measured(monkeypatch, fake, entry(rows=(1,)), seconds=5.0)
    assert fake.asked == [(1, number % 2 == 1) for number in range(5)]


def test_a_process_has_few_pairs_and_forms_are_told_of_when_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, told = Fake(2.0), []
    fake.install(monkeypatch)
    forms = [entry(op, range(1, 8)) for op in ("Abs", "Neg", "Exp")]
    measure(forms, seconds=2.0, report=lambda own: told.append((own[0].entry.form.op_type, len(own))))
    assert fake.asked == [(12, False), (9, False)]
    assert told == [("Abs", 7), ("Neg", 7), ("Exp", 7)]


def test_pairs_are_measured_alone_where_a_process_dies_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(2.0, error="its process died (-11)")
    done = measured(monkeypatch, fake, entry(), seconds=1.0)
    assert fake.asked == [(2, False), (1, False), (1, False)]
    assert not any(case.error for case in done.cases)


def test_what_was_measured_is_kept_when_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, token = Fake(2.0), CancellationToken()
    fake.install(monkeypatch)
    done = measure([entry(rows=range(1, 20))], report=None, token=_after(token, fake, 1))
    assert done.stopped
    assert [bool(case.ratios) for case in done.cases] == [True] * 12 + [False] * 7


def _after(token: CancellationToken, fake: Fake, processes: int) -> CancellationToken:
    """A token that is set after some processes."""
    check = token.check

    def checked() -> None:
        if len(fake.asked) >= processes:
            raise OptimizationCancelled
        check()

    token.check = checked  # type: ignore[method-assign]
    return token


def test_an_error_counts_only_where_nothing_was_measured() -> None:
    case = Case(entry(), {"rows": 1})
    case.add(Sample(error="no kernel"))
    assert (case.error, case.speed, case.is_clear) == ("no kernel", None, True)
    case.add(Sample((1.0,) * 20, 1e-3))
    case.add(Sample(error="it took too long"))
    assert case.error == ""


def once(*entries: Entry) -> Measurement:
    """Measure each form in one process, and end then, however slow the machine is."""
    token, forms = CancellationToken(), list(entries)

    def report(_: Sequence[Case]) -> None:
        forms.pop()
        if not forms:
            token.cancel()

    return measure(entries, seconds=600.0, report=report, token=token)


def test_two_forms_are_run() -> None:
    done = once(entry())
    assert [case.error for case in done.cases] == ["", ""]
    assert all(case.ratios for case in done.cases)


def test_a_form_that_does_not_run_is_an_error_of_its_own() -> None:
    broken = entry(rows=(1,), after="y = Nag (x)")
    done = once(broken, entry(rows=(1,)))
    assert "Nag" in done.cases[0].error
    assert done.cases[1].ratios


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "model name : Abacus 3\nflags : fpu avx avx2\n\nmodel name : Abacus 3\nflags : fpu avx avx2\n",
            "Abacus 3 (AVX2)",
        ),
        ("model name : Abacus 3\nflags : avx avx2 avx512f\n", "Abacus 3 (AVX-512)"),
        ("model name : Abacus 3\nflags : fpu\n", "Abacus 3"),
    ],
)
def test_processors(text: str, expected: str, tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(text)
    assert processor(info) == expected


def test_a_processor_of_another_system(tmp_path: Path) -> None:
    assert processor(tmp_path / "none")
