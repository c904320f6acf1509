"""On a CUDA device: tables B, C and D of the systems that ortopt follows, and what the runtime promises there.

``make gpu`` runs them on a device. Everywhere else the same tests run on a fake one (`tests.runtime.cuda.fake_cuda`),
which computes on the CPU: so their code is exercised, and the plans are, but no kernel, stream or graph of CUDA's is.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose

from benchmarks.cuda import decode_step, mixed
from ortopt import InferenceSession, VerificationError, optimize, zoo
from ortopt.analysis import kernels
from ortopt.analysis.providers import CPU, CUDA, usable
from ortopt.partition.groups import groups_of
from ortopt.partition.partitioning import group
from ortopt.partition.settings import PartitionOptions
from ortopt.runtime.cuda import device as cuda_device
from ortopt.runtime.specialization import cuda_graphs
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from tests.runtime.cuda.fake_cuda import Log, fake_cuda
from tests.runtime.cuda.test_cuda_plans import CHAIN, MIXED, chain, check_chain, cuda, for_cuda, graphs, many
from tests.runtime.models import FUNCTION, HEADER, TWO_GROUPS, Twice, floats, plain_session, session, two_groups
from tests.runtime.planning.test_control_flow import CASES
from tests.runtime.side_by_side import bound, in_threads, quiet, theirs, value

__all__ = ["fake_cuda"]

WORKS, REASON = usable(CUDA)
SECONDS = float(os.environ.get("ORTOPT_TEST_ABUSE_SECONDS", "1"))
TF32_OFF = {"use_tf32": "0"}
NEAR = {"rtol": 1e-4, "atol": 1e-5}

X = floats(3, 4)
W = np.array([1, 2, 3, 4], np.float32)

needs_cuda = pytest.mark.skipif(not WORKS, reason=REASON)


@dataclass
class World:
    """Where a test runs.

    Attributes:
        fake: What a fake device noted; None on a real one.
    """

    fake: Log | None

    @property
    def providers(self) -> list[Any]:
        """CUDA first, float32 in full."""
        return [("cuda", TF32_OFF), "cpu"]

    def put(self, mine: InferenceSession, array: Any) -> Any:
        """An array on the device of a session."""
        if self.fake is None:
            return onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
        value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        return onnxruntime.OrtValue(mine._session.device.upload(value._ortvalue, "x"))  # type: ignore[union-attr]

    def is_there(self, mine: InferenceSession, value: Any) -> bool:
        """Whether a value is on the device."""
        return mine._session.device.is_resident(value._ortvalue)  # type: ignore[union-attr]


# Where there is no device, its half of the tests is not even named: forty lines that say so would hide others.
@pytest.fixture(params=["fake", *([pytest.param("device", marks=pytest.mark.gpu)] if WORKS else [])])
def world(request: pytest.FixtureRequest) -> World:
    return World(None if request.param == "device" else request.getfixturevalue("fake_cuda"))


@pytest.fixture
def torch() -> Any:
    """PyTorch, with CUDA."""
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return found


def made(text: str, world: World, **options: Any) -> Any:
    """A session whose groups are for CUDA and whose other nodes run on the CPU."""
    return cuda(text, providers=["cpu", ("cuda", TF32_OFF)], **options)


# Results for CUDA


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("name", ["bert_small__ts17", "gpt2_past__dyn18raw", "resnet18__ts13nf", "vit_tiny__ts17"])
def test_results_for_cuda_are_verified_on_cuda(name: str) -> None:
    result = optimize(zoo.cached(name), providers=["cuda", "cpu"], inputs=zoo.inputs(name))
    assert result.verified
    assert result.summary.after.nodes < result.summary.before.nodes


def test_residual_connections_are_fused_for_cuda() -> None:
    result = optimize(zoo.cached("bert_small__ts17"), providers=["cuda", "cpu"], verify=False)
    assert result.summary.after.ops["com.microsoft::SkipLayerNormalization"] >= 1


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("name", zoo.names())
def test_every_zoo_model_grouped_for_cuda_gives_its_numbers(name: str) -> None:
    """Against ONNX Runtime's own CUDA provider, which rounds as ours does, and the CPU loosely."""
    feeds = zoo.inputs(name)
    options = quiet()
    path = zoo.cached(name)
    plain = onnxruntime.InferenceSession(path, options, providers=[(CUDA, TF32_OFF), CPU])
    model = load(path)
    group(model, PartitionOptions(providers=("cuda", "cpu")))
    mine = InferenceSession(model, options, providers=[("cuda", TF32_OFF), "cpu"], specialize_after=99)
    for expected, got in zip(plain.run(None, feeds), mine.run(None, feeds), strict=True):
        if isinstance(expected, np.ndarray) and expected.dtype.kind == "f":
            assert_allclose(got, expected, rtol=2e-2, atol=2e-2 * float(np.abs(expected).max(initial=1e-6)))
        elif isinstance(expected, np.ndarray):
            assert np.mean(got != expected) < 0.01


