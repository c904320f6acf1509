"""What a plan does with a CUDA device: which copies, on which stream, who waits when. A fake device notes it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
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
from ortopt.runtime.cuda import driver as cuda_driver
from ortopt.runtime.cuda.device import STREAM_KEY
from ortopt.runtime.cuda.driver import Driver
from ortopt.runtime.specialization import cuda_graphs
from ortopt.testing import parse
from tests.runtime.cuda.fake_cuda import Log, fake_cuda
from tests.runtime.models import HEADER, TWO_GROUPS, Twice, floats, session, two_groups
from tests.runtime.planning.test_control_flow import GROUP, IF, LOOP, NESTED, SCAN, plain_session

__all__ = ["fake_cuda"]

X = floats(3, 4)

CHAIN = f"""{HEADER} main (float[N,4] x) => (float[N,4] y) <float[4] w = {{1, 2, 3, 4}}> {{
    a = ortopt.group.group_0 (x, w) b = ortopt.group.group_1 (a) y = ortopt.group.group_2 (b, x) }}
<domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p, q) => (r) {{ s = Add (p, q) r = Relu (s) }}
<domain: "ortopt.group", opset_import: ["" : 17]> group_1 (p) => (r) {{ s = Neg (p) r = Exp (s) }}
<domain: "ortopt.group", opset_import: ["" : 17]> group_2 (p, q) => (r) {{ s = Mul (p, q) r = Abs (s) }}
"""

MIXED = f"""{HEADER} main (float[N,4] x) => (float[N,4] y, float[N,4] b) <float[4] w = {{1, 2, 3, 4}}> {{
    a = ortopt.group.group_0 (x, w) b = my.Twice (a) c = ortopt.group.group_1 (a, b) y = Neg (c) }}
<domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p, q) => (r) {{ s = Add (p, q) r = Relu (s) }}
<domain: "ortopt.group", opset_import: ["" : 17]> group_1 (p, o) => (r) {{ r = Mul (p, o) }}
"""


def chain(x: Any) -> Any:
    return np.abs(np.exp(-np.maximum(x + np.array([1, 2, 3, 4], np.float32), 0)) * x)


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
    assert_allclose(mine.run(None, {"x": X})[0], chain(X), rtol=1e-6)
    assert len({one.options[STREAM_KEY] for one in fake_cuda.sessions}) == 1
    assert len(fake_cuda.sessions) == 3
    fake_cuda.events.clear()
    assert_allclose(mine.run(None, {"x": X})[0], chain(X), rtol=1e-6)
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
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    with pytest.warns(RuntimeWarning, match="use_env_allocators shares memory"):
        mine = cuda(CHAIN, sess_options=options)
    assert mine.statistics.fallbacks == 1
    assert fake_cuda.streams == 0


def test_one_stream_is_not_left_behind_by_what_a_kernel_gives_in_the_hosts_memory(fake_cuda: Log) -> None:
    """A shape that goes up after the run, out of memory that the run gives back: the run waits."""
    text = f"""{HEADER} main (float[N,4] x) => (int64[2] y) {{
        s = ortopt.group.group_0 (x) y = ortopt.group.group_1 (s) }}
    <domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p) => (shape) {{ shape = Shape (p) }}
    <domain: "ortopt.group", opset_import: ["" : 17]> group_1 (p) => (r) {{ r = Neg (p) }}"""
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


def test_copies_are_made_where_the_provider_changes_only_and_counted(fake_cuda: Log) -> None:
    mine = cuda(MIXED, host_ops=[Twice])
    mine.run(None, {"x": X})
    before = mine.statistics
    fake_cuda.events.clear()
    mine.run(None, {"x": X})
    after = mine.statistics
    # x up (by ONNX Runtime), a down once for Twice, b up (by ONNX Runtime), c down for Neg (by ONNX Runtime)
    assert after.copies - before.copies == 4
    assert after.copied_bytes - before.copied_bytes == 4 * X.nbytes
    # the first run waits for nobody, the copy does; the second leaves something to the host, and waits itself
    assert fake_cuda.kinds() == ["run", "download", "wait", "run", "wait"]


def test_copies_of_a_chain_are_the_argument_and_the_result(fake_cuda: Log) -> None:
    mine = cuda(CHAIN)
    for _ in range(3):
        mine.run(None, {"x": X})
    assert mine.statistics.copies == 6
    assert mine.statistics.copied_bytes == 6 * X.nbytes
    assert mine.statistics.synchronizations == 6


def test_copies_of_shapes_are_left_to_onnx_runtime(fake_cuda: Log) -> None:
    """They are read in the host's memory by two groups on CUDA: no copy at all."""
    text = f"""{HEADER} main (float[N,4] x, int64[K] shape) => (float[] y) {{
        a = ortopt.group.group_0 (x, shape) y = ortopt.group.group_1 (a, shape) }}
    <domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p, shape) => (r) {{ r = Reshape (p, shape) }}
    <domain: "ortopt.group", opset_import: ["" : 17]> group_1 (p, shape) => (r) {{ s = Neg (p) r = Reshape (s, shape) }}
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
    <domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p) => (r) {{ r = Shape (p) }}
    <domain: "ortopt.group", opset_import: ["" : 17]> group_1 (p, shape) => (r) {{ s = Neg (p) r = Reshape (s, shape) }}
    """
    fake_cuda.pinned = {"shape"}
    mine = cuda(text)
    assert_allclose(mine.run(None, {"x": X})[0], -X, rtol=1e-6)
    assert mine.statistics.copies == 3  # x, the shape (which this fake kernel leaves on the device), y


