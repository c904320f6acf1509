"""Table C: what ONNX Runtime's lazy-tensor accelerator does, and what it means here. A test's name names its row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx.reference.op_run import OpRun

from ortopt import InferenceSession, UsageError, VerificationError
from ortopt.analysis.providers import CPU, CUDA, usable
from ortopt.runtime.debugging import difference
from ortopt.runtime.execution.group_runner import GroupRunner
from ortopt.runtime.run_settings import RunType, read_settings
from ortopt.runtime.values.tensors import to_ort
from ortopt.testing import parse
from tests.releases import INSTALLED, since
from tests.runtime.models import FUNCTION, HEADER, TWO_GROUPS, Twice, floats, session, two_groups
from tests.runtime.side_by_side import bound, check, value

X = floats(3, 4)
CUSTOM = f"""{HEADER} main (float[N,4] x) => (float[N,4] y) <float[4] w = {{1, 2, 3, 4}}> {{
    a = Add (x, w) b = Relu (a) c = my.Twice (b) d = Neg (c) y = Sub (d, w) }}"""
WORKS, _ = usable(CUDA)


# Supported(node): per provider, from the kernel registry


def test_supported_nodes_run_on_their_provider_and_the_others_on_the_host() -> None:
    mine = check(CUSTOM, {"x": X}, host_ops=[Twice])
    assert sorted(str(group.provider) for group in mine.groups) == [CPU, CPU, "host"]
    assert mine.statistics.fallbacks == 0


def test_supported_goes_by_types_too() -> None:
    text = "main (int16[N] x) => (int16[N] y) { s = Constant <value_float = 1.0> () y = Relu (x) }"
    mine = session(text, host_ops=[Twice])
    assert [group.wanted_provider for group in mine.groups] == ["host"]  # ONNX Runtime has no Relu of int16


def test_supported_by_an_op_of_the_callers_wins() -> None:
    class Relu(Twice):
        op_domain = ""

        def _run(self, x: Any) -> tuple[Any, ...]:
            return (x + 1,)

    mine = session("main (float[N] x) => (float[N] y) { y = Relu (x) }", host_ops=[Relu])
    assert_allclose(mine.run(None, {"x": np.array([-3, 1], np.float32)})[0], [-2, 2])


# Run: ort / reference / host / debug


@pytest.mark.parametrize("run_type", ["ort", "reference", "host", "debug"])
@pytest.mark.parametrize("text", [TWO_GROUPS, "main (float[N,4] x) => (float[N,4] y) { a = Relu (x) y = Neg (a) }"])
def test_run_types(run_type: str, text: str) -> None:
    mine = check(text, {"x": X}, run_type=run_type)
    if run_type == "host":
        assert {group.provider for group in mine.groups} == {"host"}


@pytest.mark.parametrize(("run_type", "optimizes"), [("ort", True), ("reference", False)])
def test_run_type_reference_is_without_optimizations(run_type: str, optimizes: bool) -> None:
    levels = onnxruntime.GraphOptimizationLevel
    mine = session(TWO_GROUPS, run_type=run_type)
    mine.run(None, {"x": X})
    found = {one.session_options.graph_optimization_level for group in mine.groups for one in group.sessions()}
    assert found == {levels.ORT_ENABLE_ALL if optimizes else levels.ORT_DISABLE_ALL}


def test_run_type_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTOPT_RUN_TYPE", "host")
    mine = session(TWO_GROUPS)
    mine.run(None, {"x": X})
    assert {group.provider for group in mine.groups} == {"host"}
    ours = session(TWO_GROUPS, run_type="ort")
    ours.run(None, {"x": X})
    assert {group.provider for group in ours.groups} == {CPU}


def test_run_type_unknown_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="run_type must be one of ort, reference, host, debug, not 'fast'"):
        session(TWO_GROUPS, run_type="fast")
    monkeypatch.setenv("ORTOPT_RUN_TYPE", "fast")
    with pytest.raises(UsageError, match="the environment variable ORTOPT_RUN_TYPE must be one of"):
        session(TWO_GROUPS)


# OrtRun: a cache keyed by argument specification


def test_ort_run_compiles_on_a_miss_and_finds_it_again() -> None:
    mine = session(TWO_GROUPS, specialize_after=1)
    for _ in range(3):
        mine.run(None, {"x": X})
    first = mine.statistics
    assert first.specializations == 3
    mine.run(None, {"x": floats(5, 4)})
    assert mine.statistics.specializations == 6
    for rows in (3, 5, 3):
        got = mine.run(None, {"x": floats(rows, 4)})
        assert_allclose(got[0], two_groups(floats(rows, 4))[0], rtol=1e-6)
    assert mine.statistics.specializations == 6


def test_ort_run_looks_up_the_dtype_where_the_file_does_not_tell_it() -> None:
    text = f"""{HEADER} main (float[N] x, double[N] d) => (float[N] y, double[N] z) {{
        a = my.Twice (x) b = ortopt.group.group_0 (a) c = my.Twice (d) y = Neg (b) z = ortopt.group.group_1 (c) }}
    {FUNCTION} group_0 (p) => (r) {{ r = Abs (p) }}
    {FUNCTION} group_1 (p) => (r) {{ r = Abs (p) }}"""
    check(text, {"x": floats(4), "d": floats(4).astype(np.float64)}, host_ops=[Twice])


# PytorchRun: the fallback executor


def test_fallback_of_a_group_that_does_not_compile_is_the_host_and_is_said() -> None:
    text = f"""{HEADER} main (int8[N] x) => (int8[N] y) {{ a = ortopt.group.group_0 (x) y = Abs (a) }}
    {FUNCTION} group_0 (p) => (r) {{ r = Erf (p) }}"""
    mine = session(text)
    with pytest.warns(RuntimeWarning, match="group group_0 runs on the host: .*Erf"):
        got = mine.run(None, {"x": np.zeros(2, np.int8)})[0]
    assert got.tolist() == [0, 0]
    assert mine.statistics.fallbacks == 1
    assert mine.run(None, {"x": np.zeros(2, np.int8)})[0].tolist() == [0, 0]
    assert mine.statistics.fallbacks == 1


def test_fallback_of_a_group_that_nobody_runs_is_onnx_runtimes_error() -> None:
    text = f"""{HEADER} main (float[N] x) => (float[N] y) {{ a = ortopt.group.group_0 (x) y = Abs (a) }}
    <domain: "ortopt.group", opset_import: ["" : 17, "my" : 1]> group_0 (p) => (r) {{ r = my.Twice (p) }}"""
    with pytest.raises(Exception, match="not a registered function/op") as caught:
        session(text).run(None, {"x": floats(2)})
    assert "which the host cannot run either" in caught.value.__notes__[0]
    with pytest.warns(RuntimeWarning, match="group_0 runs on the host"):
        assert session(text, host_ops=[Twice]).run(None, {"x": np.ones(1, np.float32)})[0].tolist() == [2]


# DebugRun: both, compared


class Wrong(Twice):
    """Relu, wrong at one place."""

    op_domain = ""

    def _run(self, x: Any) -> tuple[Any, ...]:
        found = np.maximum(x, 0)
        found[1, 2] += 0.5
        return (found,)


Wrong.__name__ = "Relu"


def test_debug_names_the_first_group_that_differs_and_the_worst_element(tmp_path: Path) -> None:
    text = f"""{HEADER} main (float[N,4] x) => (float[N,4] y) {{
        n = Neg (x) a = ortopt.group.group_0 (n) b = Relu (a) y = Neg (b) }}
    {FUNCTION} group_0 (p) => (r) {{ r = Abs (p) }}"""
    mine = session(text, run_type="debug", host_ops=[Wrong], dump_folder=tmp_path)
    with pytest.raises(VerificationError, match=r"group leftover_\d on host, output 'b': .* at \[1, 2\]") as caught:
        mine.run(None, {"x": X})
    (folder,) = tmp_path.glob("*-differs")
    assert str(folder) in str(caught.value)
    model = onnx.load(folder / "group.onnx")
    assert [node.op_type for node in model.graph.node] == ["Relu"]
    with np.load(folder / "values.npz") as stored:
        values = dict(stored)
    again = onnxruntime.InferenceSession(folder / "group.onnx", providers=[CPU])
    right = again.run(None, {again.get_inputs()[0].name: values["input.a"]})[0]
    assert right[1, 2] != values["output.b"][1, 2]


def test_debug_tolerances(monkeypatch: pytest.MonkeyPatch) -> None:
    session(
        f"{HEADER} main (float[N,4] x) => (float[N,4] y) {{ a = Relu (x) y = Neg (a) }}",
        run_type="debug", host_ops=[Wrong], atol=0.6,
    ).run(None, {"x": X})  # fmt: skip
    monkeypatch.setenv("ORTOPT_RELATIVE_TOLERANCE", "0.25")
    monkeypatch.setenv("ORTOPT_ABSOLUTE_TOLERANCE", "1e-3")
    settings = read_settings()
    assert (settings.rtol, settings.atol) == (0.25, 1e-3)
    assert settings.run_type is RunType.ORT


@pytest.mark.parametrize(
    ("got", "detail"),
    [
        (np.zeros(2, np.float64), "the type is"),
        (np.zeros(3, np.float32), "float32"),
        (np.array([0, 1], np.float32), "1"),
        (np.array([0, np.nan], np.float32), "nan"),
        (np.array([0, np.inf], np.float32), "inf"),
        (np.array([0, 0], np.float32), ""),
    ],
)
@pytest.mark.parametrize("tolerance", [None, 1e-3])
def test_debug_compares_type_shape_and_contents(got: Any, detail: str, tolerance: float | None) -> None:
    said = difference(to_ort(np.zeros(2, np.float32)), to_ort(got), tolerance, tolerance)
    assert (detail in said) if detail else said == ""


def test_debug_leaves_the_contents_of_random_groups_alone() -> None:
    text = (
        f"""{HEADER} main (float[N] x) => (float[N] y) {{ r = my.Twice (x) q = RandomNormalLike (r) y = Add (q, r) }}"""
    )
    session(text, run_type="debug", host_ops=[Twice]).run(None, {"x": floats(9)})


class Writer(OpRun):
    """``my.Writer(x, y) = x + y``, at the cost of both."""

    op_domain = "my"

    def _run(self, x: Any, y: Any) -> tuple[Any, ...]:
        x += y
        y[...] = np.nan
        return (x,)


WRITTEN = {
    "an input and a weight": "y = my.Writer (x, w)",
    "a result of a group": "a = ortopt.group.group_0 (x) b = my.Writer (a, w) c = Mul (a, w) y = Add (b, c)",
    "a result beside it on the host": "a = my.Writer (x, w) b = my.Writer (a, w) c = my.Writer (a, b) y = Add (a, c)",
    "a view": "s = Shape (x) r = Reshape (x, s) b = my.Writer (r, w) c = my.Writer (x, w) y = Add (b, c)",
    "through a function": "y = my.Both (x, w)",
    "in a branch": "y = If (go) <then_branch = a () => (p) { p = my.Writer (x, w) },"
    " else_branch = b () => (q) { q = Neg (x) }>",
}


@pytest.mark.parametrize("body", WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("given", ["array", "value", "bound"])
def test_host_ops_that_write_to_their_arguments_change_nothing_else(body: str, given: str) -> None:
    text = f"""{HEADER} main (float[2] x) => (float[2] y) <float[2] w = {{1, 2}}, bool go = {{1}}> {{ {body} }}
    {FUNCTION} group_0 (p) => (r) {{ r = Neg (p) }}
    <domain: "my", opset_import: ["" : 17, "my" : 1]> Both (p, q) => (r) {{
        a = my.Writer (p, q) b = my.Writer (p, q) r = Add (a, b) }}"""

    class Pure(Writer):
        def _run(self, x: Any, y: Any) -> tuple[Any, ...]:
            return (x + y,)

    Pure.__name__ = "Writer"
    x = np.array([5, -3], np.float32)
    expected = session(text, host_ops=[Pure]).run(None, {"x": x.copy()})[0]
    mine = session(text, host_ops=[Writer])
    for _ in range(2):
        if given == "array":
            found = mine.run(None, {"x": x})[0]
        elif given == "value":
            given_value = value(x)
            found = mine.run_with_ort_values(None, {"x": given_value})[0].numpy()
            assert_array_equal(given_value.numpy(), [5, -3])
        else:
            found = bound(mine, {"x": x}, ["y"]).copy_outputs_to_cpu()[0]
        assert_array_equal(found, expected)
        assert_array_equal(x, [5, -3])


# Compile: example run for output types → session → export → shared device → providers → closure


def test_compile_needs_no_example_run_where_types_are_known() -> None:
    mine = session(TWO_GROUPS)
    assert mine.statistics.compiles == 0
    mine.run(None, {"x": X})
    assert mine.statistics.compiles == 3
    assert all(group.spec.typed for group in mine.groups)


# Shared device check


@pytest.mark.skipif(WORKS, reason="CUDA works here")
def test_shared_device_of_a_provider_that_is_not_there_is_an_error() -> None:
    with pytest.raises(UsageError, match="CUDAExecutionProvider does not work here"):
        session(TWO_GROUPS, providers=["cuda"])


@pytest.mark.skipif(WORKS, reason="CUDA works here")
def test_shared_device_falls_back_where_the_caller_allows_it() -> None:
    with pytest.warns(RuntimeWarning, match="falling back to CPUExecutionProvider"):
        mine = session(TWO_GROUPS, providers=["cuda", "cpu"])
    assert mine.statistics.fallbacks == 1
    assert_allclose(mine.run(None, {"x": X})[0], two_groups(X)[0], rtol=1e-6)
    with pytest.raises(UsageError, match="does not work here"):
        session(TWO_GROUPS, providers=["cuda", "cpu"], enable_fallback=0)
    with pytest.warns(RuntimeWarning, match="falling back") as said:
        text = f"{HEADER} main (float[N] x) => (float[N] y) {{ y = my.Twice (x) }}"
        mine = session(text, providers=["cuda", "cpu"], host_ops=[Twice])
    assert len(said) == 1
    assert mine.statistics.fallbacks == 1


def test_shared_device_of_a_group_made_for_another_provider_is_the_callers() -> None:
    model = parse(TWO_GROUPS)
    for function in model.functions.values():
        function.metadata_props["ortopt.provider"] = CUDA
    mine = session(model)
    mine.run(None, {"x": X})
    assert {group.provider for group in mine.groups} == {CPU}


# Zero-copy in and out


def test_zero_copy_of_results() -> None:
    mine = session(TWO_GROUPS)
    (found,) = mine.run_with_ort_values(["y"], {"x": value(X)})
    array = found.numpy()
    assert array.ctypes.data == found.data_ptr()
    if INSTALLED >= (1, 26):  # which brought OrtValue.__dlpack__
        assert np.from_dlpack(found).ctypes.data == found.data_ptr()


@since(1, 26, "OrtValue.from_dlpack")
def test_zero_copy_of_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the groups; a host op, which may write to what it is given, has copies."""
    seen: list[int] = []
    run = GroupRunner.__call__

    def watched(self: GroupRunner, values: list[Any], options: Any) -> Any:
        seen.append(values[0].data_ptr())
        return run(self, values, options)

    mine = session(f"{HEADER} main (float[N] x) => (float[N] y) {{ a = my.Twice (x) y = Neg (a) }}", host_ops=[Twice])
    monkeypatch.setattr(GroupRunner, "__call__", watched)
    x = floats(64)
    mine.run(None, {"x": x})
    mine.run_with_ort_values(None, {"x": onnxruntime.OrtValue.from_dlpack(x)})
    assert [seen[0], seen[2]] == [x.ctypes.data, x.ctypes.data]


