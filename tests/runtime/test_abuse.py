"""Many threads, changing shapes, weights in files, a trace of it all."""

from __future__ import annotations

import gc
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose

from ortopt import InferenceSession
from ortopt.errors import UsageError
from ortopt.runtime import session_factory
from ortopt.runtime.planning.planner import divide_threads
from ortopt.runtime.values.tensors import to_ort
from ortopt.serialization.save import save, to_bytes
from ortopt.system import memory
from ortopt.testing import parse
from tests.runtime.models import FUNCTION, HEADER, TWO_GROUPS, Twice, floats, session, two_groups
from tests.runtime.side_by_side import PARALLEL, SEQUENTIAL, in_threads, quiet

SECONDS = float(os.environ.get("ORTOPT_TEST_ABUSE_SECONDS", "3"))
"""How long 64 threads call one session; `make abuse` takes a minute."""


def anonymous_megabytes() -> float:
    """What this process holds beside mapped files."""
    found = memory.of_process()
    if not found:
        pytest.skip("no /proc here")
    return found["RssAnon"] / (1 << 20)


# 78 pairs of a group and sizes for eight entries: those that come back while all entries are in use find no room.
@pytest.mark.filterwarnings(
    "ignore:not all groups are specialised. the cache is full of versions in use:RuntimeWarning"
)
@pytest.mark.parametrize("mode", [SEQUENTIAL, PARALLEL], ids=["sequential", "parallel"])
def test_64_threads_with_changing_shapes(mode: Any) -> None:
    options = quiet(intra_op_num_threads=2, execution_mode=mode)
    mine = session(TWO_GROUPS, sess_options=options, specialize_after=50, cache_entries=8)
    cases = [(x, two_groups(x)) for x in (floats(rows, 4, seed=rows) for rows in range(1, 40))]

    def crowd() -> list[int]:
        """How many calls each of 64 threads has made in a while."""
        end = time.monotonic() + SECONDS / 4

        def work(seed: int) -> int:
            order = np.random.default_rng(seed)
            for count in itertools.count():
                if time.monotonic() >= end:
                    return count
                x, expected = cases[int(order.integers(len(cases)))]
                for got, right in zip(mine.run(None, {"x": x}), expected, strict=True):
                    assert_allclose(got, right, rtol=1e-5)
            raise AssertionError

        return in_threads(64, work)

    calls = crowd()
    gc.collect()
    before = anonymous_megabytes()
    calls += crowd()
    gc.collect()
    assert len(mine._session.context.cache) <= 8
    assert anonymous_megabytes() < before + 24 + 2 * SECONDS
    assert mine.statistics.runs == sum(calls)
    assert mine.statistics.fallbacks <= 1  # the full cache, said once
    mine.close()


def test_dealing_threads_out() -> None:
    assert divide_threads(1, [5, 1]) == [1, 1]
    assert divide_threads(4, [90, 5, 5]) == [4, 1, 1]
    assert sum(count - 1 for count in divide_threads(16, [1] * 5)) == 15
    assert divide_threads(2, []) == []
    assert sum(count - 1 for count in divide_threads(0, [1, 2])) >= 0


WEIGHTS = f"""{HEADER}
main (float[N,1024] x) => (float[N,1024] y) <float[1] v = {{0}}, float[1] w = {{0}}> {{
    a = ortopt.group.group_0 (x, w) b = my.Twice (a) y = ortopt.group.group_1 (b, v) }}
{FUNCTION} group_0 (p, q) => (r) {{ s = Add (p, q) r = Relu (s) }}
{FUNCTION} group_1 (p, q) => (r) {{ s = Mul (p, q) r = Neg (s) }}"""


def with_weights(rows: int, text: str = WEIGHTS) -> tuple[ir.Model, Any, Any]:
    model = parse(text)
    v, w = floats(rows, 1024, seed=1), floats(rows, 1024, seed=2)
    for name, array in (("v", v), ("w", w)):
        value = model.graph.initializers[name]
        value.shape = ir.Shape(array.shape)
        value.const_value = ir.Tensor(array, name=name)
    return model, v, w


@pytest.mark.parametrize("external_data", ["inline", "copy"])
@pytest.mark.parametrize("source", ["path", "bytes", "elsewhere", "replaced"])
def test_weights_wherever_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external_data: Any, source: str
) -> None:
    model, v, w = with_weights(3)
    path = tmp_path / "model.onnx"
    save(model, path, external_data=external_data)
    given: Any = path.read_bytes() if source == "bytes" and external_data == "inline" else path
    if source == "elsewhere":
        (tmp_path / "sub").mkdir()
        monkeypatch.chdir(tmp_path / "sub")
        given = "../model.onnx"
    mine = InferenceSession(given, providers=["cpu"], host_ops=[Twice])
    if source == "replaced":
        for file in tmp_path.glob("*"):
            content = file.read_bytes()
            file.unlink()
            file.write_bytes(bytes(len(content)))
    x = floats(3, 1024)
    expected = -(2 * np.maximum(x + w, 0)) * v
    assert_allclose(mine.run(None, {"x": x})[0], expected, rtol=1e-6)


TABLES = f"""{HEADER}
main (int64[N] x) => (float[N,1024] y) <float[1] v = {{0}}, float[1] w = {{0}}> {{
    a = ortopt.group.group_0 (x, w) b = my.Twice (a) y = ortopt.group.group_1 (b, x, v) }}
{FUNCTION} group_0 (p, q) => (r) {{ s = Gather (q, p) r = Relu (s) }}
{FUNCTION} group_1 (p, x, q) => (r) {{ s = Gather (q, x) r = Mul (p, s) }}"""


