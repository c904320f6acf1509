"""Tuning takes what is measured to be faster, on no inputs slower, and never more than the original's speed away."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from msgspec import structs

from ortopt import api
from ortopt.cli.group import commands
from ortopt.errors import InvalidModelError, OptimizationCancelled
from ortopt.measurement import tune as tuning_module
from ortopt.measurement.choices import Candidate, Choices, candidates, read_choices
from ortopt.measurement.in_turns import Failure
from ortopt.measurement.pairs import Speed
from ortopt.measurement.recipe import Recipe
from ortopt.measurement.tune import Tuning, tune
from ortopt.options import Fusions, Target
from ortopt.serialization.save import save
from ortopt.testing import parse
from tests.test_fusions import RESIDUAL

WEIGHTS = ",".join(str(0.25 * ((5 * place) % 7 - 3)) for place in range(32))
MODEL = f"""
main (float[N,8] x) => (float[N,4] y) <float[8,4] w = {{{WEIGHTS}}}, float[4] b = {{1, 2, 3, 4}}> {{
    m = MatMul (x, w) g = Gemm (x, w, b) r = Relu (g) s = Sigmoid (m) p = Mul (m, s) y = Add (p, r) }}"""
"""With a quick_gelu_fusion of level 2, and a fused Gemm that is not known to pay."""

OWN = "SkipLayerNormalization"
"""What the table of costs leaves out: it is slower on each processor that was measured."""

PLAIN = Choices(3, Fusions.DEFAULT, (), ())

Counter = dict[str, int]
Judge = Callable[[Counter, Counter], float]


def ops(path: Path) -> Counter:
    counts: Counter = {}
    for node in onnx.load(path).graph.node:
        counts[node.op_type] = counts.get(node.op_type, 0) + 1
    return counts


def tuned(
    monkeypatch: pytest.MonkeyPatch, judge: Judge, text: str = MODEL, *, below: float = 0.001, above: float = 0.001,
    standard_ops: bool = False, **more: Any,
) -> Tuning:  # fmt: skip
    """Tuning of a model, timed by a judge that sees the ops of both models, as surely as the interval says.

    Standard ops only are another choice with which this model is the same as without its pass: tried if asked for.
    """

    def some_candidates(*args: Any, target: Target, **kinds: Any) -> Iterator[Candidate]:
        yield from candidates(*args, target=target if standard_ops else Target.ONNX, **kinds)

    def compare(first: Path, second: Path, inputs: Sequence[Path], *_: Any, **__: Any) -> tuple[Speed, ...]:
        speed = judge(ops(first), ops(second))
        return tuple(Speed(speed - below, speed, speed + above, 1.0) for _ in inputs)

    monkeypatch.setattr(tuning_module, "candidates", some_candidates)
    monkeypatch.setattr(tuning_module, "compare", compare)
    monkeypatch.setattr(tuning_module, "attempts", lambda *_: lambda _: None)
    monkeypatch.setattr(tuning_module, "measured_recipe", lambda *_, **__: Recipe())
    return tune(parse(text), api.make_options(level=3), **more)


def test_nothing_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = tuned(monkeypatch, lambda _, __: 1.0)
    assert tuning.choices == PLAIN
    assert tuning.steps
    assert not any(step.kept for step in tuning.steps)
    assert [speed.median for speed in tuning.against_original or ()] == [1.0] * len(tuning.sizes)


def test_a_pass_that_makes_it_slower_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = tuned(
        monkeypatch, lambda first, second: 1.2 if first.get("QuickGelu", 0) > second.get("QuickGelu", 0) else 1.0
    )
    assert tuning.choices == structs.replace(PLAIN, disable=("quick_gelu_fusion",))
    assert [step.choice for step in tuning.steps if step.kept] == ["without quick_gelu_fusion"]


def test_standard_ops_that_are_faster_are_taken_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(first: Counter, second: Counter) -> float:
        return 1.2 if first.get("QuickGelu", 0) > second.get("QuickGelu", 0) else 1.0

    tuning = tuned(monkeypatch, judge, standard_ops=True)
    assert tuning.choices == structs.replace(PLAIN, target="onnx")
    assert read_choices_of(tuning).applied_to(api.make_options()).target is Target.ONNX


def test_less_than_hysteresis_is_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = tuned(
        monkeypatch, lambda first, second: 1.02 if "QuickGelu" in first and "QuickGelu" not in second else 1.0
    )
    assert tuning.choices.disable == ()


def test_what_is_not_clear_is_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where other processes are in the way, a median says little."""
    tuning = tuned(monkeypatch, lambda _, __: 1.4, below=0.9, above=7.6)
    assert tuning.steps
    assert tuning.choices == PLAIN