def test_an_output_that_nobody_asks_for_stays_where_it_is(fake_cuda: Log) -> None:
    mine = cuda(TWO_GROUPS, providers=["cuda", "cpu"])
    mine.run(None, {"x": X})
    before = mine.statistics.copies
    assert_allclose(mine.run(["t"], {"x": X})[0], two_groups(X)[1], rtol=1e-6)
    assert mine.statistics.copies - before == 2


def test_a_trace_has_the_copies(fake_cuda: Log) -> None:
    mine = cuda(CHAIN, trace=True)
    mine.run(None, {"x": X})
    copies = [event for event in mine.trace()["traceEvents"] if event.get("cat") == "copy"]
    assert [(event["name"], event["args"]["bytes"]) for event in copies] == [
        ("copy for group_0", 48),
        ("output y", 48),
    ]


# IOBinding


def test_iobinding_on_device_memory_copies_nothing(fake_cuda: Log) -> None:
    mine = cuda(CHAIN)
    (device,) = fake_cuda.devices
    x = device.upload(onnxruntime.OrtValue.ortvalue_from_numpy(X)._ortvalue, "x")
    y = device.allocate([3, 4], 1)
    mine.run(None, {"x": X})
    binding = mine.io_binding()
    binding.bind_ortvalue_input("x", onnxruntime.OrtValue(x))
    binding.bind_output("y", "cuda")
    before = mine.statistics.copies
    mine.run_with_iobinding(binding)
    assert mine.statistics.copies == before
    (found,) = binding.get_outputs()
    assert device.is_resident(found._ortvalue)
    assert_allclose(binding.copy_outputs_to_cpu()[0], chain(X), rtol=1e-6)
    assert mine.statistics.copies == before + 1
    before += 1
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue(y))
    fake_cuda.events.clear()
    mine.run_with_iobinding(binding)
    assert fake_cuda.kinds() == ["run", "run", "run", "wait", "on device", "wait"]
    assert mine.statistics.copies == before
    assert_allclose(y.numpy(), chain(X), rtol=1e-6)
    binding.bind_output("y", "cpu")
    mine.run_with_iobinding(binding)
    assert mine.statistics.copies == before + 1
    assert not device.is_resident(binding.get_outputs()[0]._ortvalue)


def test_iobinding_on_device_memory_for_a_group_on_the_cpu(fake_cuda: Log) -> None:
    mine = cuda(TWO_GROUPS, "group_1")
    (device,) = fake_cuda.devices
    x = device.upload(onnxruntime.OrtValue.ortvalue_from_numpy(X)._ortvalue, "x")
    (y, t) = mine.run_with_ort_values(None, {"x": onnxruntime.OrtValue(x)})
    assert not device.is_resident(y._ortvalue)
    assert_allclose(y.numpy(), two_groups(X)[0], rtol=1e-6)
    assert_allclose(t.numpy(), two_groups(X)[1], rtol=1e-6)


# Control flow


