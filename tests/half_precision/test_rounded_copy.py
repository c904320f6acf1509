"""The copy that shows what 16 bits do, where ONNX Runtime's CPU provider does not."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.half_precision.rounded_copy import rounded_copy
from ortopt.testing import parse
from tests.half_precision.converting import run

TEXT = """main (float[2] x) => (float[2] y) {
    h = Cast <to = 10> (x) s = Mul (h, h) r = Sqrt (s) y = Cast <to = 1> (r) }"""
X = np.array([1.2345678, 1000.0], np.float32)


def test_what_overflows_in_16_bits_overflows_in_the_copy() -> None:
    (y,) = run(rounded_copy(parse(TEXT), ir.DataType.FLOAT16), {"x": X})
    half = X.astype(np.float16)
    assert y[1] == np.inf
    assert y[0] == np.float16(np.sqrt(np.float32(half[0] * half[0])))


def test_onnxruntime_does_not_round_between_nodes_on_the_cpu() -> None:
    """The reason for the copy; where this fails, a plain run has become enough."""
    (y,) = run(parse(TEXT), {"x": X})
    np.testing.assert_array_equal(y, X)


@pytest.mark.parametrize(("dtype", "number"), [(ir.DataType.FLOAT16, 10), (ir.DataType.BFLOAT16, 16)])
def test_weights_and_constants_are_rounded(dtype: ir.DataType, number: int) -> None:
    model = parse(
        f"""main (float[2] x) => (float[2] y) <float[2] w = {{1.2345678, 3.3}}> {{
            c = Constant <value = float {{0.1}}> () v = Cast <to = {number}> (w) d = Cast <to = {number}> (c)
            h = Cast <to = {number}> (x) a = Mul (h, v) b = Add (a, d) y = Cast <to = 1> (b) }}"""
    )
    copy = rounded_copy(model, dtype)
    (y,) = run(copy, {"x": np.ones(2, np.float32)})
    kind = dtype.numpy()
    w = np.array([1.2345678, 3.3], np.float32).astype(kind)
    expected = (w.astype(np.float32) + np.float32(0.1).astype(kind).astype(np.float32)).astype(kind).astype(np.float32)
    np.testing.assert_array_equal(y, expected)


def test_inputs_and_outputs_keep_type_and_name() -> None:
    model = parse("main (float16[2] x) => (float16[2] y, float16[2] x) { y = Mul (x, x) }")
    copy = rounded_copy(model, ir.DataType.FLOAT16)
    assert [value.name for value in copy.graph.outputs] == ["y", "x"]
    y, x = run(copy, {"x": X.astype(np.float16)})
    assert y.dtype == x.dtype == np.float16
    assert y[1] == np.inf


def test_graphs_in_graphs_are_rounded() -> None:
    model = parse("""main (bool c, float16[2] x) => (float16[2] y) {
        y = If (c) <then_branch = a () => (float16[2] s) { s = Mul (x, x) },
                    else_branch = b () => (float16[2] t) { t = Neg (x) }> }""")
    copy = rounded_copy(model, ir.DataType.FLOAT16)
    (y,) = run(copy, {"c": np.array(True), "x": X.astype(np.float16)})
    assert y[1] == np.inf
    (y,) = run(copy, {"c": np.array(False), "x": X.astype(np.float16)})
    np.testing.assert_array_equal(y, -X.astype(np.float16))


def test_what_is_not_of_16_bits_is_left_alone() -> None:
    model = parse("main (float[2] x) => (float[2] y) { y = Mul (x, x) }")
    assert [node.op_type for node in rounded_copy(model, ir.DataType.FLOAT16).graph] == ["Mul"]
