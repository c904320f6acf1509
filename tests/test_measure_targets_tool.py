"""What is written of ONNX Runtime Web: a row for each range of the shipped table, and no other forms' rows lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuzzing import turns
from ortopt import registry
from ortopt.analysis import costs
from ortopt.analysis.providers import CPU
from ortopt.measurement import cost_tables
from ortopt.options import Target
from ortopt.verification.start import Runtime
from tools import measure_web

SHIPPED = json.loads(measure_web.PATH.read_bytes())
VERSION = SHIPPED["measured"]["onnxruntime"]
NAME = "MatMul in place of DFT"


def runtime(version: str = VERSION) -> Runtime:
    return Runtime(f"ONNX Runtime Web {version}", None)


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of the shipped table, which the tool writes, on another processor."""
    copy = tmp_path / "costs.web.json"
    copy.write_bytes(measure_web.PATH.read_bytes())
    monkeypatch.setattr(measure_web, "PATH", copy)
    monkeypatch.setattr(cost_tables, "processor", lambda: "another (SSE)")
    return copy


def test_forms_are_those_of_passes_that_serve_the_web() -> None:
    known = registry.installed()
    passes = {name for entry in measure_web.entries_of([]) for name in entry.made_by.split()}
    assert passes
    assert all(Target.WEB in (known.find(name).targets or (Target.WEB,)) for name in passes)
    assert {str(entry.form) for entry in measure_web.entries_of([NAME])} == {NAME}
    assert measure_web.entries_of(["Relu in place of nothing"]) == []


def test_a_row_says_the_slowest_and_the_fastest_of_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = measure_web.entries_of([NAME])[0]
    times = [0.5 + 0.25 * number for number in range(len(entry.cases))]
    answers = iter(times)
    monkeypatch.setattr(turns, "ratio", lambda *_: next(answers))
    rows = list(measure_web.rows_of(entry, runtime()))
    ranges = [cost for cost in costs.shipped().own if cost.form == entry.form and cost.provider == CPU]
    told = []
    for cost in ranges:
        own = [1 / time for time, given in zip(times, entry.cases, strict=True) if cost.holds_at(given)]
        told += [[round(min(own), 2), round(max(own), 2)]] if own else []
    assert [row["speed"] for row in rows] == told
    assert all(row["verdict"] == costs.verdict_of(tuple(row["speed"])).value for row in rows)


def row(low: float, high: float) -> dict[str, Any]:
    """A row of a form that the shipped table has, too."""
    verdict = costs.verdict_of((low, high)).value
    told = {"provider": CPU, "verdict": verdict, "speed": [low, high], "instead_of": "DFT"}
    return {"op": "MatMul", "variant": "in place of DFT", **told}


def test_rows_of_what_was_measured_are_replaced_and_others_stay(path: Path) -> None:
    text = measure_web._written([row(1.5, 2.0)], runtime())
    written = json.loads(text)
    others = [each for each in SHIPPED["costs"] if (each["op"], each["variant"]) != ("MatMul", "in place of DFT")]
    assert written["costs"][:-1] == others
    assert written["costs"][-1]["speed"] == [1.5, 2.0]
    source = written["costs"][-1]["source"]
    assert "another (SSE)" in source
    assert "another (SSE)" in written["sources"][source]
    assert {each["source"] for each in written["costs"]} == written["sources"].keys()
    assert written["measured"] == SHIPPED["measured"]
    path.write_text(text, encoding="utf-8")
    assert len(costs.read(path.read_bytes()).own) == len(others) + 1


def test_rows_of_two_versions_are_not_mixed(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(SystemExit, match="measure all forms"):
        measure_web._written([row(1.5, 2.0)], runtime("9.9"))
    assert path.read_bytes() == before
