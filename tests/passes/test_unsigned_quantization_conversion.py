"""Signed activations become unsigned, with --march native and on x86 processors only."""

import platform

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.options import Fusions, March, Options
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.quantized_units import run

PASS = "unsigned_quantization_conversion"
NATIVE = Options(march=March.NATIVE, fusions=Fusions.ALL)


def model(
    between: str = "y = DequantizeLinear (q, s, z)", out: str = "2,3,4,4", more: str = "", zero: str = "-5"
) -> str:
    return f"""main (float[2,3,4,4] x) => (float[{out}] y{more}) <float s = {{0.05}}, int8 z = {{{zero}}}> {{
        q = QuantizeLinear (x, s, z) {between} }}"""


@pytest.mark.parametrize(
    ("between", "out"),
    [
        ("t = Transpose <perm = [0, 2, 3, 1]> (q)", "2,4,4,3"),
        ("t = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (q)", "2,3,4,4"),
        ("m = MaxPool <kernel_shape = [2, 2]> (q) t = Flatten (m)", "2,27"),
    ],
)
def test_bits_stay_where_integers_are_moved(between: str, out: str) -> None:
    text = model(f"{between} y = DequantizeLinear (t, s, z)", out)
    feeds = {"x": np.random.default_rng(0).normal(0, 4, (2, 3, 4, 4)).astype(np.float32)}
    result = check_rewrites(PASS, text, options=NATIVE, inputs=feeds)
    np.testing.assert_array_equal(run(parse(text), feeds)[0], run(result, feeds)[0])


@pytest.mark.parametrize(
    ("between", "out"),
    [
        ("m = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (q) t = Concat <axis = 0> (m, q)", "4,3,4,4"),
        ("p = QuantizeLinear (x, s, other) t = Concat <axis = 1> (q, p)", "2,6,4,4"),
        ("t = Concat <axis = 0> (q, k)", "3,3,4,4"),
        ("a, b, c = Split <axis = 1> (q) t = Concat <axis = 1> (c, a)", "2,2,4,4"),
    ],
)
def test_integers_that_are_put_together_and_taken_apart(between: str, out: str) -> None:
    text = model(f"{between} y = DequantizeLinear (t, s, z)", out)
    known = {", other)": "int8 other = {7}, ", ", k)": f"{CONSTANTS['k']}, "}
    constants = "".join(text for end, text in known.items() if end in between) + "int8 z"
    text = '<ir_version: 8, opset_import: ["" : 17]> ' + text.replace("int8 z", constants)
    feeds = {"x": np.random.default_rng(0).normal(0, 4, (2, 3, 4, 4)).astype(np.float32)}
    result = check_rewrites(PASS, text, options=NATIVE, inputs=feeds)
    assert all(value.dtype != ir.DataType.INT8 for node in result.graph for value in node.outputs)
    np.testing.assert_array_equal(run(parse(text), feeds)[0], run(result, feeds)[0])


MS = "com.microsoft"
COMPUTED = {
    "QLinearConv": "c = QLinearConv (q, s, z, w, s, o, s, z) y = DequantizeLinear (c, s, z)",
    "QLinearConv of several zero points": "c = QLinearConv (q, s, z, w, t, os, s, z) y = DequantizeLinear (c, s, z)",
    "QLinearAdd": f"c = {MS}.QLinearAdd (q, s, z, k, s, o, s, z) y = DequantizeLinear (c, s, z)",
    "no zero points": f"c = {MS}.QLinearMul (q, s, z, q, s, z, s) y = DequantizeLinear (c, s)",
    "QLinearConcat": f"c = {MS}.QLinearConcat <axis = 0> (s, z, q, s, z, k, s, o) y = DequantizeLinear (c, s, z)",
    "QLinearSigmoid": f"c = {MS}.QLinearSigmoid (q, s, z, s, o) y = DequantizeLinear (c, s, o)",
    "QLinearGlobalAveragePool": f"c = {MS}.QLinearGlobalAveragePool (q, s, z, s, z) y = DequantizeLinear (c, s, z)",
    "QLinearMatMul": "c = QLinearMatMul (q, s, z, q, s, z, s, z) y = DequantizeLinear (c, s, z)",
    "QLinearMatMul of a weight": "c = QLinearMatMul (q, s, z, m, s, o, s, z) y = DequantizeLinear (c, s, z)",
    "QGemm of floats": f"f = Flatten (q) y = {MS}.QGemm (f, s, z, g, s, o)",
}
"""What computes integers between the two."""

CONSTANTS = {
    "w": "int8[3,3,1,1] w = {-128, 2, 3, 4, 127, -6, 7, 8, 9}",
    "k": "int8[1,3,4,4] k = {" + ", ".join(str(index * 5 - 128) for index in range(48)) + "}",
    "m": "int8[4,4] m = {" + ", ".join(str(index * 16 - 128) for index in range(16)) + "}",
    "g": "int8[48,2] g = {" + ", ".join(str(index - 48) for index in range(96)) + "}",
    "o": "int8 o = {0}",
    "os": "int8[3] os = {0, 0, 0}",
    "t": "float[3] t = {0.01, 0.02, 0.03}",
}


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_integers(name: str) -> None:
    body = COMPUTED[name]
    read = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    constants = ", ".join(text for constant, text in CONSTANTS.items() if constant in read)
    dims = {"QLinearConcat": "3,3,4,4", "QLinearGlobalAveragePool": "2,3,1,1", "QGemm of floats": "2,2"}
    text = f"""<ir_version: 8, opset_import: ["" : 17, "{MS}" : 1]>
        main (float[2,3,4,4] x) => (float[{dims.get(name, "2,3,4,4")}] y)
        <float s = {{0.05}}, int8 z = {{-5}}{", " if constants else ""}{constants}> {{
        q = QuantizeLinear (x, s, z) {body} }}"""
    feeds = {"x": np.random.default_rng(0).normal(0, 4, (2, 3, 4, 4)).astype(np.float32)}
    # verification takes a zero point that is left out for one of uint8
    result = check_rewrites(PASS, text, options=NATIVE, inputs=feeds, numbers=name != "no zero points")
    made = {value.dtype.name for node in result.graph for value in node.outputs if value.dtype is not None}
    assert made == {"UINT8", "FLOAT"}
    np.testing.assert_allclose(run(parse(text), feeds)[0], run(result, feeds)[0], rtol=1e-6, atol=1e-6)


def test_keeps_on_other_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    check_keeps(PASS, model(), because="has kernels for signed integers", options=NATIVE)