@pytest.mark.parametrize(
    ("text", "feeds"),
    [
        (IF, {"x": X, "c": np.array(True)}),
        (IF, {"x": X, "c": np.array(False)}),
        (LOOP, {"x": floats(2, 4), "n": np.array(3), "go": np.array(True)}),
        (LOOP, {"x": floats(2, 4), "n": np.array(0), "go": np.array(True)}),
        (SCAN, {"h": floats(4), "a": floats(5, 4), "b": floats(4, 5, seed=1)}),
        (NESTED, {"x": floats(4), "n": np.array(3)}),
    ],
)
@pytest.mark.parametrize("providers", [["cpu", "cuda"], ["cuda", "cpu"]])
def test_control_flow_around_groups_on_cuda(
    fake_cuda: Log, text: str, feeds: dict[str, Any], providers: list[str]
) -> None:
    mine = cuda(text, providers=providers)
    for _ in range(2):
        for expected, got in zip(plain_session(text).run(None, feeds), mine.run(None, feeds), strict=True):
            assert_allclose(got, expected, rtol=1e-6)
    assert fake_cuda.pending == 0


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


# CUDA graphs


def graphs(text: str = CHAIN, **options: Any) -> Any:
    return cuda(text, specialize_after=1, cuda_graphs=True, **options)


def test_cuda_graphs_have_one_number_for_each_specification(fake_cuda: Log) -> None:
    mine = graphs()
    for rows in (3, 5, 3, 5, 3):
        x = floats(rows, 4, seed=rows)
        assert_allclose(mine.run(None, {"x": x})[0], chain(x), rtol=1e-6)
    captures = fake_cuda.of("capture")
    assert len(captures) == len(set(captures)) == 6  # three groups, two specifications
    assert mine.statistics.captures == 6
    assert mine.statistics.specializations == 6
    assert {one.options["enable_cuda_graph"] for one in fake_cuda.sessions if "enable_cuda_graph" in one.options} == {
        "1"
    }
    assert len({one.options[STREAM_KEY] for one in fake_cuda.sessions}) == 1


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


def test_cuda_graphs_give_results_that_later_calls_leave_alone(fake_cuda: Log) -> None:
    mine = graphs()
    mine.run(None, {"x": X})
    binding = mine.io_binding()
    found = []
    for seed in range(3):
        binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(floats(3, 4, seed=seed)))
        binding.bind_output("y", "cuda")
        mine.run_with_iobinding(binding)
        found.append(binding.get_outputs()[0])
    for seed, value in enumerate(found):
        assert_allclose(value.numpy(), chain(floats(3, 4, seed=seed)), rtol=1e-6)


def test_cuda_graphs_are_evicted_and_captured_again(fake_cuda: Log) -> None:
    mine = graphs(cache_entries=3)
    for rows in (1, 2, 1, 2):
        x = floats(rows, 4, seed=rows)
        assert_allclose(mine.run(None, {"x": x})[0], chain(x), rtol=1e-6)
    assert mine.statistics.evictions == 9
    assert mine.statistics.captures == 12
    alive = [one for one in fake_cuda.sessions if "enable_cuda_graph" in one.options]
    assert len(alive) == 12  # the log holds them; the session does not
    assert len(mine._session.context.cache) == 3


def test_cuda_graphs_of_many_threads_are_captured_alone_and_right(
    fake_cuda: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graphs, "MAX_THREADS", 3)
    mine = graphs()
    wrong: list[int] = []
    together = threading.Barrier(6)

    def call(seed: int) -> None:
        together.wait()
        for i in range(8):
            x = floats(3, 4, seed=seed * 100 + i)
            if not np.allclose(mine.run(None, {"x": x})[0], chain(x), rtol=1e-5):
                wrong.append(seed)
        together.wait()  # what a thread has captured goes with it

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert fake_cuda.overlaps == 0
    assert mine.statistics.captures == 9
    assert mine.statistics.specializations == 3
    before = mine.statistics.captures
    x = floats(3, 4, seed=9)
    assert_allclose(mine.run(None, {"x": x})[0], chain(x), rtol=1e-6)  # the others have ended: this thread may capture
    assert mine.statistics.captures == before + 3