def test_forms_for_one_thread_are_tried_where_the_result_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, tried in ((None, False), (2, False), (1, True)):
        tuning = tuned(monkeypatch, lambda _, __: 1.0, seconds=0.0, threads=threads)
        assert any("--for-threads 1" in name for name in tuning.unmeasured) is tried


def test_a_form_that_loses_elsewhere_and_wins_here_is_taken_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = tuned(monkeypatch, lambda first, second: float(1.2 ** (second.get(OWN, 0) - first.get(OWN, 0))), RESIDUAL)
    assert tuning.choices == structs.replace(PLAIN, force_forms=(f"com.microsoft::{OWN}",))
    options = read_choices_of(tuning).applied_to(api.make_options(level=3))
    done = api.optimize(parse(RESIDUAL), level=3, force_forms=options.force_forms, verify=False)
    assert [node.op_type for node in done.model.graph] == [OWN]


def read_choices_of(tuning: Tuning) -> Choices:
    """The choices as a report has them, read again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        path.write_text(json.dumps({"choices": tuning.choices.as_dict()}))
        return read_choices(path)


def test_a_result_slower_than_the_original_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = tuned(monkeypatch, lambda _, __: 0.5)
    assert tuning.choices.level < 2  # level 1 leaves this model as it is
    assert {step.choice for step in tuning.steps if step.kept} == {"the original was faster: less is done"}


def test_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning = tuned(monkeypatch, lambda _, __: 2.0, seconds=0.0)
    assert not tuning.steps
    assert "without quick_gelu_fusion" in tuning.unmeasured
    assert tuning.choices == PLAIN


def test_an_interruption_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Counter] = []

    def judge(first: Counter, second: Counter) -> float:
        if len(kept) == 2:  # seen in one process, and then in more
            raise OptimizationCancelled("stopped")
        if "QuickGelu" in first and "QuickGelu" not in second:
            kept.append(second)
            return 1.5
        return 1.0

    tuning = tuned(monkeypatch, judge)
    assert tuning.choices.disable == ("quick_gelu_fusion",)
    assert tuning.against_original is None
    assert tuning.reason == ""


def test_an_original_that_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = Failure("it is refused", opens=True, kind="Fail")
    monkeypatch.setattr(tuning_module, "attempts", lambda *_: lambda _: failure)
    tuning = tune(parse(MODEL), api.make_options(level=3))
    assert tuning.reason.startswith("the original cannot be run: it is refused")
    assert tuning.choices == PLAIN


def test_choices_of_a_report_and_of_their_own(tmp_path: Path) -> None:
    choices = Choices(2, Fusions.ALL, ("gelu_fusion",), ("ensure_unique_dq",))
    for name, data in {"report.json": {"choices": choices.as_dict(), "more": 1}, "own.json": choices.as_dict()}.items():
        (tmp_path / name).write_text(json.dumps(data))
        assert read_choices(tmp_path / name) == choices
    assert Choices.of(choices.applied_to(api.make_options())) == choices


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("{", "has no choices"),
        ("[]", "has no choices"),
        ('{"choices": {"level": 9, "fusions": "all", "disable": [], "enable": []}}', "has no choices"),
        ('{"level": 2, "fusions": "some", "disable": [], "enable": []}', "has no choices"),
        ('{"level": 2, "fusions": "all", "disable": [1], "enable": []}', "has no choices"),
    ],
)
def test_files_that_have_no_choices(tmp_path: Path, text: str, because: str) -> None:
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(InvalidModelError, match=because):
        read_choices(tmp_path / "file.json")
    with pytest.raises(InvalidModelError, match="No such file"):
        read_choices(tmp_path / "missing.json")


def test_the_command_tunes_and_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(parse(MODEL), tmp_path / "model.onnx")
    runner = CliRunner()
    done = runner.invoke(
        commands,
        ["optimize", "model.onnx", "-o", "a.onnx", "--tune", "--tune-seconds", "0", "--json", "report.json"],
    )
    assert done.exit_code == 0, done.output
    assert "measured against the original: " in done.output
    assert re.search(r"\d not measured, for lack of time \(--tune-seconds\)", " ".join(done.output.split()))
    replayed = runner.invoke(commands, ["optimize", "model.onnx", "-o", "b.onnx", "--choices", "report.json"])
    assert replayed.exit_code == 0, replayed.output
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "because"),
    [(["--tune-seconds", "3"], "add --tune"), (["--tune", "--choices", "c.json"], "leave out one of them")],
)
def test_options_that_make_no_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], because: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text(json.dumps(PLAIN.as_dict()))
    save(parse(MODEL), tmp_path / "model.onnx")
    done = CliRunner().invoke(commands, ["optimize", "model.onnx", *arguments])
    assert done.exit_code == 1
    assert because in done.output
