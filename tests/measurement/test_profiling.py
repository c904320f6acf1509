"""Profiles: what each op takes in a typical call, and what ONNX Runtime makes of a file at load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortopt.errors import InvalidModelError
from ortopt.measurement import profiling
from ortopt.measurement.asking import MeasurementBudget
from ortopt.measurement.profiling import OpTime, Profile, by_call, by_op, layers_by_node, typical
from ortopt.serialization.save import save
from ortopt.testing import parse
from ortopt.verification.input_sets import store_inputs

BUDGET = MeasurementBudget(repeat=2, seconds=0.1, threads=1)


def kernel(op: str, start: int, duration: int) -> dict[str, Any]:
    return {
        "cat": "Node", "name": f"n_{op}_kernel_time", "tid": 1, "ts": start, "dur": duration, "args": {"op_name": op}
    }  # fmt: skip


def test_the_body_of_a_loop_is_not_the_loops_own() -> None:
    rows = [kernel("Loop", 0, 100), kernel("Add", 10, 20), kernel("Mul", 40, 30), kernel("Add", 200, 5)]
    assert by_op(rows) == {"Loop": [1, 50], "Add": [2, 25], "Mul": [1, 30]}


def test_kernels_that_overlap_without_a_body_keep_their_time() -> None:
    assert by_op([kernel("Add", 0, 10), kernel("Mul", 0, 10)]) == {"Add": [1, 10], "Mul": [1, 10]}


def test_events_belong_to_the_call_that_they_lie_in() -> None:
    run = {"cat": "Session", "name": "model_run", "dur": 50}
    rows = [{**run, "ts": 100}, {**run, "ts": 200}, kernel("Add", 110, 5), kernel("Add", 205, 6), kernel("Add", 90, 1)]
    assert [by_op(call) for call in by_call(rows)] == [{"Add": [1, 5]}, {"Add": [1, 6]}]


def test_one_slow_call_changes_nothing() -> None:
    assert typical([{"Add": [1, 5.0]}, {"Add": [1, 900.0]}, {"Add": [1, 6.0]}]) == {"Add": [1, 6.0]}
    assert typical([{"Add": [1, 5.0]}, {}, {}]) == {"Add": [0, 0.0]}


def test_time_by_layer(tmp_path: Path) -> None:
    """What ONNX Runtime makes of several nodes stands where the last of them stood."""
    text = """main (float[2,4] x, float[4,4] w, float[4] b) => (float[2,4] y) {
        m = MatMul (x, w) a = Add (m, b) r = Relu (a) t = Tanh (r) y = Sigmoid (t) }"""
    model = parse(text)
    names = ("0/MatMul", "0/Add", "1/act/Relu", "1/Tanh", "1/Sigmoid")
    for node, name in zip(model.graph, names, strict=True):
        node.name = f"/net/block.{name}"
    save(model, tmp_path / "m.onnx")
    arrays = {"x": np.ones((2, 4), np.float32), "w": np.ones((4, 4), np.float32), "b": np.ones(4, np.float32)}
    store_inputs(arrays, tmp_path / "in")
    seen = profiling.profile(tmp_path / "m.onnx", tmp_path / "in", BUDGET)
    assert list(seen.layers) == ["net/block.0", "net/block.1"]
    assert seen.layers["net/block.0"] == 0
    assert sum(seen.layers.values()) == pytest.approx(sum(row.ms for row in seen.ops), rel=0.5)


def test_the_layer_of_a_new_node_is_that_of_its_origins() -> None:
    model = parse("main (float[4] x) => (float[4] y) { a = Relu (x) b = Tanh (a) y = Neg (b) }")
    for node, name in zip(model.graph, ("/a/b.1/Relu", "/z/z/New", "/z/z/Other"), strict=True):
        node.name = name
    model.graph[1].metadata_props.update({"ortopt.pass": "p", "ortopt.origin": "/a/b.1/c/Mul, /a/b.1/d/Add"})
    model.graph[2].metadata_props.update({"ortopt.pass": "p", "ortopt.origin": "/a/b.1/Mul, /a/b.2/Add"})
    assert layers_by_node(model, None) == {"/a/b.1/Relu": "a/b.1", "/z/z/New": "a/b.1", "/z/z/Other": "z/z"}


def test_a_model_is_profiled_and_what_is_fused_at_load_is_told(tmp_path: Path) -> None:
    text = """main (float[2,4] x, float[4,4] w, float[4] b) => (float[2,4] y) {
        m = MatMul (x, w) a = Add (m, b) i = Identity (a) y = Relu (i) }"""
    save(parse(text), tmp_path / "m.onnx")
    arrays = {"x": np.ones((2, 4), np.float32), "w": np.ones((4, 4), np.float32), "b": np.ones(4, np.float32)}
    store_inputs(arrays, tmp_path / "in")
    seen = profiling.profile(tmp_path / "m.onnx", tmp_path / "in", BUDGET)
    assert [(row.op, row.count) for row in seen.ops] == [("com.microsoft::FusedGemm", 1)]
    assert seen.ops[0].share == pytest.approx(1)
    assert seen.changed_at_load == {
        "Add": (1, 0), "Identity": (1, 0), "MatMul": (1, 0), "Relu": (1, 0), "com.microsoft::FusedGemm": (0, 1)
    }  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "m.onnx"]


def test_what_does_not_run_is_said(tmp_path: Path) -> None:
    save(parse("main (float[N] x) => (float[N] y) { y = Relu (x) }"), tmp_path / "m.onnx")
    store_inputs({"x": np.ones((2, 2), np.float32)}, tmp_path / "in")
    with pytest.raises(InvalidModelError, match=r"it cannot be profiled: .*rank"):
        profiling.profile(tmp_path / "m.onnx", tmp_path / "in", BUDGET)


def test_the_quickest_process_of_each_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([3.0, 30.0, 1.0, 50.0, 2.0, 40.0])
    monkeypatch.setattr(
        profiling, "profile", lambda path, *_: Profile((OpTime(str(path), 1, next(taken), 1.0),), {}, {}, 1)
    )
    found = profiling.in_turns([Path("a"), Path("b")], Path("in"), BUDGET)
    assert [(one.ops[0].op, one.ms) for one in found] == [("a", 1.0), ("b", 30.0)]
