"""``onnxruntime.IOBinding`` and OrtValues with several groups: the same results, the same refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_array_equal

from ortopt.runtime.onnxruntime_interface.model_signature import ModelSignature
from tests.runtime.models import FUNCTION, HEADER, PLAIN, TWO_GROUPS, floats, session
from tests.runtime.side_by_side import alike, both, value
from tests.runtime.side_by_side import bound as made

X = floats(2, 4)


def test_onnx_runtimes_own_binding_is_made_of_any_session_and_used_by_one_that_is_whole() -> None:
    """As Optimum does: ``onnxruntime.IOBinding(session)``."""
    whole = session(PLAIN)
    binding = onnxruntime.IOBinding(whole)
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    whole.run_with_iobinding(binding)
    assert_array_equal(binding.copy_outputs_to_cpu()[0], whole.run(None, {"x": X})[0])
    grouped = session(TWO_GROUPS)
    foreign = onnxruntime.IOBinding(grouped)
    told = r"takes what session\.io_binding\(\) returns"
    unknown = "with the session that created it"  # which bindings of older releases do not tell
    with pytest.raises(ValueError, match=f"{told}|{unknown}"):
        grouped.run_with_iobinding(foreign)
    with pytest.raises(ValueError, match=unknown):
        grouped.run_with_iobinding(onnxruntime.IOBinding(session(TWO_GROUPS)))


def run(one: Any, binding: Any) -> Any:
    one.run_with_iobinding(binding)
    return [found.tolist() for found in binding.copy_outputs_to_cpu()]


def changed_later(one: Any, binding: Any) -> Any:
    array = X.copy()
    binding.bind_cpu_input("x", array)
    binding.bind_output("y")
    first = run(one, binding)
    array[:] = 0
    return first, run(one, binding)


def rebound(one: Any, binding: Any) -> Any:
    binding.bind_cpu_input("x", X)
    for name in ("t", "y", "t"):
        binding.bind_output(name)
    binding.bind_cpu_input("x", X[:1])
    return run(one, binding)


def cleared(one: Any, binding: Any) -> Any:
    binding.bind_cpu_input("x", X)
    binding.bind_output("t")
    binding.clear_binding_outputs()
    binding.bind_output("y")
    binding.synchronize_inputs()
    found = run(one, binding)
    binding.synchronize_outputs()
    return found


def bound(name: str, array: Any, output: str = "y") -> Callable[[Any, Any], Any]:
    def call(one: Any, binding: Any) -> Any:
        binding.bind_cpu_input(name, array)
        binding.bind_output(output)
        return run(one, binding)

    return call


def bound_values(name: str, array: Any, output: str = "y") -> Callable[[Any, Any], Any]:
    def call(one: Any, binding: Any) -> Any:
        binding.bind_ortvalue_input(name, value(array))
        binding.bind_ortvalue_output(output, value(np.zeros((2, 4), np.float32)))
        return run(one, binding)

    return call


def at_address(element_type: Any) -> Callable[[Any, Any], Any]:
    def call(one: Any, binding: Any) -> Any:
        binding.bind_input("x", "cpu", 0, element_type, (2, 4), X.ctypes.data)
        binding.bind_output("y")
        return run(one, binding)

    return call


def no_output(one: Any, binding: Any) -> Any:
    binding.bind_cpu_input("x", X)
    return run(one, binding)


CASES: dict[str, Callable[[Any, Any], Any]] = {
    "an array": bound("x", X),
    "a view": bound("x", floats(4, 8)[::2, ::2]),
    "an empty array": bound("x", X[:0]),
    "a value": bound_values("x", X),
    "an address": at_address(np.float32),
    "an address with ONNX's type": at_address(onnx.TensorProto.FLOAT),
    "an array that changes": changed_later,
    "bound again": rebound,
    "cleared": cleared,
    "another input": bound("nope", X),
    "another output": bound("x", X, "nope"),
    "a value for another input": bound_values("nope", X),
    "a value for another output": bound_values("x", X, "nope"),
    "another dtype": bound("x", X.astype(np.float64)),
    "another rank": bound("x", X[0]),
    "another size": bound("x", X[:, :3]),
    "a value of another dtype": bound_values("x", X.astype(np.int64)),
    "an address with another type": at_address(onnx.TensorProto.BFLOAT16),
    "a list": bound("x", [[1.0, 2, 3, 4]]),
    "nothing": bound("x", None),
    "no output": no_output,
    "another device": lambda _, binding: binding.bind_output("y", "nonsense"),
    "no type": lambda _, binding: binding.bind_output("y", "cpu", 0, None, None, X.ctypes.data),
}


@pytest.mark.parametrize("what", CASES)
def test_bindings_as_onnx_runtimes(what: str) -> None:
    alike(both(TWO_GROUPS), lambda one: CASES[what](one, one.io_binding()))


def test_a_device_that_the_session_has_not_leaves_outputs_where_they_are() -> None:
    for one in both(TWO_GROUPS):
        binding = made(one, {"x": X}, {"y": "cuda"})
        assert binding.get_outputs()[0].device_name() == "cpu"


def test_memory_of_types_that_numpy_lacks() -> None:
    text = f"""{HEADER}
    main (bfloat16[N] x) => (bfloat16[N] z, float[N] y) {{
        y = ortopt.group.group_0 (x) z = ortopt.group.group_1 (y) }}
    {FUNCTION} group_0 (p) => (r) {{ r = Cast <to = 1> (p) }}
    {FUNCTION} group_1 (p) => (r) {{ s = Neg (p) r = Cast <to = 16> (s) }}"""
    array = np.array([1, -2, 0.5], ml_dtypes.bfloat16)
    target = np.zeros(3, np.uint16)
    for one in both(text):
        binding = one.io_binding()
        binding.bind_input("x", "cpu", 0, onnx.TensorProto.BFLOAT16, (3,), array.ctypes.data)
        binding.bind_output("z", "cpu", 0, onnx.TensorProto.BFLOAT16, (3,), target.ctypes.data)
        binding.bind_output("y")
        one.run_with_iobinding(binding)
        assert binding.get_outputs()[1].numpy().tolist() == [1, -2, 0.5]
        assert target.view(ml_dtypes.bfloat16).tolist() == [-1, 2, -0.5]
        target[:] = 0


def test_values_that_fit_are_not_checked_by_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    _, mine = both(TWO_GROUPS)

    def never(*_: Any) -> Any:
        raise AssertionError("asked")

    monkeypatch.setattr(ModelSignature, "check_inputs", never)
    assert len(mine.run_with_ort_values(["y"], {"x": value(X)})) == 1
    with pytest.raises(AssertionError, match="asked"):
        mine.run_with_ort_values(["y"], {"x": value(X[:, :3])})


def test_an_input_that_is_not_bound() -> None:
    mine = session(f"""{HEADER} main (float[N] x, float[N] z) => (float[N] y) {{
        a = ortopt.group.group_0 (x) b = ortopt.group.group_0 (z) y = Add (a, b) }}
    {FUNCTION} group_0 (p) => (r) {{ s = Neg (p) r = Relu (s) }}""")
    binding = mine.io_binding()
    binding.bind_cpu_input("x", X[0])
    binding.bind_output("y")
    with pytest.raises(RuntimeError, match="Error in execution: Missing Input: z"):
        mine.run_with_iobinding(binding)
    binding.bind_ortvalue_input("z", value(X[0]))
    mine.run_with_iobinding(binding)
    assert_array_equal(binding.copy_outputs_to_cpu()[0], 2 * np.maximum(-X[0], 0))
