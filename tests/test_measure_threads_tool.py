"""What is written of several threads: what two of them lose, and what eight would lose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ortopt.analysis import costs
from ortopt.analysis.cost_tables import shipped_for
from ortopt.analysis.costs import Verdict
from ortopt.analysis.providers import CPU
from ortopt.measurement.costs import Case
from ortopt.measurement.forms.entry import Entry
from ortopt.measurement.pairs import Speed
from ortopt.options import Target
from tools import measure_threads
from tools.measure_releases import speeds_of
from tools.measure_threads import rows_of, verdict_on, with_many

ENTRY = Entry(op="Abs", instead_of="two of Neg", sizes={"rows": (1, 8)}, before="t = Neg (x) y = Neg (t)")


def cases(*measured: tuple[float, float]) -> list[Case]:
    """Cases of one form, each of the seconds of both models."""
    return [
        Case(ENTRY, given, ratios=[before / after] * 20, seconds=[before])
        for given, (before, after) in zip(ENTRY.cases, measured, strict=True)
    ]


def speed(median: float, seconds: float = 1.0) -> Speed:
    """Calls that all took as long."""
    return Speed(median, median, median, seconds)


@pytest.mark.parametrize(
    ("speeds", "verdict"),
    [
        ((1.2, 1.1), Verdict.PAYS),
        ((1.2, 0.97), Verdict.PAYS),
        ((1.2, 0.95), Verdict.LOSES),
        ((1.0, 0.97), Verdict.NEUTRAL),
    ],
)
def test_two_threads_vary_more_than_one(speeds: tuple[float, ...], verdict: Verdict) -> None:
    assert verdict_on([speed(each) for each in speeds]) is verdict


@pytest.mark.parametrize(
    ("alone", "with_two", "seconds"),
    [
        ((8.0, 8.0), (4.0, 4.0), (1.0, 1.0)),
        ((8.0, 4.0), (4.0, 4.0), (1.0, 4.0)),
        ((8.0, 4.0), (4.0, 3.0), (1.0, 2.25)),
        ((8.0, 4.0), (3.9, 4.2), (1.0, 4.0)),
    ],
)
def test_what_is_not_shared_stays(
    alone: tuple[float, float], with_two: tuple[float, float], seconds: tuple[float, float]
) -> None:
    one, two = (speed(before / after, before) for before, after in (alone, with_two))
    assert with_many(one, two) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("alone", "with_two", "verdict", "speeds"),
    [
        (((8.0, 4.0), (8.0, 4.0)), ((4.0, 2.0), (4.0, 2.5)), "pays", [1.6, 2.0]),
        (((8.0, 4.0), (8.0, 4.0)), ((4.0, 2.0), (4.0, 4.0)), "pays", [1.0, 2.0]),
        (((8.0, 4.0), (8.0, 4.0)), ((4.0, 2.0), (4.0, 5.0)), "loses", [0.8, 2.0]),
        (((8.0, 4.0), (8.0, 4.0)), ((4.0, 3.9), (4.0, 4.0)), "loses", [0.25, 1.03]),
        (((8.0, 4.0), (4e-5, 4e-5)), ((4.0, 4.0), (4e-5, 4e-5)), "loses", [0.25, 1.0]),
        (((8e-5, 4e-5), (8e-5, 4e-5)), ((4e-5, 4e-5), (4e-5, 4e-5)), "neutral", [1.0, 1.0]),
    ],
)
def test_a_row_says_what_two_take_and_what_eight_would_lose(
    alone: tuple[tuple[float, float], ...], with_two: tuple[tuple[float, float], ...], verdict: str, speeds: list[float]
) -> None:
    (row,) = rows_of(cases(*with_two), speeds_of(cases(*alone)))
    assert (row["op"], row["provider"], row["verdict"], row["speed"]) == ("Abs", CPU, verdict, speeds)


def test_other_forms_keep_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    other = {"op": "Neg", "provider": CPU, "verdict": "pays", "speed": [1.1, 1.2], "instead_of": "Abs", "source": "X"}
    path.write_text(json.dumps({"costs": [other, {**other, "op": "Abs"}]}), encoding="utf-8")
    measure_threads._write(path, [{**other, "op": "Abs", "speed": [2.0, 3.0], "source": "Y"}], [ENTRY])
    table = costs.read(path.read_bytes())
    assert [(cost.form.op_type, cost.speed) for cost in table.own] == [("Neg", (1.1, 1.2)), ("Abs", (2.0, 3.0))]
    assert (table.measured.threads, table.measured.processor) == (2, "X, Y")


def test_a_row_that_could_not_be_measured_again_stays(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    cost = costs.with_threads().own[0]
    about = {"op": str(cost.form._replace(variant="")), "variant": cost.form.variant}
    row = {**about, "provider": CPU, "verdict": "pays", "speed": [1.1, 1.2], "instead_of": "X", "source": "X"}
    path.write_text(json.dumps({"costs": [row, {**row, "at": {"rows": [1, 7]}}]}), encoding="utf-8")
    form = Entry(op=about["op"], variant=cost.form.variant, instead_of="X", before="")
    measure_threads._write(path, [], [form])
    assert [kept.at for kept in costs.read(path.read_bytes()).own] == ([] if cost.at else [{}])


def test_rows_are_those_of_the_table_that_ships() -> None:
    known = {cost.key for cost in costs.of_processors()[0].own}
    assert all(cost.key in known for cost in costs.with_threads().own)


def test_what_loses_with_several_threads_is_for_one() -> None:
    release = (99, 0)
    lost = [cost for cost in costs.with_threads().own if cost.verdict is Verdict.LOSES]
    assert lost
    anywhere, alone, web = (
        {cost.key: cost.verdict for cost in table.own}
        for table in (shipped_for(release), shipped_for(release, threads=1), shipped_for(release, Target.WEB))
    )
    assert all(anywhere[cost.key] is Verdict.LOSES for cost in lost)
    own = {cost.key: cost.verdict for cost in costs.of_processors()[0].own}
    for of_one_thread in (alone, web):
        assert any(of_one_thread[cost.key] is own[cost.key] is Verdict.PAYS for cost in lost)
