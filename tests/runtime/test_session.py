"""`InferenceSession` beside ``onnxruntime.InferenceSession``: the same answers, the same questions, the same errors."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from ortopt import InferenceSession, UsageError, optimize
from ortopt.analysis.providers import CPU, CUDA
from ortopt.runtime.execution.group_runner import GroupRunner
from ortopt.runtime.onnxruntime_internals import native
from ortopt.runtime.values import tensors
from ortopt.runtime.values.tensors import at_address
from ortopt.serialization.save import save, to_bytes
from ortopt.testing import parse
from tests.releases import INSTALLED, since
from tests.runtime.models import FUNCTION, HEADER, PLAIN, TWO_GROUPS, Twice, floats, plain_session, session, two_groups
from tests.runtime.side_by_side import PARALLEL, Pair, alike, bound, called_back, check, quiet, value

DEFAULTED = f"""{HEADER}
main (float[2] x, float[2] d) => (float[2] y) <float[2] d = {{1, 2}}> {{
    a = ortopt.group.group_0 (x, d)
    y = ortopt.group.group_1 (a)
}}
{FUNCTION} group_0 (p, q) => (r) {{ r = Add (p, q) }}
{FUNCTION} group_1 (p) => (r) {{ r = Neg (p) }}
"""


def both(text: str) -> Pair:
    return plain_session(text), session(text)


def test_groups_run_each_in_a_session_of_its_own() -> None:
    mine = session(TWO_GROUPS)
    x = floats(3, 4)
    for got, expected in zip(mine.run(None, {"x": x}), two_groups(x), strict=True):
        assert_allclose(got, expected, rtol=1e-6)
    assert [group.spec.name for group in mine.groups] == ["group_0", "leftover_0", "group_1"]
    assert mine.statistics.compiles == 3
    assert mine.statistics.fallbacks == 0


def test_a_plain_model_is_one_session_of_onnx_runtime() -> None:
    mine = session(PLAIN)
    assert mine.groups == ()
    assert_array_equal(mine.run(None, {"x": np.ones((1, 4), np.float32)})[0], [[2, 3, 4, 5]])


def test_a_model_that_is_one_group_is_one_session_of_onnx_runtime() -> None:
    text = f"""{HEADER} main (float[N] x) => (float[N] y) {{ y = ortopt.group.group_0 (x) }}
    {FUNCTION} group_0 (p) => (r) {{ s = Relu (p) r = Neg (s) }}"""
    mine = session(text)
    assert mine.groups == ()
    assert_array_equal(mine.run(None, {"x": np.array([-1, 2], np.float32)})[0], [0, -2])


@pytest.mark.parametrize("kind", ["path", "str", "bytes", "proto", "ir"])
@pytest.mark.parametrize("text", [PLAIN, TWO_GROUPS], ids=["plain", "grouped"])
def test_every_kind_of_source(tmp_path: Path, kind: str, text: str) -> None:
    model = parse(text)
    path = tmp_path / "model.onnx"
    save(model, path)
    sources: dict[str, Callable[[], Any]] = {
        "path": lambda: path,
        "str": lambda: str(path),
        "bytes": path.read_bytes,
        "proto": lambda: onnx.load(path),
        "ir": lambda: model,
    }
    mine = InferenceSession(sources[kind](), providers=["cpu"])
    x = floats(2, 4)
    assert_allclose(mine.run(["y"], {"x": x})[0], plain_session(text).run(["y"], {"x": x})[0], rtol=1e-6)


OUTPUTS = f"""{HEADER}
main (int8[N] x) => (float16[N] h, bfloat16[N,K] b, string[N] s, bool[1] f, seq(float[]) q, int64[1] n) {{
    n = Shape (x) m = ConstantOfShape <value = float[1] {{1}}> (n) i = ortopt.group.group_0 (x)
    h = Cast <to = 10> (i) e = Unsqueeze (i, n) b = Cast <to = 16> (e) s = Cast <to = 8> (x)
    g = Cast <to = 9> (x) z = Constant <value = int64[1] {{0}}> () f = Gather (g, z) q = SequenceConstruct (m, i)
}}
{FUNCTION} group_0 (p) => (r) {{ r = Cast <to = 1> (p) }}
"""


@pytest.mark.parametrize("text", [PLAIN, TWO_GROUPS, DEFAULTED, OUTPUTS], ids=["plain", "grouped", "defaults", "types"])
@pytest.mark.parametrize("ask", ["get_inputs", "get_outputs", "get_overridable_initializers"])
def test_the_interface_is_onnx_runtimes(text: str, ask: str) -> None:
    alike(both(text), lambda one: [(found.name, found.type, found.shape) for found in getattr(one, ask)()])


def test_a_model_may_give_a_value_twice() -> None:
    text = TWO_GROUPS.replace("=> (float[N,4] y, float[N,4] t)", "=> (float[N,4] y, float[N,4] t, float[N,4] y)")
    pair = both(text)
    assert alike(pair, lambda one: [found.name for found in one.get_outputs()]) == ["y", "t", "y"]
    feed = {"x": floats(3, 4)}
    for asked in (None, ["y"], ["y", "y"], ["t", "y"]):
        alike(pair, lambda one, asked=asked: one.run(asked, feed))
    one, _, other = pair[1].run(None, feed)
    assert not np.shares_memory(one, other)


def test_outputs_of_every_type() -> None:
    alike(both(OUTPUTS), lambda one: one.run(["h", "s", "f", "q", "n"], {"x": np.array([1], np.int8)}))


X = floats(2, 4)
WRONG: dict[str, Any] = {
    "missing": (None, {}),
    "extra": (None, {"x": X, "z": X}),
    "other name": (None, {"z": X}),
    "dtype": (None, {"x": X.astype(np.float64)}),
    "strings": (None, {"x": np.array([["a", "b", "c", "d"]])}),
    "rank": (None, {"x": X[0]}),
    "size": (None, {"x": X[:, :3]}),
    "a scalar": (None, {"x": np.float32(1)}),
    "an output": (["nonsense"], {"x": X}),
    "an output among others": (["y", "nonsense"], {"x": X}),
    "one name": ("y", {"x": X}),
    "text": (None, {"x": "abc"}),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_are_refused_as_onnx_runtime_refuses_them(what: str) -> None:
    pair = both(TWO_GROUPS)
    assert isinstance(alike(pair, lambda one: one.run(*WRONG[what])), tuple)
    assert pair[1].statistics.group_runs == 0


def test_results_share_memory_with_nothing() -> None:
    text = f"""{HEADER} main (float[N] x) => (float[N] x, float[N] y, float[2] c, float[N] z)
    <float[2] c = {{1, 2}}> {{ y = ortopt.group.group_0 (x) z = my.Twice (y) }}
    {FUNCTION} group_0 (p) => (r) {{ r = Identity (p) }}"""
    text = text.replace("=> (float[N] x, ", "=> (").replace("z = my", "v = Identity (x) z = my")
    mine = session(text, host_ops=[Twice])
    x = np.ones(3, np.float32)
    for _ in range(2):
        first, second = mine.run(["y", "c"], {"x": x})[0], mine.run(["c", "c"], {"x": x})
        first[:] = 5
        second[0][:] = 6
        assert second[1].tolist() == [1, 2]
    assert x.tolist() == [1, 1, 1]


def test_results_outlive_the_session() -> None:
    mine = session(TWO_GROUPS)
    found = mine.run(None, {"x": X})
    mine.close()
    del mine
    gc.collect()
    assert_allclose(found[0], two_groups(X)[0], rtol=1e-6)


@pytest.mark.parametrize("feeds", [{}, {"d": np.array([5, 6], np.float32)}], ids=["default", "given"])
def test_inputs_with_defaults(feeds: dict[str, Any]) -> None:
    check(DEFAULTED, {"x": np.ones(2, np.float32), **feeds})


@pytest.mark.parametrize("text", [PLAIN, TWO_GROUPS], ids=["plain", "grouped"])
def test_bound_memory(text: str) -> None:
    theirs, mine = both(text)
    expected = theirs.run(["y"], {"x": X})[0]
    binding = bound(mine, {"x": X}, ["y"])
    assert_allclose(binding.copy_outputs_to_cpu()[0], expected, rtol=1e-6)
    target = np.zeros((2, 4), np.float32)
    binding.clear_binding_outputs()
    binding.bind_output("y", "cpu", 0, np.float32, (2, 4), target.ctypes.data)
    binding.bind_input("x", "cpu", 0, np.float32, (2, 4), X.ctypes.data)
    mine.run_with_iobinding(binding)
    assert_allclose(target, expected, rtol=1e-6)
    written = value(np.zeros((2, 4), np.float32))
    binding.clear_binding_outputs()
    binding.bind_ortvalue_output("y", written)
    binding.bind_ortvalue_input("x", value(X))
    mine.run_with_iobinding(binding)
    assert_allclose(written.numpy(), expected, rtol=1e-6)
    assert len(binding.get_outputs()) == 1


def test_bound_memory_that_does_not_fit_is_refused() -> None:
    mine, other = session(TWO_GROUPS), session(TWO_GROUPS)
    binding = mine.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_ortvalue_output("y", value(np.zeros((3, 4), np.float32)))
    with pytest.raises(RuntimeError, match=r"Current shape:\{3,4\} Requested shape:\{2,4\}: .* output 'y'"):
        mine.run_with_iobinding(binding)
    with pytest.raises(ValueError, match="session that created it"):
        other.run_with_iobinding(binding)
    binding.clear_binding_inputs()
    with pytest.raises(RuntimeError, match="Missing Input: x"):
        mine.run_with_iobinding(binding)
    with pytest.raises(NotImplementedError, match="wrap it into an OrtValue"):
        binding.bind_input("x", "cuda", 0, np.float32, (2, 4), 1)


@since(1, 21, "DLPack")
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_memory_at_an_address(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ascontiguousarray(np.arange(6).astype(dtype)[: int(np.prod(shape))].reshape(shape))
    there = at_address("cpu", 0, ir.DataType.from_numpy(array.dtype), shape, array.ctypes.data)
    found = onnxruntime.OrtValue(there).numpy()
    assert found.dtype == array.dtype
    assert found.shape == shape
    assert (found == array).all()
    assert not array.size or there.data_ptr() == array.ctypes.data
    before = len(tensors._kept)
    del there, found
    gc.collect()
    assert len(tensors._kept) == before - 1


@pytest.mark.skipif(INSTALLED >= (1, 21), reason="this ONNX Runtime has DLPack")
def test_memory_at_an_address_without_dlpack() -> None:
    with pytest.raises(NotImplementedError, match=r"needs ONNX Runtime 1\.21 or newer"):
        at_address("cpu", 0, ir.DataType.FLOAT, (2,), X.ctypes.data)


def test_memory_at_an_address_that_onnx_runtime_cannot_be_told_of() -> None:
    for dtype in (ir.DataType.INT4, ir.DataType.FLOAT8E4M3FN, ir.DataType.STRING, ir.DataType.COMPLEX64):
        with pytest.raises(NotImplementedError, match=dtype.name.lower()):
            at_address("cuda", 0, dtype, (2,), 1)
    with pytest.raises(NotImplementedError, match="on npu"):
        at_address("npu", 0, ir.DataType.FLOAT, (2,), 1)


def test_a_plain_model_is_run_as_onnx_runtime_runs_it() -> None:
    alike(both(PLAIN), lambda one: called_back(one, ["y"], {"x": X}))
    alike(both(PLAIN), lambda one: one.run_with_ort_values(["y"], {"x": value(X)}))


def test_the_callers_options_are_left_as_they_are() -> None:
    options = quiet(intra_op_num_threads=3)
    mine = session(TWO_GROUPS, sess_options=options)
    mine.run(None, {"x": X})
    assert options.intra_op_num_threads == 3
    assert mine.get_session_options() is options
    with pytest.raises(RuntimeError):
        options.get_session_config_entry("session.intra_op.allow_spinning")


def test_threads_are_divided() -> None:
    mine = session(TWO_GROUPS, sess_options=quiet(intra_op_num_threads=4))
    threads = [group.threads or 0 for group in mine.groups]
    assert sum(count - 1 for count in threads) == 3
    assert min(threads) >= 1
    assert session(TWO_GROUPS, run_type="host").groups[0].threads is None


def test_a_plain_session_works_after_ours() -> None:
    session(TWO_GROUPS).run(None, {"x": X})
    assert plain_session(PLAIN).run(None, {"x": X})[0].shape == (2, 4)


@pytest.mark.skipif(INSTALLED >= (1, 23), reason="this ONNX Runtime has a global thread pool")
def test_a_global_pool_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"one thread pool for all sessions needs ONNX Runtime 1\.23, not 1\."):
        session(TWO_GROUPS, thread_pool="global")


@since(1, 23, "a thread pool for all sessions")
def test_the_global_pool_is_set_up_once() -> None:
    code = """
