"""What a plan does with a CUDA device: which copies, on which stream, who waits when. A fake device notes it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import gc
import itertools
import threading
import warnings
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose

from ortopt import UsageError
from ortopt.analysis.providers import CPU, CUDA, usable
from ortopt.runtime import session_factory
from ortopt.runtime.cuda import device as cuda_device
from ortopt.runtime.cuda import driver as cuda_driver
from ortopt.runtime.cuda.device import STREAM_KEY
from ortopt.runtime.cuda.driver import Driver
from ortopt.runtime.execution.arena import Arena
from ortopt.runtime.instruments import Counters
from ortopt.runtime.onnxruntime_interface import output_memory
from ortopt.runtime.onnxruntime_internals import copies_from_values, empty_tensor, native_device, size_in_bytes
from ortopt.runtime.planning.execution_plan import HOST_OUTPUTS, in_host_memory
from ortopt.runtime.specialization import cuda_graphs
from ortopt.testing import parse
from tests.runtime.cuda.fake_cuda import Log, fake_cuda
from tests.runtime.models import FUNCTION, HEADER, TWO_GROUPS, Twice, floats, session, two_groups
from tests.runtime.planning.test_control_flow import GROUP
from tests.runtime.side_by_side import PARALLEL, bound, in_threads, quiet, value

__all__ = ["fake_cuda"]

X = floats(3, 4)

CHAIN = f"""{HEADER} main (float[N,4] x) => (float[N,4] y) <float[4] w = {{1, 2, 3, 4}}> {{
    a = ortopt.group.group_0 (x, w) b = ortopt.group.group_1 (a) y = ortopt.group.group_2 (b, x) }}
{FUNCTION} group_0 (p, q) => (r) {{ s = Add (p, q) r = Relu (s) }}
{FUNCTION} group_1 (p) => (r) {{ s = Neg (p) r = Exp (s) }}
{FUNCTION} group_2 (p, q) => (r) {{ s = Mul (p, q) r = Abs (s) }}
"""

MIXED = f"""{HEADER} main (float[N,4] x) => (float[N,4] y, float[N,4] b) <float[4] w = {{1, 2, 3, 4}}> {{
    a = ortopt.group.group_0 (x, w) b = my.Twice (a) c = ortopt.group.group_1 (a, b) y = Neg (c) }}
{FUNCTION} group_0 (p, q) => (r) {{ s = Add (p, q) r = Relu (s) }}
{FUNCTION} group_1 (p, o) => (r) {{ r = Mul (p, o) }}
"""


def chain(x: Any) -> Any:
    return np.abs(np.exp(-np.maximum(x + np.array([1, 2, 3, 4], np.float32), 0)) * x)


def check_chain(mine: Any, *rows: int, rtol: float = 1e-6, atol: float = 0.0) -> None:
    """Calls of a session of CHAIN, each with other numbers and so many rows, give what they should."""
    for seed, count in enumerate(rows):
        x = floats(count, 4, seed=seed)
        assert_allclose(mine.run(None, {"x": x})[0], chain(x), rtol=rtol, atol=atol)


def for_cuda(text: str, *names: str) -> ir.Model:
    """A model whose groups, or those that are named, were made for CUDA."""
    model = parse(text)
    for function in model.functions.values():
        function.metadata_props["ortopt.provider"] = CUDA if not names or function.name in names else CPU
    return model


def cuda(text: str, *names: str, **options: Any) -> Any:
    options.setdefault("providers", ["cpu", "cuda"])  # nodes between groups run on the CPU
    return session(for_cuda(text, *names), **options)


# One stream


def test_one_stream_of_all_sessions_and_one_wait_at_the_end_of_a_call(fake_cuda: Log) -> None:
    mine = cuda(CHAIN)
    check_chain(mine, 3)
    assert len({one.options[STREAM_KEY] for one in fake_cuda.sessions}) == 1
    assert len(fake_cuda.sessions) == 3
    fake_cuda.events.clear()
    check_chain(mine, 3)
    # x is used by two groups and goes up once; no run waits; one wait, then the output comes down
    assert fake_cuda.events[:4] == [("upload", 48), ("run", True), ("run", True), ("run", True)]
    assert [kind for kind, _ in fake_cuda.events[4:]] == ["wait", "download", "wait"]
    assert fake_cuda.pending == 0


def test_one_stream_is_made_for_the_callers_device(fake_cuda: Log) -> None:
    cuda(CHAIN, providers=["cpu", ("cuda", {"device_id": "3"})]).run(None, {"x": X})
    (device,) = fake_cuda.devices
    assert device.index == 3
    assert all(one.options["device_id"] == "3" for one in fake_cuda.sessions)
    with pytest.raises(UsageError, match="device_id of CUDAExecutionProvider must be a number, not 'first'"):
        cuda(CHAIN, providers=["cpu", ("cuda", {"device_id": "first"})])


def test_one_stream_of_the_callers_is_used_as_onnx_runtime_would(fake_cuda: Log) -> None:
    """It may keep no order with the default stream: every run waits for its end."""
    mine = cuda(CHAIN, providers=["cpu", ("cuda", {STREAM_KEY: "77"})])
    assert_allclose(mine.run(None, {"x": X})[0], chain(X), rtol=1e-6)
    assert {one.options[STREAM_KEY] for one in fake_cuda.sessions} == {"77"}
    assert fake_cuda.of("run") == [False, False, False]
    assert fake_cuda.streams == 0
    assert mine.get_provider_options()[CUDA] == {STREAM_KEY: "77"}
    del mine
    gc.collect()
    assert not fake_cuda.of("destroy")


def test_one_stream_that_cannot_be_made_is_said_and_each_session_has_its_own(fake_cuda: Log) -> None:
    fake_cuda.no_stream = True
    with pytest.warns(RuntimeWarning, match="share no stream: the NVIDIA driver answers cuStreamCreate with error 2"):
        mine = cuda(MIXED, host_ops=[Twice])
    assert mine.statistics.fallbacks == 1
    for _ in range(2):
        y, b = mine.run(None, {"x": X})
        a = np.maximum(X + np.array([1, 2, 3, 4], np.float32), 0)
        assert_allclose(b, 2 * a, rtol=1e-6)
        assert_allclose(y, -2 * a * a, rtol=1e-6)
    assert all(STREAM_KEY not in one.options for one in fake_cuda.sessions)
    assert set(fake_cuda.of("run")) == {False}


def test_one_stream_and_an_allocator_of_the_callers_do_not_go_together(fake_cuda: Log) -> None:
    options = {"gpu_external_alloc": "1234", "gpu_external_free": "5678"}
    with pytest.warns(RuntimeWarning, match="gpu_external_alloc allows no stream"):
        cuda(CHAIN, providers=["cpu", ("cuda", options)]).run(None, {"x": X})
    assert all(STREAM_KEY not in one.options for one in fake_cuda.sessions)


def test_one_stream_gives_no_memory_to_others_that_it_still_reads(fake_cuda: Log) -> None:
    """What is uploaded is of the process's allocator: another session's stream would write to it at once."""
    mine = cuda(CHAIN)
    for _ in range(2):
        mine.run(None, {"x": X})
    # at the end of each call the argument on the device is there, though nobody needs it, and then it is gone
    assert fake_cuda.alive == [1, 0, 1, 0]


def test_one_stream_and_an_arena_of_the_process_do_not_go_together(fake_cuda: Log) -> None:
    """What one stream still reads would be given to another."""
    with pytest.warns(RuntimeWarning, match="use_env_allocators shares memory"):
        mine = cuda(CHAIN, sess_options=with_allocators("1"))
    assert mine.statistics.fallbacks == 1
    assert fake_cuda.streams == 0


def test_one_stream_is_not_left_behind_by_what_a_kernel_gives_in_the_hosts_memory(fake_cuda: Log) -> None:
    """A shape that goes up after the run, out of memory that the run gives back: the run waits."""
    text = f"""{HEADER} main (float[N,4] x) => (int64[2] y) {{
        s = ortopt.group.group_0 (x) y = ortopt.group.group_1 (s) }}
    {FUNCTION} group_0 (p) => (shape) {{ shape = Shape (p) }}
    {FUNCTION} group_1 (p) => (r) {{ r = Neg (p) }}"""
    fake_cuda.pinned = {"shape"}
    mine = cuda(text)
    assert mine.run(None, {"x": X})[0].tolist() == [-3, -4]
    assert fake_cuda.of("run") == [False, True]
    assert mine.statistics.copies == 3


def test_one_stream_is_given_back_after_the_last_session(fake_cuda: Log) -> None:
    mine = cuda(CHAIN)
    mine.run(None, {"x": X})
    kept = fake_cuda.sessions.pop()
    fake_cuda.sessions.clear()
    fake_cuda.devices.clear()
    mine.close()
    del mine
    gc.collect()
    assert not fake_cuda.of("destroy")
    del kept
    gc.collect()
    assert len(fake_cuda.of("destroy")) == 1


def test_one_stream_waits_also_after_a_call_that_failed(fake_cuda: Log) -> None:
    class Bad(Twice):
        def _run(self, x: Any) -> tuple[Any, ...]:
            raise ArithmeticError("bad")

    Bad.__name__ = "Twice"
    mine = cuda(MIXED, host_ops=[Bad])
    with pytest.raises(Exception, match="bad"):
        mine.run(None, {"x": X})
    assert fake_cuda.pending == 0
    assert fake_cuda.kinds()[-1] == "wait"


def test_run_options_of_the_callers_are_used_as_they_are(fake_cuda: Log) -> None:
    mine = cuda(CHAIN)
    options = onnxruntime.RunOptions()
    assert_allclose(mine.run(None, {"x": X}, options)[0], chain(X), rtol=1e-6)
    assert fake_cuda.of("run") == [False, False, False]
    with pytest.raises(RuntimeError):
        options.get_run_config_entry("disable_synchronize_execution_providers")


# Copies


def test_copies_of_shapes_are_left_to_onnx_runtime(fake_cuda: Log) -> None:
    """They are read in the host's memory by two groups on CUDA: no copy at all."""
    text = f"""{HEADER} main (float[N,4] x, int64[K] shape) => (float[] y) {{
        a = ortopt.group.group_0 (x, shape) y = ortopt.group.group_1 (a, shape) }}
    {FUNCTION} group_0 (p, shape) => (r) {{ r = Reshape (p, shape) }}
    {FUNCTION} group_1 (p, shape) => (r) {{ s = Neg (p) r = Reshape (s, shape) }}
    """
    fake_cuda.pinned = {"shape"}
    mine = cuda(text)
    found = mine.run(None, {"x": X, "shape": np.array([2, 6])})[0]
    assert_allclose(found, -X.reshape(2, 6), rtol=1e-6)
    assert fake_cuda.kinds() == ["run", "run", "wait", "download", "wait"]
    assert mine.statistics.copies == 2