@pytest.mark.parametrize("place", ["cuda", "cpu"])
@pytest.mark.parametrize("why", ["too many threads", "refused"])
@pytest.mark.parametrize("stream", [True, False])
def test_cuda_graphs_leave_results_of_runs_without_them_alone(
    fake_cuda: Log, monkeypatch: pytest.MonkeyPatch, why: str, stream: bool, place: str
) -> None:
    """A replay writes to what was free in the session's arena when it was captured: results of others must not be."""
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
        binding = mine.io_binding()
        binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(floats(3, 4, seed=seed)))
        binding.bind_output("y", place)
        mine.run_with_iobinding(binding)
        return binding.get_outputs()[0]

    found = []
    with concurrent.futures.ThreadPoolExecutor(1) as other, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for seed in range(3):
            found.append(other.submit(elsewhere, seed).result())
            mine.run(None, {"x": X})  # a replay
    for seed, value in enumerate(found):
        assert_allclose(value.numpy(), chain(floats(3, 4, seed=seed)), rtol=1e-6)
    assert mine.statistics.captures == captures
    assert fake_cuda.of("replay")
    assert fake_cuda.overlaps == 0
    assert fake_cuda.pending == 0 or not stream


@pytest.mark.parametrize(
    "reason", ["as all compute graph nodes have not been partitioned", "run: operation not permitted when capturing"]
)
def test_cuda_graphs_that_cannot_be_captured_are_said_and_specialised_without(fake_cuda: Log, reason: str) -> None:
    fake_cuda.uncapturable = {"Exp": reason}
    mine = graphs()
    with pytest.warns(RuntimeWarning, match="group group_1 is not captured as a CUDA graph"):
        mine.run(None, {"x": X})
    assert len(fake_cuda.of("end capture")) == reason.startswith("run")
    for seed in range(3):
        x = floats(3, 4, seed=seed)
        assert_allclose(mine.run(None, {"x": x})[0], chain(x), rtol=1e-6)
    assert mine.statistics.fallbacks == 1
    assert mine.statistics.captures == 2
    assert mine.statistics.specializations == 3


def test_cuda_graphs_of_groups_with_inputs_in_the_hosts_memory_are_refused(fake_cuda: Log) -> None:
    """A replay would go on with the shape that it was captured with."""
    text = f"""{HEADER} main (float[N,4] x, int64[K] shape) => (float[] y) {{
        y = ortopt.group.group_0 (x, shape) }}
    <domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p, shape) => (r) {{ s = Neg (p) r = Reshape (s, shape) }}
    """
    fake_cuda.pinned = {"shape"}
    mine = graphs(text)
    with pytest.warns(RuntimeWarning, match="\"shape\" is in the host's memory|'shape' is in the host's memory"):
        mine.run(None, {"x": X, "shape": np.array([2, 6])})
    for shape in ([2, 6], [6, 2], [3, 4]):
        found = mine.run(None, {"x": X, "shape": np.array(shape)})[0]
        assert_allclose(found, -X.reshape(shape), rtol=1e-6)
    assert mine.statistics.captures == 0


def test_cuda_graphs_of_groups_whose_host_inputs_are_folded_in_have_a_guard(fake_cuda: Log) -> None:
    text = f"""{HEADER} main (float[N,4] x, int64[K] shape) => (float[] y) {{
        y = ortopt.group.group_0 (x, shape) }}
    <domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p, shape) => (r) {{ s = Neg (p) r = Reshape (s, shape) }}
    """
    fake_cuda.pinned = {"shape"}
    mine = cuda(text, specialize_after=2, specialize_constants=True, cuda_graphs=True)
    for shape in ([2, 6], [2, 6], [2, 6], [6, 2], [2, 6]):
        found = mine.run(None, {"x": X, "shape": np.array(shape)})[0]
        assert_allclose(found, -X.reshape(shape), rtol=1e-6)
    assert mine.statistics.captures == 1
    assert mine.statistics.guard_failures == 1
    assert mine.statistics.fallbacks == 0


def test_cuda_graphs_without_a_shared_stream(fake_cuda: Log) -> None:
    """Each session has ONNX Runtime's own stream: every run and every copy waits for its end."""
    fake_cuda.no_stream = True
    with pytest.warns(RuntimeWarning, match="share no stream"):
        mine = graphs()
    for i in range(6):
        x = floats(3 + i % 2, 4, seed=i)
        assert_allclose(mine.run(None, {"x": x})[0], chain(x), rtol=1e-6)
    assert mine.statistics.captures == 6
    assert mine.statistics.synchronizations == 0