import numpy as np, onnxruntime, pytest
from tests.runtime.models import TWO_GROUPS, session, two_groups
import ortopt
options = onnxruntime.SessionOptions(); options.intra_op_num_threads = 2
x = np.ones((1, 4), np.float32)
mine = session(TWO_GROUPS, sess_options=options, thread_pool="global")
assert np.allclose(mine.run(None, {"x": x})[0], two_groups(x)[0])
options.intra_op_num_threads = 3
with pytest.raises(ortopt.UsageError, match="cannot be resized"):
    session(TWO_GROUPS, sess_options=options, thread_pool="global")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert done.stderr == ""  # ONNX Runtime warns of numbers of threads that it leaves out


def test_groups_that_do_not_depend_on_each_other_run_at_the_same_time() -> None:
    both_at_once = threading.Barrier(2, timeout=30)

    class Meet(Twice):
        def _run(self, x: Any) -> tuple[Any, ...]:
            both_at_once.wait()
            return (x,)

    Meet.__name__ = "Meet"
    text = f"""{HEADER} main (float[N] x) => (float[N] y) {{
        a = ortopt.group.group_0 (x) b = my.Meet (a) n = Neg (x) c = ortopt.group.group_1 (n) d = my.Meet (c)
        y = Add (b, d) }}
    {FUNCTION} group_0 (p) => (r) {{ r = Relu (p) }}
    {FUNCTION} group_1 (p) => (r) {{ r = Relu (p) }}"""
    mine = session(text, sess_options=quiet(execution_mode=PARALLEL, inter_op_num_threads=2), host_ops=[Meet])
    if sum(group.wanted_provider == "host" for group in mine.groups) == 1:
        pytest.skip("both meet in one block of host nodes")
    assert_array_equal(mine.run(None, {"x": np.array([-1, 2], np.float32)})[0], [1, 2])


