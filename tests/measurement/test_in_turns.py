"""Versions of a model measured in turns, in processes of their own; figures that say what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ortopt.measurement import in_turns
from ortopt.measurement.asking import MeasurementBudget
from ortopt.measurement.in_turns import Version, attempt, measure_in_turns, measure_once
from ortopt.system import child_processes
from ortopt.verification.input_sets import store_inputs

HEAD = '<ir_version: 9, opset_import: ["": 17]>'
TEXTS = {
    "plain": f"{HEAD} main (float[N,4] x) => (float[N,4] y) {{ a = Neg (x) b = Neg (a) y = Relu (b) }}",
    "missing": f"{HEAD} main (float[N] x) => (float[N] y) {{ y = NoSuchOp (x) }}",
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in TEXTS.items():
        (tmp_path / f"{name}.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    store_inputs({"x": np.ones((2, 4), np.float32)}, tmp_path / "x")
    store_inputs({"x": np.ones((2, 5), np.float32)}, tmp_path / "wrong")
    return tmp_path


def test_a_plain_session_is_measured(files: Path) -> None:
    version = Version(0, files / "plain.onnx")
    (figures,) = measure_in_turns([version], files / "x", MeasurementBudget(rounds=1, repeat=3))
    assert figures.error == ""
    row = figures.as_dict()
    assert (row["name"], row["level"], row["error"]) == ("original", 0, None)
    for key in ("call", "open", "first", "ratio"):
        low, median, high = row[key]
        assert 0 < low <= median <= high
    assert row["ratio"] == [1, 1, 1]


def test_an_attempt_says_whether_other_inputs_may_help(files: Path) -> None:
    budget = MeasurementBudget(rounds=1)
    assert attempt(Version(0, files / "plain.onnx"), files / "x", budget) is None
    failure = attempt(Version(0, files / "plain.onnx"), files / "wrong", budget)
    assert failure is not None
    assert (failure.opens, failure.kind) == (True, "InvalidArgument")
    failure = attempt(Version(0, files / "missing.onnx"), files / "x", budget)
    assert failure is not None
    assert not failure.opens
    assert "NoSuchOp" in failure.reason


def answer(seconds: float) -> dict[str, Any]:
    return {"open": 1.0, "first": 2.0, "calls": [seconds] * 3, "anonymous": None, "peak": 5}


def test_versions_are_measured_in_turn_and_compared_round_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []

    def measured(version: Version, *_: Any) -> dict[str, Any]:
        mood = len(order) // 3 + 1  # the machine gets slower from round to round: the ratio stays
        order.append(version.level)
        return answer(mood * (1.0, 0.5, 2.0)[version.level])

    monkeypatch.setattr(in_turns, "measure_once", measured)
    found = measure_in_turns([Version(level, Path()) for level in range(3)], Path(), MeasurementBudget(rounds=4))
    assert order == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]
    assert [one.ratio.median for one in found if one.ratio] == [1, 0.5, 2]
    assert found[0].call is not None
    assert (found[0].call.low, found[0].call.median, found[0].call.high) == (1.75, 2.5, 3.25)
    assert found[0].anonymous is None


def test_a_version_that_fails_is_a_line_and_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(version: Version, *_: Any) -> dict[str, Any]:
        return {"error": "it is broken"} if version.level else answer(1)

    monkeypatch.setattr(in_turns, "measure_once", measured)
    found = measure_in_turns([Version(level, Path()) for level in (0, 3)], Path(), MeasurementBudget(rounds=2))
    assert found[1].error == "it is broken"
    assert found[1].as_dict()["call"] is None


def test_a_process_that_dies_or_takes_too_long_is_told(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = Version(0, files / "plain.onnx")
    assert "no folder" in measure_once(version, files / "no folder", MeasurementBudget())["error"]
    late = measure_once(version, files / "x", MeasurementBudget(patience=0.01))
    assert late["error"] == "it took longer than 0 s"
    monkeypatch.setattr(child_processes.sys, "executable", "/bin/false")
    assert measure_once(version, files / "x", MeasurementBudget())["error"] == "its process died (1)"
