"""Levers of a session: tried where they can matter, kept where they are clearly faster and change no result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from ortopt.cancellation import CancellationToken
from ortopt.measurement import recipe as recipe_module
from ortopt.measurement.pairs import BRIEF
from ortopt.measurement.recipe import (
    LARGE_WEIGHTS,
    Lever,
    Recipe,
    RunFacts,
    measured_recipe,
    python_lines,
    together,
    worth_trying,
)
from ortopt.serialization.save import save
from ortopt.testing import parse
from ortopt.verification.input_sets import store_inputs

FACTS = RunFacts(True, 1 << 30, 0.1, LARGE_WEIGHTS, has_open_sizes=True, cores=8)
MODEL = "main (float[N,4] x) => (float[N,4] y) { p = Softmax (x) y = Mul (p, p) }"
DENORMALS = "denormals as zero"
TINY = np.array([[0, -50, -95, 0]] * 64, np.float32)
"""Scores whose exponentials are too small: e⁻⁹⁵ has no full precision, and neither has the square of e⁻⁵⁰."""


def stored(tmp_path: Path, x: np.ndarray, text: str = MODEL) -> tuple[Path, Path]:
    (tmp_path / "model").mkdir()
    save(parse(text), tmp_path / "model" / "model.onnx")
    store_inputs({"x": x}, tmp_path / "inputs0")
    return tmp_path / "model" / "model.onnx", tmp_path / "inputs0"


def measured(model: Path, inputs: Path, deadline: float = float("inf")) -> Recipe:
    return measured_recipe(
        model, model, [inputs], BRIEF, threads=1, has_open_sizes=False, deadline=deadline, token=CancellationToken()
    )


Answer = Callable[[Mapping[str, Any]], float]


def timed_by(monkeypatch: pytest.MonkeyPatch, seconds: Answer) -> list[Mapping[str, Any]]:
    """Calls are not timed, and take what is said of the settings; all else is real."""
    asked, real = [], recipe_module.ask

    def ask(task: str, each: Sequence[Mapping[str, Any]], *args: Any, **more: Any) -> list[dict[str, Any]]:
        if task != "time":
            return real(task, each, *args, **more)
        asked.append(each[0]["lever"])
        return [{"calls": [[[seconds(each[0]["lever"])] * 12] for _ in each[0]["inputs"]]}]

    monkeypatch.setattr(recipe_module, "ask", ask)
    return asked


def test_numbers_below_the_smallest_normal_one_are_seen(tmp_path: Path) -> None:
    """The processor says whether a call has computed any; so the lever is left out where none is."""
    model, inputs = stored(tmp_path, np.zeros((2, 4), np.float32))
    assert f"{DENORMALS}: no call computes any" in measured(model, inputs, 0.0).not_tried
    store_inputs({"x": TINY}, tmp_path / "inputs1")
    assert not any("no call computes any" in line for line in measured(model, tmp_path / "inputs1", 0.0).not_tried)


def test_what_is_clearly_faster_is_kept_and_told_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed_by(monkeypatch, lambda lever: 0.5 if lever["config"] else 1.0)
    recipe = measured(*stored(tmp_path, TINY))
    assert [(step.lever.name, step.kept) for step in recipe.steps] == [(DENORMALS, True)]
    assert [speed.median for speed in recipe.together or ()] == [2.0]
    assert [bool(lever["config"]) for lever in asked[:4]] == [False, True, True, False]  # in turns
    assert len(asked) == 4  # two rounds, in which it is clear
    lines = recipe.python("m.onnx")
    assert 'options.add_session_config_entry("session.set_denormal_as_zero", "1")' in lines
    assert "# the first session of a process decides, for the thread that makes it and for its pool" in lines


def test_what_gains_nothing_is_given_up_after_two_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed_by(monkeypatch, lambda _: 1.0)
    (step,) = measured(*stored(tmp_path, TINY)).steps
    assert (step.kept, step.reason, len(asked)) == (False, "it gains nothing", 4)


def test_what_is_not_clear_is_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 0.5, 1.5, 1.0, 1.0, 0.5, 1.5, 1.0, 1.0, 1.0])
    timed_by(monkeypatch, lambda _: next(times))
    recipe = measured(*stored(tmp_path, TINY))
    assert [step.kept for step in recipe.steps] == [False]
    assert recipe.python("m.onnx") == []
    assert recipe.together is None


def test_what_changes_results_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that shows what was a denormal number beside none: zero is another answer."""
    timed_by(monkeypatch, lambda lever: 0.5 if lever["config"] else 1.0)
    text = """main (float[N,4] x) => (float[N,4] y) <float small = {1e-20}, float big = {1e38}> {
        p = Mul (x, small) q = Mul (p, big) y = Mul (q, big) }"""
    (step,) = measured(*stored(tmp_path, np.array([[1, 1e-20, 1e-20, 1e-20]], np.float32), text)).steps
    assert not step.kept
    assert step.reason.startswith("results differ")


@pytest.mark.parametrize(
    ("changes", "threads", "left"),
    [
        ({"underflows": False}, 1, DENORMALS),
        ({"output_bytes": 1000}, 1, "results stay bound"),
        ({"has_open_sizes": False}, 1, "no memory pattern"),
        ({"model_bytes": LARGE_WEIGHTS - 1}, 1, "no prepacked weights"),
        ({"cores": 1}, None, "no spinning"),
        ({}, 1, "no spinning"),
    ],
)
def test_levers_that_cannot_matter_are_left_out(changes: dict[str, Any], threads: int | None, left: str) -> None:
    found, reasons = worth_trying(replace(FACTS, **changes), threads=threads)
    assert left not in [lever.name for lever in found]
    assert any(line.startswith(f"{left}: ") for line in reasons)
    assert left in [lever.name for lever in worth_trying(FACTS, threads=None)[0]]


def test_numbers_of_threads_are_tried_up_to_half_of_the_cores_unless_one_was_asked_for() -> None:
    names = [lever.name for lever in worth_trying(FACTS, threads=None)[0]]
    assert names.index("one thread") + 1 == names.index("4 threads")
    assert not any("thread" in lever.name for lever in worth_trying(FACTS, threads=2)[0] if lever.attributes)


def test_the_lines_run(tmp_path: Path) -> None:
    """All levers at once: what is printed is Python that makes a session and calls it."""
    model, _ = stored(tmp_path, TINY)
    levers = [*worth_trying(FACTS, threads=None)[0], Lever("x", environment=(("A", "1"),))]
    lines = python_lines(together(levers), levers, model=str(model), threads=1)
    assert lines[0].startswith("# start the process with ")
    names: dict[str, Any] = {"feeds": {"x": np.zeros((2, 4), np.float32)}}
    exec("\n".join(line for line in lines if "denormal" not in line), names)
    assert isinstance(names["session"], onnxruntime.InferenceSession)
    assert names["results"][0].numpy().tolist() == [[0.0625] * 4] * 2
