"""What is written of another runtime: a row for each range of the shipped table, and no other forms' rows lost."""

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
from ortopt.verification.process import WorkerError
from ortopt.verification.start import Runtime
from tools import measure_targets

SHIPPED = json.loads(measure_targets.path_of(Target.WEB).read_bytes())
VERSION = SHIPPED["measured"]["onnxruntime"]
NAME = "MatMul in place of DFT"


def runtime(version: str = VERSION) -> Runtime:
    return Runtime(f"ONNX Runtime Web {version}", None)


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of the shipped table of the web, which the tool writes, on another processor."""
    copy = tmp_path / "costs.web.json"
    copy.write_bytes(measure_targets.path_of(Target.WEB).read_bytes())
    monkeypatch.setattr(measure_targets, "path_of", lambda _: copy)
    monkeypatch.setattr(cost_tables, "processor", lambda: "another (SSE)")
    return copy


@pytest.mark.parametrize("target", [Target.OPENVINO, Target.WEB])
def test_forms_are_those_that_a_result_may_have(target: Target) -> None:
    known = registry.installed()
    entries = measure_targets.entries_of(target)
    passes = {name for entry in entries for name in entry.made_by.split()}
    assert passes
    assert all(target in (known.find(name).targets or (target,)) for name in passes)
    assert any(entry.form.domain for entry in entries) == (target is Target.WEB)
    assert {str(entry.form) for entry in measure_targets.entries_of(target, [NAME])} == {NAME}
    assert measure_targets.entries_of(target, ["Relu in place of nothing"]) == []


def test_a_row_says_the_slowest_and_the_fastest_of_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = measure_targets.entries_of(Target.WEB, [NAME])[0]
    times = [0.5 + 0.25 * number for number in range(len(entry.cases))]
    answers = iter(times)
    monkeypatch.setattr(turns, "ratio", lambda *_, cold: next(answers))
    rows = list(measure_targets.rows_of(entry, Target.WEB, runtime()))
    ranges = [cost for cost in costs.shipped().own if cost.form == entry.form and cost.provider == CPU]
    assert len(rows) == len(ranges)
    for row, cost in zip(rows, ranges, strict=True):
        own = [1 / time for time, given in zip(times, entry.cases, strict=True) if cost.holds_at(given)]
        assert row["speed"] == [round(min(own), 2), round(max(own), 2)]
        assert row["verdict"] == costs.verdict_of(tuple(row["speed"])).value


def test_what_does_not_run_there_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> float:
        raise WorkerError("there is no such op")

    monkeypatch.setattr(turns, "ratio", refused)
    entry = measure_targets.entries_of(Target.OPENVINO, [NAME])[0]
    rows = list(measure_targets.rows_of(entry, Target.OPENVINO, runtime()))
    assert rows
    assert all(row["verdict"] == "unknown" and "speed" not in row for row in rows)


def test_each_kind_of_processors_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {}
    for processor in ("one (AVX2)", "another (AVX-512)"):
        monkeypatch.setattr(cost_tables, "processor", lambda processor=processor: processor)
        paths[processor] = [measure_targets.path_of(target).name for target in (Target.OPENVINO, Target.WEB)]
    assert paths["one (AVX2)"] == ["costs.openvino.avx2.json", "costs.web.json"]
    assert paths["another (AVX-512)"] == ["costs.openvino.json", "costs.web.json"]


def row(low: float, high: float) -> dict[str, Any]:
    """A row of a form that the shipped table has, too."""
    verdict = costs.verdict_of((low, high)).value
    told = {"provider": CPU, "verdict": verdict, "speed": [low, high], "instead_of": "DFT"}
    return {"op": "MatMul", "variant": "in place of DFT", **told}


def test_rows_of_what_was_measured_are_replaced_and_others_stay(path: Path) -> None:
    text = measure_targets._written(Target.WEB, [row(1.5, 2.0)], runtime())
    written = json.loads(text)
    others = [each for each in SHIPPED["costs"] if (each["op"], each.get("variant")) != ("MatMul", "in place of DFT")]
    assert written["costs"][:-1] == others
    assert written["costs"][-1]["speed"] == [1.5, 2.0]
    source = written["costs"][-1]["source"]
    assert "another (SSE)" in source
    assert "another (SSE)" in written["sources"][source]
    assert {each["source"] for each in written["costs"]} == written["sources"].keys()
    assert written["name"] == SHIPPED["name"]
    path.write_text(text, encoding="utf-8")
    assert len(costs.read(path.read_bytes()).own) == len(others) + 1


def test_rows_of_two_versions_are_not_mixed(path: Path) -> None:
    before = path.read_bytes()
    entries = measure_targets.entries_of(Target.WEB, [NAME])
    with pytest.raises(SystemExit, match="measure all forms"):
        measure_targets._check_version(Target.WEB, runtime("9.9"), entries)
    measure_targets._check_version(Target.WEB, runtime(), entries)
    assert path.read_bytes() == before