@pytest.mark.parametrize("text", [PLAIN, TWO_GROUPS], ids=["plain", "grouped"])
def test_a_closed_session_says_so(text: str) -> None:
    with session(text) as mine:
        mine.run(None, {"x": X})
    for call in (lambda: mine.run(None, {"x": X}), mine.io_binding, lambda: mine.run_with_ort_values(None, {})):
        with pytest.raises(UsageError, match="closed"):
            call()
    mine.close()


@pytest.mark.parametrize("text", [PLAIN, TWO_GROUPS], ids=["plain", "grouped"])
def test_a_session_that_nobody_holds_is_collected(text: str) -> None:
    mine = session(text)
    mine.run(None, {"x": X})
    gone = weakref.ref(mine)
    del mine
    gc.collect()
    assert gone() is None


def test_no_file_stays_open(tmp_path: Path) -> None:
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        pytest.skip("no /proc here")
    weights = np.arange(4096, dtype=np.float32)
    model = parse(TWO_GROUPS.replace("[N,4]", "[N,4096]"))
    model.graph.initializers["w"].shape = ir.Shape([4096])
    model.graph.initializers["w"].const_value = ir.Tensor(weights, name="w")
    save(model, tmp_path / "model.onnx", external_data="copy")
    x = floats(1, 4096)

    def run() -> None:
        with InferenceSession(tmp_path / "model.onnx", providers=["cpu"]) as mine:
            assert_allclose(mine.run(["t"], {"x": x})[0], -np.maximum(x + weights, 0), rtol=1e-6)

    run()
    gc.collect()
    before = len(list(folder.iterdir()))
    for _ in range(3):
        run()
    gc.collect()
    assert len(list(folder.iterdir())) <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_is_refused_in_the_child() -> None:
    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from tests.runtime.models import TWO_GROUPS, session