# Table B


def test_b_fusable_is_what_cuda_has_kernels_for(world: World) -> None:
    """Hardmax has none: the group ends before it, and it runs on the CPU."""
    text = "main (float[N,4] x) => (float[N,4] y) { a = Exp (x) h = Hardmax (a) b = Mul (a, h) y = Neg (b) }"
    model = parse(f'<ir_version: 10, opset_import: ["" : 17]> {text}')
    found = group(model, PartitionOptions(providers=("cuda", "cpu"), policy="literal"))
    assert {one.provider for one in found} == {CUDA, CPU}
    mine = InferenceSession(model, providers=world.providers)
    expected = np.exp(X)
    expected = -np.where(expected == expected.max(1, keepdims=True), expected, 0)
    assert_allclose(mine.run(None, {"x": X})[0], expected, **NEAR)
    ran = {one.spec.name: one.provider for one in mine.groups}
    assert {one.name: one.provider for one in groups_of(model)}.items() <= ran.items()


def test_b_outputs_that_are_used_elsewhere_are_outputs_of_the_group(world: World) -> None:
    mine = made(MIXED, world, host_ops=[Twice])
    y, b = mine.run(None, {"x": X})
    a = np.maximum(X + W, 0)
    assert_allclose(b, 2 * a, **NEAR)
    assert_allclose(y, -2 * a * a, **NEAR)


def test_b_constants_are_inside_and_weights_are_the_sessions(world: World) -> None:
    mine = made(TWO_GROUPS, world)
    assert_allclose(mine.run(None, {"x": X})[0], two_groups(X)[0], **NEAR)
    assert [len(one.spec.weights) for one in mine.groups if one.provider == CUDA] == [1, 1]


@pytest.mark.parametrize("first", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CASES)
def test_b_nested_blocks(world: World, name: str, first: str) -> None:
    text, feeds = CASES[name]
    mine = cuda(text, providers=world.providers if first == "cuda" else world.providers[::-1])
    for _ in range(3):
        for expected, got in zip(plain_session(text).run(None, feeds), mine.run(None, feeds), strict=True):
            assert_allclose(got, expected, **NEAR)
    assert world.fake is None or world.fake.pending == 0


# Table C


def test_c_supported_goes_by_the_kernel_tables_of_cuda(world: World) -> None:
    model = parse('<ir_version: 10, opset_import: ["" : 17]> main (float[N] x) => (float[N] y) { y = Neg (x) }')
    (node,) = model.graph
    assert kernels.support(CUDA, node, 17) is kernels.Support.KERNEL
    mine = InferenceSession(model, providers=world.providers, specialize_after=99)
    mine.run(None, {"x": X[0]})
    assert [one.provider for one in mine.groups] == [CUDA]


@pytest.mark.parametrize("run_type", ["ort", "reference", "host", "debug"])
def test_c_run_types(world: World, run_type: str) -> None:
    mine = made(MIXED, world, host_ops=[Twice], run_type=run_type, rtol=1e-3, atol=1e-4)
    a = np.maximum(X + W, 0)
    for _ in range(2):
        y, b = mine.run(None, {"x": X})
        assert_allclose(y, -2 * a * a, **NEAR)
        assert_allclose(b, 2 * a, **NEAR)
    assert any(one.provider == CUDA for one in mine.groups) == (run_type != "host")
    if world.fake is not None:
        assert (world.fake.streams == 0) == (run_type in {"host", "debug"})