def test_copies_to_where_an_input_is_read_on_the_host_are_counted(fake_cuda: Log) -> None:
    text = f"""{HEADER} main (float[N,4] x) => (float[] y) {{
        s = ortopt.group.group_0 (x) y = ortopt.group.group_1 (x, s) }}
    {FUNCTION} group_0 (p) => (r) {{ r = Shape (p) }}
    {FUNCTION} group_1 (p, shape) => (r) {{ s = Neg (p) r = Reshape (s, shape) }}
    """
    fake_cuda.pinned = {"shape"}
    mine = cuda(text)
    assert_allclose(mine.run(None, {"x": X})[0], -X, rtol=1e-6)
    assert mine.statistics.copies == 3  # x, the shape (which this fake kernel leaves on the device), y


@pytest.mark.parametrize("op", sorted(HOST_OUTPUTS))
def test_copies_of_what_a_kernel_leaves_in_the_hosts_memory_are_not_planned(
    fake_cuda: Log, op: tuple[str, str]
) -> None:
    """Another group on CUDA reads it: it would go up after the run, and come down for a kernel that wants it there."""
    domain, name = op
    attributes = "<decoder = g () => () {}>" if "Search" in name or name == "Sampling" else ""
    outputs = ", ".join(f"r{i}" for i in range(max(HOST_OUTPUTS[op]) + 1))
    nodes = parse(f"""{HEADER} main (float[N,4] x) => (int64[2] r0) {{
        {outputs} = {domain + "." if domain else ""}{name} {attributes} (x) }}""")
    proto = ir.to_proto(nodes)
    assert in_host_memory(proto.graph.node) == {f"r{i}" for i in HOST_OUTPUTS[op]}