@pytest.mark.parametrize("external_data", ["inline", "copy"])
def test_weights_in_files_are_not_copied(tmp_path: Path, external_data: Any) -> None:
    model, v, w = with_weights(16384, TABLES)  # 64 MB each
    save(model, tmp_path / "model.onnx", external_data=external_data)
    del model
    x = np.array([0, 16383, 7])
    gc.collect()
    before = anonymous_megabytes()
    mine = InferenceSession(tmp_path / "model.onnx", providers=["cpu"], host_ops=[Twice])
    assert_allclose(mine.run(None, {"x": x})[0], 2 * np.maximum(w[x], 0) * v[x], rtol=1e-6)
    gc.collect()
    assert anonymous_megabytes() - before < 32


@pytest.mark.parametrize("external_data", ["inline", "copy"])
def test_defaults_of_inputs_are_in_memory_once(tmp_path: Path, external_data: Any) -> None:
    """The session that answers for the model's interface maps them."""
    model, v, w = with_weights(16384)
    model.graph.inputs.append(model.graph.initializers["v"])
    save(model, tmp_path / "model.onnx", external_data=external_data)
    del model
    gc.collect()
    before = anonymous_megabytes()
    mine = InferenceSession(tmp_path / "model.onnx", providers=["cpu"], host_ops=[Twice])
    gc.collect()
    assert 60 < anonymous_megabytes() - before < 96
    (found,) = mine.get_overridable_initializers()
    assert (found.name, found.shape) == ("v", [16384, 1024])
    x = floats(16384, 1024)
    expected = -(2 * np.maximum(x + w, 0) * v)
    assert_allclose(mine.run(None, {"x": x})[0], expected, rtol=1e-5)
    assert_allclose(mine.run(None, {"x": x, "v": v + 1})[0], -(2 * np.maximum(x + w, 0) * (v + 1)), rtol=1e-5)


def test_results_of_one_group_are_freed_apart() -> None:
    """One is of use for longer than the other: 64 MB each."""
    text = f"""{HEADER} main (float[N] x) => (float[N] y) {{
        a, b = ortopt.group.group_0 (x) c = my.Twice (b) d = my.Twice (c) y = Add (a, d) }}
    {FUNCTION} group_0 (p) => (r, s) {{ r = Neg (p) s = Abs (p) }}"""
    mine = session(text, sess_options=quiet(enable_cpu_mem_arena=False), host_ops=[Twice])
    mine.run(None, {"x": floats(3)})
    (group,) = (one for one in mine.groups if one.spec.name == "group_0")
    first, second = group([to_ort(np.ones(16 << 20, np.float32))], onnxruntime.RunOptions())
    before = anonymous_megabytes()
    del second
    assert before - anonymous_megabytes() > 48
    assert first.numpy()[-1] == -1


def test_nothing_is_walked_in_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = session(TWO_GROUPS)
    x = floats(3, 4)
    mine.run(None, {"x": x})

    def never(*_: Any) -> Any:
        raise AssertionError("planned again")

    monkeypatch.setattr(session_factory, "plan_model", never)
    monkeypatch.setattr(ir.Graph, "__iter__", never)
    assert_allclose(mine.run(None, {"x": x})[0], two_groups(x)[0], rtol=1e-6)


def test_errors_in_a_group_reach_the_caller_and_leave_the_session_usable() -> None:
    text = f"""{HEADER} main (float[N] x, int64[K] shape) => (float[] y) {{
        a = my.Twice (x) y = ortopt.group.group_0 (a, shape) }}
    {FUNCTION} group_0 (p, s) => (r) {{ r = Reshape (p, s) }}"""
    for mode in (SEQUENTIAL, PARALLEL):
        mine = session(text, sess_options=quiet(execution_mode=mode), host_ops=[Twice])
        for _ in range(3):
            with pytest.raises(Exception, match="cannot be reshaped"):
                mine.run(None, {"x": floats(5), "shape": np.array([7])})
            assert mine.run(None, {"x": floats(6), "shape": np.array([2, 3])})[0].shape == (2, 3)


def test_a_trace_has_every_compile_and_run(tmp_path: Path) -> None:
    mine = session(TWO_GROUPS, trace=True)
    for _ in range(2):
        mine.run(None, {"x": floats(3, 4)})
    mine.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    kinds = [(event.get("cat"), event["name"]) for event in events]
    for name in ("group_0", "leftover_0", "group_1"):
        assert kinds.count(("compile", name)) == 1
        assert kinds.count(("run", name)) == 2
    assert kinds.count(("call", "run")) == 2
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def test_a_trace_of_a_whole_model() -> None:
    mine = InferenceSession(to_bytes(parse("main (float[N] x) => (float[N] y) { y = Neg (x) }")), trace=True)
    mine.run(None, {"x": floats(2)})
    assert [event["name"] for event in mine._timeline.as_dict()["traceEvents"]][1:] == ["whole model", "run"]


def test_a_trace_as_data() -> None:
    mine = session(TWO_GROUPS, trace=True)
    assert mine.trace()["traceEvents"][0]["name"] == "process_name"
    with pytest.raises(UsageError, match="trace=True"):
        session(TWO_GROUPS).trace()