def test_c_cache_is_keyed_by_specification_and_compiles_once(world: World) -> None:
    mine = made(CHAIN, world, specialize_after=1)
    check_chain(mine, 3, 5, 3, 5, **NEAR)
    assert mine.statistics.specializations == 6
    assert mine.statistics.fallbacks == 0


def test_c_debug_names_the_group_on_cuda_that_differs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = made(CHAIN, world, run_type="debug", rtol=1e-3, atol=1e-4)
    mine.run(None, {"x": X})
    broken = next(one for one in mine.groups if one.spec.name == "group_1")
    executable = broken._executable
    assert executable is not None
    inner = executable._executable  # type: ignore[attr-defined]

    def wrong(values: list[Any], options: Any) -> Any:
        return [
            mine._session.device.upload(cuda_device.to_ort(floats(3, 4, seed=5)), "wrong")
            for _ in inner(values, options)
        ]

    executable._executable = wrong  # type: ignore[attr-defined]
    with pytest.raises(VerificationError, match="group group_1 on CUDAExecutionProvider, output 'r'"):
        mine.run(None, {"x": X})


def test_c_copies_where_the_provider_changes_only_and_counted(world: World) -> None:
    mine = made(MIXED, world, host_ops=[Twice])
    mine.run(None, {"x": X})
    before = mine.statistics
    if world.fake is not None:
        world.fake.events.clear()
    mine.run(None, {"x": X})
    after = mine.statistics
    # x up (by ONNX Runtime), a down once for Twice, b up (by ONNX Runtime), c down for Neg (by ONNX Runtime)
    assert after.copies - before.copies == 4
    assert after.copied_bytes - before.copied_bytes == 4 * X.nbytes
    if world.fake is not None:
        # the first run waits for nobody, the copy does; the second leaves something to the host, and waits itself
        assert world.fake.kinds() == ["run", "download", "wait", "run", "wait"]
    whole = made(CHAIN, world)
    for _ in range(3):
        whole.run(None, {"x": X})
    assert whole.statistics.copies == 6  # x up and y down
    assert whole.statistics.copied_bytes == 6 * X.nbytes
    assert world.fake is None or whole.statistics.synchronizations == 6


def test_c_no_copies_from_and_to_memory_of_the_device(world: World) -> None:
    mine = made(CHAIN, world)
    mine.run(None, {"x": X})
    before = mine.statistics.copies
    x = world.put(mine, X)
    started = mine.statistics.copies
    binding = bound(mine, {"x": x}, {"y": "cuda"})
    (y,) = binding.get_outputs()
    assert world.is_there(mine, y)
    assert mine.statistics.copies == started >= before
    assert_allclose(binding.copy_outputs_to_cpu()[0], chain(X), **NEAR)
    assert mine.statistics.copies == started + 1
    target = world.put(mine, np.zeros_like(X))
    started = mine.statistics.copies
    binding.bind_ortvalue_output("y", target)
    if world.fake is not None:
        world.fake.events.clear()
    mine.run_with_iobinding(binding)
    if world.fake is not None:
        assert world.fake.kinds() == [
            "wait for default", "run", "run", "run", "wait", "wait for default", "on device", "wait",
        ]  # fmt: skip
    assert mine.statistics.copies == started
    assert_allclose(target.numpy(), chain(X), **NEAR)
    binding.bind_output("y", "cpu")
    started = mine.statistics.copies
    mine.run_with_iobinding(binding)
    assert mine.statistics.copies == started + 1
    assert not world.is_there(mine, binding.get_outputs()[0])


def test_c_values_of_the_device_for_groups_on_the_cpu(world: World) -> None:
    mine = session(for_cuda(TWO_GROUPS, "group_1"), providers=["cpu", ("cuda", TF32_OFF)])
    y, t = mine.run_with_ort_values(None, {"x": world.put(mine, X)})
    assert not world.is_there(mine, y)
    assert_allclose(y.numpy(), two_groups(X)[0], **NEAR)
    assert_allclose(t.numpy(), two_groups(X)[1], **NEAR)