def test_cuda_graphs_are_not_captured_in_memory_that_others_share(fake_cuda: Log) -> None:
    """A replay writes to what was free at the capture, which would be another session's meanwhile."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    with pytest.warns(RuntimeWarning, match="share no stream: session.use_env_allocators"):
        mine = graphs(sess_options=options)
    with pytest.warns(RuntimeWarning, match="is not captured as a CUDA graph: session.use_env_allocators lets other"):
        for seed in range(3):
            x = floats(3, 4, seed=seed)
            assert_allclose(mine.run(None, {"x": x})[0], chain(x), rtol=1e-6)
    assert mine.statistics.captures == 0
    assert not [one for one in fake_cuda.sessions if "enable_cuda_graph" in one.options]


def test_cuda_graphs_of_nothing(fake_cuda: Log) -> None:
    mine = graphs()
    empty = floats(0, 4)
    for _ in range(3):
        assert mine.run(None, {"x": empty})[0].shape == (0, 4)
    assert mine.statistics.copied_bytes == 0


def test_cuda_graphs_by_onnx_runtimes_option_are_refused_in_words(fake_cuda: Log) -> None:
    """Values between groups are where the allocator puts them: a captured graph would go on reading the old places."""
    with pytest.warns(RuntimeWarning, match="enable_cuda_graph.*cuda_graphs=True"):
        mine = cuda(CHAIN, providers=["cpu", ("cuda", {"enable_cuda_graph": "1"})])
    for seed in range(3):
        x = floats(3, 4, seed=seed)
        assert_allclose(mine.run(None, {"x": x})[0], chain(x), rtol=1e-6)
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


@pytest.mark.parametrize("run_type", ["debug", "reference"])
def test_run_types_on_cuda(fake_cuda: Log, run_type: str) -> None:
    mine = cuda(MIXED, run_type=run_type, host_ops=[Twice])
    a = np.maximum(X + np.array([1, 2, 3, 4], np.float32), 0)
    y, b = mine.run(None, {"x": X})
    assert_allclose(y, -2 * a * a, rtol=1e-6)
    assert_allclose(b, 2 * a, rtol=1e-6)
    assert (fake_cuda.streams == 0) == (run_type == "debug")


def test_parallel_plans_put_one_thing_at_a_time_on_the_device(fake_cuda: Log) -> None:
    options = onnxruntime.SessionOptions()
    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 4
    branches = "\n".join(f"a{i} = ortopt.group.group_0 (x, w) b{i} = my.Twice (a{i})" for i in range(4))
    text = f"""{HEADER} main (float[N,4] x) => (float[N,4] y) <float[4] w = {{1, 2, 3, 4}}> {{
        {branches} y = Sum (b0, b1, b2, b3) }}
    <domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p, q) => (r) {{ s = Add (p, q) r = Relu (s) }}"""
    mine = cuda(text, sess_options=options, host_ops=[Twice])
    for _ in range(5):
        a = np.maximum(X + np.array([1, 2, 3, 4], np.float32), 0)
        assert_allclose(mine.run(None, {"x": X})[0], 8 * a, rtol=1e-6)
    assert fake_cuda.overlaps == 0
    assert fake_cuda.pending == 0


def test_types_that_numpy_lacks_come_down(fake_cuda: Log) -> None:
    import ml_dtypes

    text = f"""{HEADER} main (float[N] x) => (bfloat16[N] y) {{ y = ortopt.group.group_0 (x) }}
    <domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p) => (r) {{ r = Cast <to = 16> (p) }}"""
    for stream in (True, False):
        fake_cuda.no_stream = not stream
        with contextlib.nullcontext() if stream else pytest.warns(RuntimeWarning, match="share no stream"):
            mine = cuda(text, specialize_after=99)
        found = mine.run(None, {"x": np.arange(4, dtype=np.float32)})[0]
        assert found.dtype == ml_dtypes.bfloat16
        assert found.astype(np.float32).tolist() == [0, 1, 2, 3]


# A provider that is there, and yet does not come up


@pytest.mark.skipif(usable(CUDA)[0], reason="CUDA works here")
def test_a_provider_that_onnx_runtime_silently_leaves_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_factory, "usable", lambda name: (True, "ok"))
    text = "main (float[N] x) => (float[N] y) { y = Neg (x) }"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
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
    assert flags == 0  # CU_STREAM_DEFAULT: in order with the default stream
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