def test_copies_of_shapes_between_groups_on_cuda_are_not_made(fake_cuda: Log) -> None:
    text = f"""{HEADER} main (float[N,4] x) => (float[] y, int64[K] t) {{
        s = ortopt.group.group_0 (x) y = ortopt.group.group_1 (x, s) t = ortopt.group.group_2 (s) }}
    {FUNCTION} group_0 (p) => (shape) {{ shape = Shape (p) }}
    {FUNCTION} group_1 (p, shape) => (r) {{ s = Neg (p) r = Reshape (s, shape) }}
    {FUNCTION} group_2 (p) => (r) {{ r = Neg (p) }}"""
    fake_cuda.pinned = {"shape"}
    mine = cuda(text)
    y, t = mine.run(None, {"x": X})
    assert_allclose(y, -X, rtol=1e-6)
    assert t.tolist() == [-3, -4]
    group = mine._session.context.groups[0]
    assert group.devices == ("cpu",)
    # x goes up once, as two groups read it; the shape up for group_2 only; y and t down
    assert mine.statistics.copies == 4
    assert fake_cuda.of("run") == [False, True, True]  # who leaves something in the host's memory waits


def test_copies_are_right_where_onnx_runtime_does_not_tell_what_is_in_the_hosts_memory(fake_cuda: Log) -> None:
    """Before 1.23: every run waits, as each of its results may come from there; and none is captured."""
    fake_cuda.is_old = True
    mine = cuda(CHAIN)
    assert_allclose(mine.run(None, {"x": X})[0], chain(X), rtol=1e-6)
    assert fake_cuda.of("run") == [False, False, False]
    captured = graphs()
    with pytest.warns(RuntimeWarning, match=r"before 1\.23 does not tell"):
        assert_allclose(captured.run(None, {"x": X})[0], chain(X), rtol=1e-6)
    assert captured.statistics.captures == 0


def test_an_output_that_nobody_asks_for_stays_where_it_is(fake_cuda: Log) -> None:
    mine = cuda(TWO_GROUPS, providers=["cuda", "cpu"])
    mine.run(None, {"x": X})
    before = mine.statistics.copies
    assert_allclose(mine.run(["t"], {"x": X})[0], two_groups(X)[1], rtol=1e-6)
    assert mine.statistics.copies - before == 2


# Control flow