class Tensor:
    """Another library's tensor."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("text", [TWO_GROUPS, "main (float[N,4] x) => (float[N,4] y) { y = Neg (x) }"])
def test_zero_copy_by_dlpack(text: str) -> None:
    mine = session(text)
    assert_allclose(mine.run(["y"], {"x": Tensor(X)})[0], mine.run(["y"], {"x": X})[0])
    with pytest.raises(Exception, match="Unexpected input data type"):
        mine.run(["y"], {"x": Tensor(X.astype(np.float64))})


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (2, 0, 3)])
def test_tensors_of_other_libraries_that_have_no_elements(shape: tuple[int, ...]) -> None:
    dims = ",".join("NMK"[: len(shape)])
    mine = session(f"main (float[{dims}] x) => (float[{dims}] y) {{ y = Neg (x) }}")
    assert mine.run(["y"], {"x": Tensor(np.zeros(shape, np.float32))})[0].shape == shape
    assert mine.run(["y"], {"x": np.zeros(shape, np.float32)})[0].shape == shape


# Dump and check flags


@pytest.mark.parametrize("name", ["DUMP_GRAPH", "DUMP_GROUPS", "DUMP_INPUTS_OUTPUTS"])
@pytest.mark.parametrize("value", ["2", "yes", "", "true"])
def test_flags_take_only_0_and_1(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"ORTOPT_{name}", value)
    with pytest.raises(UsageError, match=f"ORTOPT_{name} must be 0 or 1"):
        session(TWO_GROUPS)


@pytest.mark.parametrize("name", ["RELATIVE_TOLERANCE", "ABSOLUTE_TOLERANCE"])
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "much", ""])
def test_flags_with_numbers_take_numbers(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"ORTOPT_{name}", value)
    with pytest.raises(UsageError, match=f"ORTOPT_{name} must be a number"):
        session(TWO_GROUPS)


def test_flags_dump(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GRAPH", "GROUPS", "INPUTS_OUTPUTS"):
        monkeypatch.setenv(f"ORTOPT_DUMP_{name}", "1")
    monkeypatch.chdir(tmp_path)
    mine = InferenceSession(parse(TWO_GROUPS), providers=["cpu"])
    mine.run(None, {"x": X})
    folder = tmp_path / "ortopt-dump"
    assert {path.name for path in folder.glob("*.onnx")} == {
        "model.onnx", "group_0.onnx", "group_1.onnx", "leftover_0.onnx",
    }  # fmt: skip
    (values,) = folder.glob("group_0-*.npz")
    with np.load(values) as stored:
        assert_allclose(stored["input.p"], X)
        alone = onnxruntime.InferenceSession(folder / "group_0.onnx", providers=[CPU])
        assert_allclose(alone.run(None, {"p": stored["input.p"]})[0], stored["output.r"], rtol=1e-6)
    assert "group_1" in (folder / "plan.txt").read_text(encoding="utf-8")
    got = onnxruntime.InferenceSession(folder / "model.onnx", providers=[CPU]).run(None, {"x": X})[0]
    assert_allclose(got, two_groups(X)[0], rtol=1e-6)