def test_c_memory_at_an_address(world: World) -> None:
    """As ONNX Runtime's documentation binds tensors of torch: by their addresses."""
    mine = made(CHAIN, world)
    mine.run(None, {"x": X})
    x, y = world.put(mine, X), world.put(mine, np.zeros_like(X))
    kind = "cpu" if world.fake is not None else "cuda"
    binding = mine.io_binding()
    binding.bind_input("x", kind, 0, np.float32, X.shape, x.data_ptr())
    binding.bind_output("y", kind, 0, np.float32, X.shape, y.data_ptr())
    before = mine.statistics.copies
    mine.run_with_iobinding(binding)
    assert_allclose(y.numpy(), chain(X), **NEAR)
    if world.fake is None:
        assert mine.statistics.copies == before


@pytest.mark.gpu
@needs_cuda
def test_c_tensors_of_torch_without_a_copy(torch: Any) -> None:
    mine = made(CHAIN, World(None))
    x = torch.from_numpy(X).cuda()
    assert_allclose(mine.run(None, {"x": x})[0], chain(X), **NEAR)


def test_c_dumps(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GRAPH", "GROUPS", "INPUTS_OUTPUTS"):
        monkeypatch.setenv(f"ORTOPT_DUMP_{name}", "1")
    made(CHAIN, world, dump_folder=tmp_path).run(None, {"x": X})
    with np.load(next(tmp_path.glob("group_2-*.npz"))) as stored:
        alone = onnxruntime.InferenceSession(tmp_path / "group_2.onnx", providers=[CPU])
        feeds = {name.removeprefix("input."): stored[name] for name in stored if name.startswith("input.")}
        assert_allclose(alone.run(None, feeds)[0], stored["output.r"], **NEAR)


# Table D


def test_d_splits_and_siblings_of_attention_run_in_one_group(world: World) -> None:
    text = """main (float[B,4,8] x) => (float[B,4,8] y) <float[8,24] w = {0.01}, int64[3] s = {8, 8, 8}> {
        p = MatMul (x, w) q, k, v = Split <axis = -1> (p, s) t = Transpose <perm = [0, 2, 1]> (k)
        a = MatMul (q, t) b = Softmax <axis = -1> (a) y = MatMul (b, v) }"""
    weight = floats(8, 24, seed=3)
    model = parse(f'<ir_version: 10, opset_import: ["" : 17]> {text.replace("{0.01}", _spelled(weight))}')
    expected = theirs(model).run(None, {"x": floats(2, 4, 8)})[0]
    found = group(model, PartitionOptions(providers=("cuda", "cpu")))
    assert [one.provider for one in found] == [CUDA]
    mine = InferenceSession(model, providers=world.providers, specialize_after=1, cuda_graphs=True)
    for _ in range(3):
        assert_allclose(mine.run(None, {"x": floats(2, 4, 8)})[0], expected, **NEAR)
    assert mine.statistics.captures == 1


def test_d_shapes_of_a_groups_output_need_no_copy(world: World) -> None:
    text = """main (float[N,4] x) => (float[N,4] y, int64[2] s) { a = Exp (x) b = Abs (a) s = Shape (b) y = Neg (b) }"""
    model = parse(f'<ir_version: 10, opset_import: ["" : 17]> {text}')
    group(model, PartitionOptions(providers=("cuda", "cpu")))
    mine = InferenceSession(model, providers=world.providers, specialize_after=99)
    for rows in (3, 0, 7):
        y, s = mine.run(None, {"x": floats(rows, 4)})
        assert s.tolist() == [rows, 4]
        assert_allclose(y, -np.exp(floats(rows, 4)), **NEAR)


def test_d_views_between_groups_on_cuda_stay_there(world: World) -> None:
    text = f"""{HEADER} main (float[N,4] x) => (float[K] y) <int64[1] flat = {{-1}}> {{
        a = ortopt.group.group_0 (x) b = Reshape (a, flat) y = ortopt.group.group_1 (b) }}
    {FUNCTION} group_0 (p) => (r) {{ r = Exp (p) }}
    {FUNCTION} group_1 (p) => (r) {{ r = Neg (p) }}"""
    mine = session(for_cuda(text), providers=world.providers)
    for _ in range(2):
        assert_allclose(mine.run(None, {"x": X})[0], -np.exp(X).reshape(-1), **NEAR)
    assert mine.statistics.copies == 4  # x and y, twice


def test_d_guards_of_values_that_were_constants_in_the_profile(world: World) -> None:
    text = f"""{HEADER} main (float[N,4] x, int64[K] shape) => (float[] y) {{
        y = ortopt.group.group_0 (x, shape) }}
    {FUNCTION} group_0 (p, shape) => (r) {{ s = Neg (p) r = Reshape (s, shape) }}
    """
    if world.fake is not None:
        world.fake.pinned = {"shape"}
    mine = made(text, world, specialize_after=2, specialize_constants=True, cuda_graphs=True)
    for shape in ([2, 6], [2, 6], [2, 6], [6, 2], [2, 6]):
        assert_allclose(mine.run(None, {"x": X, "shape": np.array(shape)})[0], -X.reshape(shape), **NEAR)
    assert mine.statistics.captures == 1
    assert mine.statistics.guard_failures == 1
    assert mine.statistics.fallbacks == 0


def test_d_no_specialisation_without_a_profile(world: World) -> None:
    mine = made(CHAIN, world, specialize_after=3, cuda_graphs=True)
    for _ in range(2):
        mine.run(None, {"x": X})
    assert mine.statistics.specializations == mine.statistics.captures == 0
    mine.run(None, {"x": X})
    assert mine.statistics.captures == 3


def test_d_a_trace_has_compiles_runs_and_copies(world: World) -> None:
    mine = made(CHAIN, world, trace=True)
    mine.run(None, {"x": X})
    events = mine.trace()["traceEvents"]
    assert {"compile", "run", "copy", "call"} <= {event.get("cat") for event in events}
    copies = [(event["name"], event["args"]["bytes"]) for event in events if event.get("cat") == "copy"]
    assert copies == [("copy for group_0", 48), ("output y", 48)]


# CUDA graphs


def test_graphs_one_for_each_specification_with_right_results(world: World) -> None:
    mine = graphs(providers=["cpu", ("cuda", TF32_OFF)])
    check_chain(mine, *(3 + i % 3 for i in range(12)), **NEAR)
    assert mine.statistics.captures == mine.statistics.specializations == 9  # three groups, three sizes
    assert mine.statistics.fallbacks == 0
    if world.fake is not None:
        captures = world.fake.of("capture")
        assert len(captures) == len(set(captures)) == 9
        asked = {one.options["enable_cuda_graph"] for one in world.fake.sessions if "enable_cuda_graph" in one.options}
        assert asked == {"1"}
        assert len({one.options[cuda_device.STREAM_KEY] for one in world.fake.sessions}) == 1


def test_graphs_results_are_left_alone_by_later_calls(world: World) -> None:
    mine = graphs(providers=["cpu", ("cuda", TF32_OFF)])
    given = [{"x": value(floats(3, 4, seed=seed))} for seed in range(4)]
    found = [bound(mine, feed, {"y": "cuda"}).get_outputs()[0] for feed in given]
    for seed, one in enumerate(found):
        assert_allclose(one.numpy(), chain(floats(3, 4, seed=seed)), **NEAR)


def test_graphs_are_evicted_and_captured_again(world: World) -> None:
    mine = graphs(cache_entries=3, providers=["cpu", ("cuda", TF32_OFF)])
    check_chain(mine, 1, 2, 1, 1, 1, 1, **NEAR)  # what was dropped is made again where it is seen four times
    assert mine.statistics.evictions == 6
    assert mine.statistics.captures == 9
    assert len(mine._session.context.cache) == 3


def test_graphs_of_groups_that_cannot_be_captured_run_without(world: World) -> None:
    """NonZero asks the device how many there are: that cannot be captured."""
    text = f"""{HEADER} main (float[N,4] x) => (int64[2,K] y) {{ y = ortopt.group.group_0 (x) }}
    {FUNCTION} group_0 (p) => (r) {{ s = Relu (p) r = NonZero (s) }}"""
    if world.fake is not None:
        world.fake.uncapturable = {"NonZero": "run: operation not permitted when stream is capturing"}
    mine = made(text, world, specialize_after=1, cuda_graphs=True)
    with pytest.warns(RuntimeWarning, match="group group_0 is not captured as a CUDA graph"):
        mine.run(None, {"x": X})
    for seed in range(3):
        x = floats(3, 4, seed=seed)
        assert mine.run(None, {"x": x})[0].tolist() == np.array(np.nonzero(np.maximum(x, 0))).tolist()
    assert mine.statistics.captures == 0
    other = graphs(providers=["cpu", ("cuda", TF32_OFF)])  # the device is as good as before
    assert_allclose(other.run(None, {"x": X})[0], chain(X), **NEAR)
    assert other.statistics.captures == 3


def test_graphs_of_a_transformer_give_what_plain_onnx_runtime_gives(world: World) -> None:
    model, feeds = decode_step(layers=2, width=64, heads=4, length=32)
    providers = [CPU] if world.fake is not None else [(CUDA, TF32_OFF), CPU]
    plain = onnxruntime.InferenceSession(model.SerializeToString(), providers=providers)
    mine = InferenceSession(model, providers=world.providers, specialize_after=1, cuda_graphs=True)
    for i in range(3):
        feeds["token"] = np.array([[i]])
        for expected, got in zip(plain.run(None, feeds), mine.run(None, feeds), strict=True):
            assert_allclose(got, expected, rtol=1e-3, atol=1e-4)
    assert mine.statistics.captures == len(mine.groups) == 1
    assert mine.statistics.fallbacks == 0


def test_a_mixed_model_gives_what_plain_onnx_runtime_gives(world: World) -> None:
    model, feeds = mixed(blocks=3, width=32)
    providers = [CPU] if world.fake is not None else [(CUDA, TF32_OFF), CPU]
    expected = onnxruntime.InferenceSession(model.SerializeToString(), providers=providers).run(None, feeds)[0]
    for options in ({"specialize_after": 99}, {"specialize_after": 1, "cuda_graphs": True}):
        mine = InferenceSession(model, providers=world.providers, **options)
        for _ in range(3):
            assert_allclose(mine.run(None, feeds)[0], expected, rtol=1e-3, atol=1e-4)
        assert [one.provider for one in mine.groups] == [CUDA, CPU, CUDA, CPU, CUDA]
        assert mine.statistics.fallbacks == 0


# One stream


def test_stream_two_waits_a_call_where_all_is_on_the_device(world: World) -> None:
    mine = made(CHAIN, world)
    mine.run(None, {"x": X})
    binding = bound(mine, {"x": world.put(mine, X)}, {"y": "cuda"})
    before = mine.statistics.synchronizations
    mine.run_with_iobinding(binding)
    assert mine.statistics.synchronizations - before == 2  # for what is given, and at the end
    assert mine.statistics.fallbacks == 0


def test_stream_of_the_callers(world: World) -> None:
    driver: Any = cuda_device.Driver(0)
    stream = driver.create_stream()
    options = {**TF32_OFF, "user_compute_stream": str(stream)}
    mine = cuda(MIXED, providers=["cpu", ("cuda", options)], host_ops=[Twice], specialize_after=2, cuda_graphs=True)
    a = np.maximum(X + W, 0)
    for _ in range(4):
        assert_allclose(mine.run(None, {"x": X})[0], -2 * a * a, **NEAR)
    assert mine.statistics.captures == 2
    mine.close()
    driver.destroy_stream(stream)


def test_stream_keeps_large_results_in_order(world: World) -> None:
    """Long work on the device, then the host reads: without the wait it would read too early."""
    text = f"""{HEADER} main (float[N,N] x) => (float[N,N] y) {{
        a = ortopt.group.group_0 (x) b = my.Twice (a) c = ortopt.group.group_1 (b, a) y = my.Twice (c) }}
    {FUNCTION} group_0 (p) => (r) {{
        a = MatMul (p, p) b = MatMul (a, p) r = MatMul (b, p) }}
    {FUNCTION} group_1 (p, q) => (r) {{ r = Add (p, q) }}"""
    size = 64 if world.fake is not None else 2048
    mine = made(text, world, host_ops=[Twice])
    for seed in range(4):
        x = np.eye(size, dtype=np.float32) * (1 + seed)
        assert_allclose(mine.run(None, {"x": x})[0], 6 * x**4, **NEAR)


# Abuse


# Three groups by five sizes for twelve entries; and more threads than may capture. Each is said once.
@pytest.mark.filterwarnings(
    "ignore:not all groups are specialised. the cache is full of versions in use:RuntimeWarning"
)
@pytest.mark.filterwarnings("ignore:group .* run without a CUDA graph in further threads:RuntimeWarning")
def test_many_threads_with_changing_shapes(world: World) -> None:
    mine = graphs(providers=["cpu", ("cuda", TF32_OFF)], cache_entries=12)
    end = time.monotonic() + SECONDS
    wrong: list[str] = []

    def call(seed: int) -> None:
        i = 0
        while time.monotonic() < end and not wrong:
            x = floats(1 + (seed + i) % 5, 4, seed=seed * 1000 + i)
            i += 1
            try:
                if not np.allclose(mine.run(None, {"x": x})[0], chain(x), **NEAR):
                    wrong.append(f"seed {seed}, call {i}")
            except Exception as error:
                wrong.append(repr(error))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert mine.statistics.fallbacks <= 2
    assert len(mine._session.context.cache) <= 12


def test_closing_gives_the_device_back(world: World) -> None:
    mine = graphs(providers=["cpu", ("cuda", TF32_OFF)])
    mine.run(None, {"x": X})
    device = weakref.ref(mine._session.device)
    sessions = [weakref.ref(one) for found in mine.groups for one in found.sessions()]
    if world.fake is not None:
        world.fake.sessions.clear()
        world.fake.devices.clear()
    mine.close()
    del mine
    gc.collect()
    assert device() is None
    assert all(one() is None for one in sessions)


def test_empty_tensors_and_nan(world: World) -> None:
    mine = graphs(providers=["cpu", ("cuda", TF32_OFF)])
    for _ in range(3):
        assert mine.run(None, {"x": floats(0, 4)})[0].shape == (0, 4)
    assert world.fake is None or mine.statistics.copied_bytes == 0
    for _ in range(3):
        x = X.copy()
        x[1, 2] = np.nan
        assert np.isnan(mine.run(None, {"x": x})[0]).sum() == 1


# What groups share, and what is captured while others run


def test_two_models_on_one_stream_and_one_arena_give_their_own_numbers(world: World) -> None:
    """Each takes the memory that the other has just given back."""
    models = [made(CHAIN, world), made(TWO_GROUPS, world)]
    expected = [lambda x: [chain(x)], lambda x: list(two_groups(x))]

    def call(which: int) -> bool:
        right = True
        for seed in range(20):
            x = floats(3 + seed % 3, 4, seed=seed)
            for got, wanted in zip(models[which].run(None, {"x": x}), expected[which](x), strict=True):
                right &= bool(np.allclose(got, wanted, **NEAR))
        return right

    assert all(in_threads(4, lambda i: call(i % 2)))
    streams = {model._session.device.stream for model in models}
    assert len(streams) == 1
    assert None not in streams


def test_graphs_of_threads_that_have_ended_are_bounded(world: World) -> None:
    """ONNX Runtime keeps handles, and graphs, of each thread that ran a session with graphs, also when it has ended."""
    mine = made(CHAIN, world, specialize_after=1, cuda_graphs=True)
    check_chain(mine, 3, **NEAR)
    with pytest.warns(RuntimeWarning, match=r"run without a CUDA graph in further threads.* keeps what a thread has"):
        for _ in range(3 * cuda_graphs.MAX_THREADS):
            in_threads(1, lambda _: check_chain(mine, 3, **NEAR))
    assert mine.statistics.captures == 3 * cuda_graphs.MAX_THREADS
    if world.fake is None:
        return
    with_graphs, others = [], []
    for one in world.fake.sessions:
        (with_graphs if "enable_cuda_graph" in one.options else others).append(one.contexts.count)
    assert with_graphs == [cuda_graphs.MAX_THREADS] * 3
    assert max(others) <= 2  # of the thread that made it, and one that goes round
    world.fake.events.clear()
    check_chain(mine, 3)  # who has captured goes on
    assert world.fake.kinds().count("replay") == 3


def test_graphs_are_captured_while_other_models_are_made_and_run(world: World) -> None:
    """In the global mode what others allocate, or wait for, would break the captures: each would be counted."""
    other = made(CHAIN, world)
    captured = [made(CHAIN, world, specialize_after=1, cuda_graphs=True) for _ in range(3)]

    def call(which: int) -> bool:
        if which < len(captured):
            found = [captured[which].run(None, {"x": floats(rows, 4)})[0] for rows in range(1, 5)]
        elif which == len(captured):
            found = [made(CHAIN, world).run(None, {"x": floats(rows, 4)})[0] for rows in range(1, 5)]
        else:
            found = [other.run(None, {"x": floats(rows, 4)})[0] for rows in range(1, 5)]
        return all(np.allclose(got, chain(floats(rows, 4)), **NEAR) for rows, got in enumerate(found, 1))

    assert all(in_threads(6, call))
    for mine in captured:
        assert (mine.statistics.captures, mine.statistics.fallbacks) == (12, 0)


def test_more_groups_than_cuda_takes_are_right_on_both(world: World) -> None:
    with pytest.warns(RuntimeWarning, match="40 groups are for CUDA"):
        mine = made(many(40), world)
    for _ in range(2):
        assert_allclose(mine.run(None, {"a0": X})[0], X, **NEAR)
    assert sum(group.provider == CUDA for group in mine._session.context.groups) == 32


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("op", ["Shape", "Size"])
def test_outputs_in_the_hosts_memory_are_where_the_table_says(op: str) -> None:
    from ortopt.runtime.onnxruntime_internals import output_memories

    rank = "[2]" if op == "Shape" else ""
    model = parse(f"main (float[N,4] x) => (int64{rank} y, float[N,4] z) {{ y = {op} (x) z = Neg (x) }}")
    options = quiet(graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL)
    plain = onnxruntime.InferenceSession(to_bytes(model), options, providers=[CUDA, CPU])
    memories = output_memories(plain._sess)
    assert memories is not None
    assert [name.lower() in {"cpu", "cudapinned"} for name in memories] == [True, False]


@pytest.mark.gpu
@needs_cuda
def test_what_torch_still_computes_on_the_default_stream_is_waited_for(torch: Any) -> None:
    mine = made(CHAIN, World(None))
    large = torch.ones(4096, 4096, device="cuda")
    for i in range(5):
        for _ in range(20):
            large = large @ large / 4096
        x = large[:3, :4].contiguous() * i
        assert_allclose(mine.run(None, {"x": x})[0], chain(np.full((3, 4), i, np.float32)), **NEAR)


@pytest.mark.gpu
@needs_cuda
def test_cuda_needs_only_what_its_file_names() -> None:
    from ortopt.analysis import providers

    needed = providers._needed_by_cuda(Path(onnxruntime.__file__).parent / "capi")
    assert needed
    assert all(providers._loadable(name) for name in needed)


# The tables of kernels


@pytest.mark.gpu
@needs_cuda
def test_the_tables_name_what_this_onnx_runtime_has() -> None:
    """Ours are of the release that they say; a newer one drops little."""
    from tools.refresh_kernels import live_kernels

    live = {(one.domain, one.op) for one in live_kernels() if one.provider == CUDA}
    table = {key for key in kernels._kernels(CUDA).rules if kernels._kernels(CUDA).rules[key]}
    assert len(live) > 200
    assert len(table - live) <= 0.02 * len(table), sorted(table - live)


def _spelled(array: Any) -> str:
    return "{" + ", ".join(f"{one:.6f}" for one in array.reshape(-1)) + "}"