def test_control_flow_carries_values_on_the_device(fake_cuda: Log) -> None:
    text = f"""{HEADER} main (float[N,4] x, int64 n) => (float[N,4] y) <bool go = {{1}}> {{
        z = ortopt.group.group_0 (x, x)
        v = Loop (n, go, z) <body = body (int64 i, bool c, float[N,4] a) => (bool more, float[N,4] b) {{
            more = Identity (c) b = ortopt.group.group_0 (a, a) }}>
        y = ortopt.group.group_0 (v, v) }} {GROUP}"""
    mine = cuda(text)
    feeds = {"x": np.abs(X), "n": np.array(4)}
    assert_allclose(mine.run(None, feeds)[0], np.abs(X) * 64, rtol=1e-6)
    assert mine.statistics.copies == 2 if fake_cuda.of("upload") else 2
    assert len(fake_cuda.of("download")) == 1


# One arena


def with_allocators(text: str) -> onnxruntime.SessionOptions:
    return quiet({"session.use_env_allocators": text})


def test_one_arena_for_all_plans_on_one_stream_of_a_device(fake_cuda: Log) -> None:
    """What one gives back, though the device may still read it, only comes to others behind it on the stream."""
    first, other = cuda(CHAIN), cuda(CHAIN)
    elsewhere = cuda(CHAIN, providers=["cpu", ("cuda", {"device_id": "1"})])
    for mine in (first, other, elsewhere):
        assert_allclose(mine.run(None, {"x": X})[0], chain(X), rtol=1e-6)
    assert [one.has_arena for one in fake_cuda.sessions] == [False] * 9
    assert fake_cuda.arenas == {0, 1}
    assert fake_cuda.streams == 2
    assert len({one.options[STREAM_KEY] for one in fake_cuda.sessions[:6]}) == 1


def test_one_arena_is_not_that_of_cuda_graphs(fake_cuda: Log) -> None:
    """A replay writes to what was free at the capture, which would be another session's meanwhile."""
    mine = graphs()
    assert_allclose(mine.run(None, {"x": X})[0], chain(X), rtol=1e-6)
    assert [one.has_arena for one in fake_cuda.sessions] == [
        "enable_cuda_graph" in one.options for one in fake_cuda.sessions
    ]
    assert mine.statistics.captures == 3