import ortopt
mine = session(TWO_GROUPS)
x = np.ones((1, 4), np.float32)
mine.run(None, {"x": x})
child = os.fork()
if child == 0:
    try:
        mine.run(None, {"x": x})
    except ortopt.UsageError as error:
        os._exit(0 if "forked" in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
mine.run(None, {"x": x})
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], timeout=120)


def test_broken_models_are_refused_as_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="doesn't exist"):
        InferenceSession(tmp_path / "nothing.onnx", providers=["cpu"])
    (tmp_path / "broken.onnx").write_bytes(b"nonsense")
    with pytest.raises(Exception, match=r"(?i)protobuf"):
        InferenceSession(tmp_path / "broken.onnx", providers=["cpu"])
    with pytest.raises(Exception, match="not a registered function/op"):
        session(f"{HEADER} main (float[N] x) => (float[N] y) {{ y = my.Unknown (x) }}")


@pytest.mark.parametrize(
    "options",
    [
        {"run_type": "nonsense"},
        {"thread_pool": "nonsense"},
        {"specialize_after": 0},
        {"cache_entries": 0},
        {"cache_bytes": 0},
        {"host_ops": [int]},
        {"rtol": -1.0},
        {"atol": float("nan")},
        {"providers": ["nonsense"]},
        {"nonsense": 1},
    ],
    ids=str,
)
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        session(PLAIN, **options)