@pytest.mark.parametrize("why", ["0", "gpu_mem_limit", "arena_extend_strategy", "refused", "a caller's on the CPU"])
def test_one_arena_is_not_taken_by_who_wants_others(fake_cuda: Log, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    fake_cuda.no_arena = why == "refused"
    if why.startswith("a caller"):
        monkeypatch.setattr(Arena, "entries", lambda _: {})
    limits = {"gpu_mem_limit": "1000000", "arena_extend_strategy": "kSameAsRequested"}
    providers = ["cpu", ("cuda", {why: limits[why]} if why in limits else {})]
    for _ in range(2):
        mine = cuda(CHAIN, providers=providers, sess_options=with_allocators("0") if why == "0" else None)
        assert_allclose(mine.run(None, {"x": X})[0], chain(X), rtol=1e-6)
        assert mine.statistics.fallbacks == 0
    assert all(one.has_arena for one in fake_cuda.sessions)
    own_streams = why == "0" or why in limits
    assert fake_cuda.streams == (2 if own_streams else 1)


def test_one_arena_is_left_alone_while_a_session_is_made_in_it(fake_cuda: Log) -> None:
    """Its weights are written on the default stream, to memory that what was started before may still read."""
    other = cuda(CHAIN)
    other.run(None, {"x": X})
    started: list[threading.Thread] = []

    def meanwhile() -> None:
        if not started:
            started.append(threading.Thread(target=lambda: other.run(None, {"x": X})))
            started[0].start()
            started[0].join(0.2)

    fake_cuda.while_making = meanwhile
    assert_allclose(cuda(CHAIN).run(None, {"x": X})[0], chain(X), rtol=1e-6)
    started[0].join(60)
    assert not started[0].is_alive()
    assert fake_cuda.broken == []


def test_one_arena_is_registered_once_and_a_refusal_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []

    def create(*arguments: Any) -> None:
        calls.append(arguments)
        if arguments[1].device_id:
            raise RuntimeError("An allocator for this device has already been registered for sharing.")

    monkeypatch.setattr(onnxruntime, "create_and_register_allocator_v2", create)
    monkeypatch.setattr(cuda_device, "_arenas", {})
    assert [cuda_device.register_arena(0) for _ in range(2)] == [True, True]
    assert [cuda_device.register_arena(2) for _ in range(2)] == [False, False]
    (provider, where, options, _), _ = calls
    assert (provider, where.name, where.device_id, options) == (CUDA, "Cuda", 0, {"device_id": "0"})


# How many groups


def many(count: int) -> str:
    """A chain of groups, each of which has one node more than the one before it."""
    calls = "\n".join(f"a{i + 1} = ortopt.group.group_{i} (a{i})" for i in range(count))
    functions = []
    for i in range(count):
        names = ["p", *(f"s{j}" for j in range(i)), "r"]
        nodes = " ".join(f"{to} = Neg ({of})" for of, to in itertools.pairwise(names))
        functions.append(f'<domain: "ortopt.group", opset_import: ["" : 17]> group_{i} (p) => (r) {{ {nodes} }}')
    return "\n".join((f"{HEADER} main (float[N,4] a0) => (float[N,4] a{count}) {{ {calls} }}", *functions))


def test_more_groups_than_cuda_takes_run_on_the_cpu_and_are_said(
    fake_cuda: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTOPT_MAX_CUDA_GROUPS", "3")
    with pytest.warns(RuntimeWarning, match=r"5 groups are for CUDA.*the 3 with the most.*ORTOPT_MAX_CUDA_GROUPS be 5"):
        mine = cuda(many(5))
    for _ in range(2):
        assert_allclose(mine.run(None, {"a0": X})[0], -X, rtol=1e-6)
    assert [group.provider for group in mine._session.context.groups] == [CPU, CPU, CUDA, CUDA, CUDA]
    assert len(fake_cuda.sessions) == 3
    assert mine.statistics.fallbacks == 1
    monkeypatch.setenv("ORTOPT_MAX_CUDA_GROUPS", "5")
    assert_allclose(cuda(many(5)).run(None, {"a0": X})[0], -X, rtol=1e-6)
    assert len(fake_cuda.sessions) == 8
    for wrong in ("0", "-1", "many", ""):
        monkeypatch.setenv("ORTOPT_MAX_CUDA_GROUPS", wrong)
        with pytest.raises(UsageError, match="ORTOPT_MAX_CUDA_GROUPS must be a whole number from 1 on"):
            cuda(CHAIN)


def test_a_hundred_groups_take_no_more_sessions_on_cuda_than_the_default_allows(fake_cuda: Log) -> None:
    text = many(2).replace("a2)", "a100)", 1).replace("a2 = ortopt.group.group_1 (a1)", "\n".join(
        f"a{i + 1} = ortopt.group.group_1 (a{i})" for i in range(1, 100)
    ))  # fmt: skip
    with pytest.warns(RuntimeWarning, match="100 groups are for CUDA"):
        mine = cuda(text)
    assert_allclose(mine.run(None, {"a0": X})[0], -X, rtol=1e-6)
    assert len(fake_cuda.sessions) == 32


# CUDA graphs


def graphs(text: str = CHAIN, **options: Any) -> Any:
    return cuda(text, specialize_after=1, cuda_graphs=True, **options)


def test_cuda_graphs_replay_without_waiting_on_buffers_that_stay(fake_cuda: Log) -> None:
    mine = graphs()
    for _ in range(2):
        mine.run(None, {"x": X})
    fake_cuda.events.clear()
    before = mine.statistics
    mine.run(None, {"x": X})
    group = ["on device", "replay", "on device"]
    assert fake_cuda.kinds() == ["upload", *group, *group, "on device", *group, "wait", "download", "wait"]
    assert mine.statistics.copies - before.copies == 2


def test_cuda_graphs_of_many_threads_are_captured_alone_and_right(
    fake_cuda: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graphs, "MAX_THREADS", 3)
    mine = graphs()
    together = threading.Barrier(6, timeout=60)

    def call(seed: int) -> bool:
        together.wait()
        inputs = [floats(3, 4, seed=seed * 100 + i) for i in range(8)]
        return all(np.allclose(mine.run(None, {"x": x})[0], chain(x), rtol=1e-5) for x in inputs)

    with pytest.warns(RuntimeWarning, match="run without a CUDA graph in further threads"):
        assert all(in_threads(6, call))
    assert fake_cuda.overlaps == 0
    assert fake_cuda.broken == []
    assert mine.statistics.captures == 9
    assert mine.statistics.specializations == 3
    assert mine.statistics.fallbacks == 1  # said once, not by each group and thread


@pytest.mark.parametrize("place", ["cuda", "cpu"])
@pytest.mark.parametrize("why", ["too many threads", "refused"])
@pytest.mark.parametrize("stream", [True, False])
def test_cuda_graphs_leave_results_of_runs_without_them_alone(
    fake_cuda: Log, monkeypatch: pytest.MonkeyPatch, why: str, stream: bool, place: str
) -> None:
    """A replay writes to what was free in its session's arena at the capture: other runs have another session."""
    fake_cuda.no_stream = not stream
    with contextlib.nullcontext() if stream else pytest.warns(RuntimeWarning, match="share no stream"):
        mine = graphs()
    mine.run(None, {"x": X})
    captures = mine.statistics.captures
    if why == "refused":
        fake_cuda.uncapturable = dict.fromkeys(("Exp", "Neg", "Abs", "Add", "Relu"), "run: operation not permitted")
    else:
        monkeypatch.setattr(cuda_graphs, "MAX_THREADS", 1)

    def elsewhere(seed: int) -> Any:
        return bound(mine, {"x": value(floats(3, 4, seed=seed))}, {"y": place}).get_outputs()[0]

    found = []
    with concurrent.futures.ThreadPoolExecutor(1) as other, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for seed in range(3):
            found.append(other.submit(elsewhere, seed).result())
            mine.run(None, {"x": X})  # a replay
    for seed, one in enumerate(found):
        assert_allclose(one.numpy(), chain(floats(3, 4, seed=seed)), rtol=1e-6)
    assert mine.statistics.captures == captures
    assert fake_cuda.of("replay")
    assert fake_cuda.overlaps == 0
    assert fake_cuda.pending == 0 or not stream


@pytest.mark.parametrize(
    "what",
    ["allocation", "wait", "settling", "copy", "session", "run", "whole model", "result of others", "value of others"],
)
def test_cuda_graphs_are_captured_while_nothing_else_uses_cuda(
    fake_cuda: Log, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime captures in CUDA's global mode: what other threads allocate or wait for breaks the capture."""
    other = cuda(CHAIN)
    device = fake_cuda.devices[0]
    at_host = value(X)._ortvalue
    resident = device.upload(at_host, "x")

    def whole(model: Any, options: Any, *_: Any, **__: Any) -> Any:
        fake_cuda.touch("session")
        return plain(model, options, providers=[CPU])

    class Elsewhere:
        """A device that is not the host."""

        def device_type(self) -> int:
            return 1

    def placed(array: Any, _: Any) -> Any:
        fake_cuda.touch("copy")
        return value(array)._ortvalue

    class Target:
        """Memory of a device that the session does not use."""

        def update_inplace(self, _: Any) -> None:
            fake_cuda.touch("copy")

    plain = onnxruntime.InferenceSession
    monkeypatch.setattr(output_memory, "tensor_over", placed)
    monkeypatch.setattr(onnxruntime, "InferenceSession", whole)
    monkeypatch.setattr(session_factory._SessionFactory, "_check_whole", lambda *_: None)
    uses: dict[str, Any] = {
        "allocation": lambda: device.allocate([3], 1),
        "wait": device.synchronize,
        "settling": device.settle,
        "copy": lambda: device.download(resident, "x"),
        "session": cuda(CHAIN)._session.context.groups[0].prepare,
        "run": lambda: other.run(None, {"x": X}),
        "result of others": lambda: output_memory.placed(at_host, Elsewhere(), None, "y"),  # type: ignore[arg-type]
        "value of others": lambda: output_memory._fill(Target(), at_host, None, "y"),
        "whole model": lambda: session("main (float[N] x) => (float[N] y) { y = Neg (x) }", providers=["cuda", "cpu"]),
    }
    other.run(None, {"x": X})
    started: list[threading.Thread] = []
    done: list[str] = []

    def meanwhile() -> None:
        if started:
            return
        started.append(threading.Thread(target=lambda: (uses[what](), done.append(what))))
        started[0].start()
        started[0].join(0.2)  # it stands at the gate, if there is one

    mine = graphs()
    fake_cuda.while_capturing = meanwhile
    assert_allclose(mine.run(None, {"x": X})[0], chain(X), rtol=1e-6)
    started[0].join(60)
    assert done == [what]
    assert fake_cuda.broken == []


@pytest.mark.parametrize(
    "reason", ["as all compute graph nodes have not been partitioned", "run: operation not permitted when capturing"]
)
def test_cuda_graphs_that_cannot_be_captured_are_said_and_specialised_without(fake_cuda: Log, reason: str) -> None:
    fake_cuda.uncapturable = {"Exp": reason}
    mine = graphs()
    with pytest.warns(RuntimeWarning, match="group group_1 is not captured as a CUDA graph"):
        mine.run(None, {"x": X})
    assert len(fake_cuda.of("end capture")) == reason.startswith("run")
    check_chain(mine, 3, 3, 3)
    assert mine.statistics.fallbacks == 1
    assert mine.statistics.captures == 2
    assert mine.statistics.specializations == 3


def test_cuda_graphs_of_groups_with_inputs_in_the_hosts_memory_are_refused(fake_cuda: Log) -> None:
    """A replay would go on with the shape that it was captured with."""
    text = f"""{HEADER} main (float[N,4] x, int64[K] shape) => (float[] y) {{
        y = ortopt.group.group_0 (x, shape) }}
    {FUNCTION} group_0 (p, shape) => (r) {{ s = Neg (p) r = Reshape (s, shape) }}
    """
    fake_cuda.pinned = {"shape"}
    mine = graphs(text)
    with pytest.warns(RuntimeWarning, match="\"shape\" is in the host's memory|'shape' is in the host's memory"):
        mine.run(None, {"x": X, "shape": np.array([2, 6])})
    for shape in ([2, 6], [6, 2], [3, 4]):
        found = mine.run(None, {"x": X, "shape": np.array(shape)})[0]
        assert_allclose(found, -X.reshape(shape), rtol=1e-6)
    assert mine.statistics.captures == 0


def test_cuda_graphs_without_a_shared_stream(fake_cuda: Log) -> None:
    """Each session has ONNX Runtime's own stream: every run and every copy waits for its end."""
    fake_cuda.no_stream = True
    with pytest.warns(RuntimeWarning, match="share no stream"):
        mine = graphs()
    check_chain(mine, 3, 4, 3, 4, 3, 4)
    assert mine.statistics.captures == 6
    assert mine.statistics.synchronizations == 0


def test_cuda_graphs_are_not_captured_in_memory_that_others_share(fake_cuda: Log) -> None:
    """A replay writes to what was free at the capture, which would be another session's meanwhile."""
    with pytest.warns(RuntimeWarning, match="share no stream: session.use_env_allocators"):
        mine = graphs(sess_options=with_allocators("1"))
    with pytest.warns(RuntimeWarning, match="is not captured as a CUDA graph: session.use_env_allocators lets other"):
        check_chain(mine, 3, 3, 3)
    assert mine.statistics.captures == 0
    assert not [one for one in fake_cuda.sessions if "enable_cuda_graph" in one.options]


def test_cuda_graphs_by_onnx_runtimes_option_are_refused_in_words(fake_cuda: Log) -> None:
    """Values between groups are where the allocator puts them: a captured graph would go on reading the old places."""
    with pytest.warns(RuntimeWarning, match="enable_cuda_graph.*cuda_graphs=True"):
        mine = cuda(CHAIN, providers=["cpu", ("cuda", {"enable_cuda_graph": "1"})])
    check_chain(mine, 3, 3, 3)
    assert all("enable_cuda_graph" not in one.options for one in fake_cuda.sessions)
    assert mine.statistics.fallbacks == 1


# Fallback, and who watches


def test_a_group_that_cuda_refuses_runs_on_the_cpu_and_is_said(fake_cuda: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = cuda(CHAIN)
    make = type(mine._session.context.maker).make

    def refusing(self: Any, placed: Any, providers: Any, **arguments: Any) -> Any:
        if CUDA in providers and arguments["label"] == "group_1":
            raise RuntimeError("out of memory")
        return make(self, placed, providers, **arguments)

    monkeypatch.setattr(type(mine._session.context.maker), "make", refusing)
    with pytest.warns(RuntimeWarning, match="group group_1 runs on CPUExecutionProvider: out of memory"):
        mine.run(None, {"x": X})
    before = mine.statistics.copies
    assert_allclose(mine.run(None, {"x": X})[0], chain(X), rtol=1e-6)
    assert mine.statistics.copies - before == 4  # x, a down, b up, y
    assert mine.statistics.fallbacks == 1


def test_parallel_plans_put_one_thing_at_a_time_on_the_device(fake_cuda: Log) -> None:
    options = quiet(execution_mode=PARALLEL, inter_op_num_threads=4)
    branches = "\n".join(f"a{i} = ortopt.group.group_0 (x, w) b{i} = my.Twice (a{i})" for i in range(4))
    text = f"""{HEADER} main (float[N,4] x) => (float[N,4] y) <float[4] w = {{1, 2, 3, 4}}> {{
        {branches} y = Sum (b0, b1, b2, b3) }}
    {FUNCTION} group_0 (p, q) => (r) {{ s = Add (p, q) r = Relu (s) }}"""
    mine = cuda(text, sess_options=options, host_ops=[Twice])
    for _ in range(5):
        a = np.maximum(X + np.array([1, 2, 3, 4], np.float32), 0)
        assert_allclose(mine.run(None, {"x": X})[0], 8 * a, rtol=1e-6)
    assert fake_cuda.overlaps == 0
    assert fake_cuda.pending == 0


@pytest.mark.parametrize("takes_values", [True, False])
@pytest.mark.parametrize("dtype", ["float", "bool", "bfloat16", "float8e4m3fn", "int4"])
def test_copies_without_a_stream(
    fake_cuda: Log, monkeypatch: pytest.MonkeyPatch, dtype: str, takes_values: bool
) -> None:
    """To the device, on it and back, with ``update_inplace`` of values (ONNX Runtime 1.26) and of arrays only."""
    takes_values = takes_values and copies_from_values()  # what is not there cannot be used
    monkeypatch.setattr(cuda_device, "copies_from_values", lambda: takes_values)
    fake_cuda.no_stream = True
    found, reason = cuda_device.open_device({}, Counters(), None, watched=False, allocators=None)
    assert reason
    element_type = ir.DataType[dtype.upper()].value
    for shape in ([3, 6], [0, 6]):
        given = empty_tensor(shape, element_type, native_device("cpu"))
        nbytes = size_in_bytes(given)
        content = bytes(i % 2 for i in range(nbytes))
        ctypes.memmove(given.data_ptr(), content, nbytes)
        there = found.upload(given, "x")
        assert found.is_resident(there)
        assert there is not given
        other = found.allocate(shape, element_type)
        found.fill([other], [there])
        back = found.download(other, "y")
        assert not found.is_resident(back)
        assert (back.shape(), back.element_type()) == (shape, element_type)
        assert ctypes.string_at(back.data_ptr(), nbytes) == content


def test_types_that_numpy_lacks_come_down(fake_cuda: Log) -> None:
    import ml_dtypes

    text = f"""{HEADER} main (float[N] x) => (bfloat16[N] y) {{ y = ortopt.group.group_0 (x) }}
    {FUNCTION} group_0 (p) => (r) {{ r = Cast <to = 16> (p) }}"""
    for stream in (True, False):
        fake_cuda.no_stream = not stream
        device = [("cuda", {"device_id": "0" if stream else "1"})]
        with contextlib.nullcontext() if stream else pytest.warns(RuntimeWarning, match="share no stream"):
            mine = cuda(text, specialize_after=99, providers=["cpu", *device])
        found = mine.run(None, {"x": np.arange(4, dtype=np.float32)})[0]
        assert found.dtype == ml_dtypes.bfloat16
        assert found.astype(np.float32).tolist() == [0, 1, 2, 3]


# A provider that is there, and yet does not come up


@pytest.mark.skipif(usable(CUDA)[0], reason="CUDA works here")
@pytest.mark.skipif(
    CUDA not in onnxruntime.get_available_providers(), reason="a build without CUDA warns by itself, with another text"
)
def test_a_provider_that_onnx_runtime_silently_leaves_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_factory, "usable", lambda name: (True, "ok"))
    text = "main (float[N] x) => (float[N] y) { y = Neg (x) }"
    options = quiet()
    with pytest.warns(RuntimeWarning, match="made no CUDAExecutionProvider.*falling back to CPUExecutionProvider"):
        mine = session(text, providers=["cuda", "cpu"], sess_options=options)
    assert mine.statistics.fallbacks == 1
    for named in ({"providers": ["cuda"]}, {"providers": ["cuda", "cpu"], "enable_fallback": 0}):
        with pytest.raises(UsageError, match="made no CUDAExecutionProvider"):
            session(text, sess_options=options, **named)
    with pytest.warns(RuntimeWarning) as said:
        found = cuda(CHAIN, sess_options=options).run(None, {"x": X})[0]
    assert_allclose(found, chain(X), rtol=1e-6)
    messages = [str(one.message) for one in said]
    assert sum("runs on CPUExecutionProvider: ONNX Runtime made no CUDA" in one for one in messages) == 3
    assert any("share no stream: " in one for one in messages)


# The driver, on a library that only notes


class Library:
    """NVIDIA's driver, as far as `Driver` calls it."""

    def __init__(self, failing: str = "", without: str = "") -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        for name in cuda_driver._ARGUMENTS:
            if name != without:
                setattr(self, name, self._function(name, 2 if name == failing else 0))

    def _function(self, name: str, status: int) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            results = {"cuDevicePrimaryCtxRetain": 0xC0, "cuStreamCreate": 0x51, "cuStreamEndCapture": 0x6A}
            for argument in arguments:
                if hasattr(argument, "_obj") and status == 0:
                    argument._obj.value = results.get(name, 1)
            return status

        return call

    def names(self) -> list[str]:
        found = [name for name, _ in self.calls]
        self.calls.clear()
        return found


def test_the_driver_makes_a_stream_in_the_primary_context() -> None:
    library = Library()
    driver = Driver(2, library)
    assert library.names() == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    stream = driver.create_stream()
    assert stream == 0x51
    ((_, (context,)), (_, (_, flags)), _) = library.calls
    assert context.value == 0xC0
    assert flags == 1  # CU_STREAM_NON_BLOCKING: what others do on the default stream breaks no capture
    assert library.names() == ["cuCtxPushCurrent_v2", "cuStreamCreate", "cuCtxPopCurrent_v2"]
    driver.copy([(1, 2, 3), (4, 5, 6)], stream)
    driver.copy_to_host(1, 2, 3, stream)
    driver.copy_to_device([(1, 2, 3)], stream)
    driver.synchronize(stream)
    copies = [arguments for name, arguments in library.calls if name.startswith("cuMemcpy")]
    assert copies == [(1, 2, 3, stream), (4, 5, 6, stream), (1, 2, 3, stream), (1, 2, 3, stream)]
    inside = [name for name in library.names() if not name.startswith("cuCtx")]
    assert inside == [
        "cuMemcpyDtoDAsync_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyHtoDAsync_v2",
        "cuStreamSynchronize",
    ]
    driver.destroy_stream(stream)
    assert library.names()[1] == "cuStreamDestroy_v2"
    del driver
    gc.collect()
    assert library.names() == ["cuDevicePrimaryCtxRelease_v2"]


def test_the_driver_takes_a_stream_out_of_a_capture_that_failed() -> None:
    library = Library()
    driver = Driver(0, library)
    library.calls.clear()
    assert driver.end_capture(0x51)
    assert library.names() == [
        "cuCtxPushCurrent_v2", "cuStreamIsCapturing", "cuStreamEndCapture", "cuGraphDestroy", "cuCtxPopCurrent_v2",
    ]  # fmt: skip


def test_the_driver_gives_the_context_back_where_a_call_fails() -> None:
    library = Library(failing="cuStreamCreate")
    driver = Driver(0, library)
    library.calls.clear()
    with pytest.raises(OSError, match="answers cuStreamCreate with error 2"):
        driver.create_stream()
    assert library.names() == ["cuCtxPushCurrent_v2", "cuStreamCreate", "cuCtxPopCurrent_v2"]
    with pytest.raises(OSError, match="answers cuDeviceGet with error 2"):
        Driver(7, Library(failing="cuDeviceGet"))
    with pytest.raises(OSError, match=r"too old: .*cuStreamIsCapturing"):
        Driver(0, Library(without="cuStreamIsCapturing"))


@pytest.mark.skipif(usable(CUDA)[0], reason="CUDA works here")
def test_the_driver_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError):
        Driver(0)