@pytest.mark.parametrize(
    ("providers", "provider_options", "message"),
    [
        (5, None, "should be a sequence"),
        (["cpu"], [], "same length"),
        ([("cpu", {})], [{}], "Only string values"),
        ([("cpu", 1)], None, "either strings or"),
    ],
)
def test_provider_arguments_as_in_onnx_runtime(providers: Any, provider_options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        session(PLAIN, providers=providers, provider_options=provider_options)


@pytest.mark.parametrize("text", [PLAIN, TWO_GROUPS], ids=["one session", "groups"])
def test_what_others_read_of_a_session_though_it_is_private(text: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(parse(text), path)
    options = onnxruntime.SessionOptions()
    options.log_verbosity_level = 7
    theirs = onnxruntime.InferenceSession(path, options)
    for mine in (InferenceSession(path, options), InferenceSession(str(path), options)):
        assert mine._model_path == theirs._model_path == str(path)
        assert isinstance(mine._sess, type(theirs._sess))
        assert mine._sess_options.log_verbosity_level == 7
    assert InferenceSession(path.read_bytes())._model_path is None
    with pytest.raises(AttributeError):
        getattr(mine, "_nonsense")  # noqa: B009


def test_a_session_of_what_holds_a_model() -> None:
    mine = InferenceSession(optimize(parse(PLAIN), verify=False))
    assert_array_equal(mine.run(None, {"x": floats(2, 4)})[0], session(PLAIN).run(None, {"x": floats(2, 4)})[0])


def test_providers_as_text_are_read_as_the_flags_value() -> None:
    for text in ("cpu", "CPU", " cpu,CPUExecutionProvider ,"):
        assert session(PLAIN, providers=text).get_providers() == [CPU]
    with pytest.raises(UsageError, match="no execution provider named 'cpus'; did you mean cpu"):
        session(PLAIN, providers="cpus")
    mine = session(PLAIN)
    mine.set_providers("cpu", [{"arena_extend_strategy": "kSameAsRequested"}])
    assert mine.get_providers() == [CPU]


@pytest.mark.parametrize("run_type", ["ort", "host"])
def test_results_that_are_views_share_memory_with_no_argument_and_no_weight(run_type: str) -> None:
    mine = session(
        f"""{HEADER} main (float[N,4] x) => (float[M] y, float[4] z) <float[2,2] w = {{1, 2, 3, 4}}> {{
            y = ortopt.group.group_0 (x) z = ortopt.group.group_0 (w) }}
        {FUNCTION} group_0 (p) => (r) {{
            s = Constant <value = int64[1] {{-1}}> () r = Reshape (p, s) }}""",
        run_type=run_type,
    )
    x = floats(2, 4)
    y, z = mine.run(None, {"x": x})
    assert not np.shares_memory(x, y)
    z[:] = 0
    assert_array_equal(mine.run(None, {"x": x})[1], [1, 2, 3, 4])


def test_nodes_between_groups_are_planned_in_the_order_of_random_ones() -> None:
    model = parse(
        f"""{HEADER} main (float[N] x) => (float[N] y, float[N] z) {{
        n = Neg (x) a = my.Twice (n) y = ortopt.group.group_0 (a) z = RandomUniformLike (x) }}
        {FUNCTION} group_0 (p) => (r) {{ r = RandomNormalLike (p) }}"""
    )
    mine = session(model, host_ops=[Twice])
    random = [group.spec.name for group in mine.groups if group.spec.random]
    assert random == ["group_0", "leftover_2"]


def test_a_group_prefers_the_provider_that_it_was_made_for() -> None:
    (group, *_) = session(TWO_GROUPS).groups
    context = replace(group._context, providers=(CUDA, CPU), groups=[])
    for provider, wanted in ((CPU, CPU), (CUDA, CUDA), (None, CUDA), ("DmlExecutionProvider", CUDA)):
        assert GroupRunner(replace(group.spec, provider=provider), context).wanted_provider == wanted


def test_several_sessions_do_not_spin() -> None:
    mine = session(TWO_GROUPS)
    mine.run(None, {"x": floats(3, 4)})
    for group in mine.groups:
        (one,) = group.sessions()
        assert one.session_options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


@pytest.mark.parametrize("name", ["accepted", "shape", "zero", ".zero", "flat", "places", "0", "constant"])
@pytest.mark.parametrize("which", ["x", "y", "t", "w"])
def test_no_name_is_reserved(which: str, name: str) -> None:
    """The small models that are asked about inputs and options make room for the names of the caller's model."""
    model = parse(TWO_GROUPS)
    for one in (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()):
        if one.name == which:
            one.name = f"ortopt.{name}"
    options = quiet()
    options.add_free_dimension_override_by_name("N", 2)
    mine = InferenceSession(to_bytes(model), options, providers=["cpu"])
    assert [one.name for one in mine.get_outputs()] == [one.name for one in model.graph.outputs]
    x = mine.get_inputs()[0].name
    assert_allclose(mine.run(None, {x: X}, onnxruntime.RunOptions())[0], two_groups(X)[0], rtol=1e-6)
    with pytest.raises(ValueError, match="Required inputs"):
        mine.run(None, {})


def test_outputs_are_taken_apart_without_onnx_runtimes_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is a C++ exception: 100 microseconds, for each group whose outputs are freed at different times."""
    own = native().OrtValueVector
    ends: list[int] = []

    class Watched(own):  # type: ignore[misc, valid-type]
        def __iter__(self) -> Any:
            yield from (self[i] for i in range(len(self)))
            ends.append(len(self))

    monkeypatch.setattr(native(), "OrtValueVector", Watched)
    group = '<domain: "ortopt.group", opset_import: ["" : 17]>'
    mine = session(f"""{HEADER} main (float[N] x) => (float[N] y, float[N] z) {{
        a, b = ortopt.group.group_0 (x) c, d = ortopt.group.group_0 (a) y = ortopt.group.group_1 (c, b)
        z = ortopt.group.group_1 (d, b) }}
    {group} group_0 (p) => (q, r) {{ q = Neg (p) r = Abs (p) }}
    {group} group_1 (p, s) => (q) {{ t = Add (p, s) q = Relu (t) }}""")
    assert [one.separate for one in mine.groups][:2] == [True, True]
    y, z = mine.run(None, {"x": X[0]})
    assert_allclose(y, np.maximum(X[0] + abs(X[0]), 0), rtol=1e-6)
    assert_allclose(z, 2 * abs(X[0]), rtol=1e-6)
    mine.run(["y"], {"x": X[0]}, onnxruntime.RunOptions())
    assert not ends
