"""How large a mask's elements are, by the ops that exporters build masks of, and biases of normalized values.

ONNX Runtime's numbers stay below.
"""

import math
import re

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.patterns.attention import mask
from ortopt.patterns.attention.computed_bounds import computed_bound
from ortopt.testing import parse

CONSTANTS = {
    "w": "float[2,2] w = {1, -2, 3, 0.5}", "v": "float[2,3] v = {1, 0, -4, 2, 0, 1}", "g": "float[2] g = {0.5, -2}",
    "b": "float[2] b = {3, -1}", "pads": "int64[4] pads = {1, 0, 0, 2}", "fill": "float fill = {-99}",
    "parts": "int64[2] parts = {1, 1}", "low": "float[1] low = {-3.0e38}", "ten": "float[1] ten = {10}",
    "one": "int64 one = {1}", "at": "int64[1,2] at = {0, 0}",
}  # fmt: skip
NORMAL = "n = LayerNormalization <epsilon = 1.0> (x, g, b)"
LARGEST = 2.0 * math.sqrt(float(np.finfo(np.float32).max))
OF_NORMAL = 2 * LARGEST + 3
COMPUTED = {
    "m = LayerNormalization <epsilon = 1.0> (x, g, b)": OF_NORMAL,
    "m = LayerNormalization <epsilon = 0.01> (x, g)": 20 * LARGEST,
    f"{NORMAL} m = MatMul (n, w)": 4 * OF_NORMAL,
    f"{NORMAL} m = MatMul (w, n)": 3.5 * OF_NORMAL,
    f"{NORMAL} m = MatMul (n, v)": 5 * OF_NORMAL,
    f"{NORMAL} t = Transpose (w) m = MatMul (n, t)": 3.5 * OF_NORMAL,
    f"{NORMAL} m = Gemm <transB = 1, alpha = 2.0> (n, w)": 7 * OF_NORMAL,
    f"{NORMAL} m = Gemm <transA = 1> (v, n)": 5 * OF_NORMAL,
    f"{NORMAL} m = Gemm <beta = -2.0> (n, w, b)": 4 * OF_NORMAL + 6,
    f'{NORMAL} m = Einsum <equation = "ab,cb->ac"> (n, w)': 3.5 * OF_NORMAL,
    f'{NORMAL} m = Einsum <equation = "ab, bc -> ca"> (w, n)': 3.5 * OF_NORMAL,
    f"{NORMAL} m = Pad (n, pads, fill)": OF_NORMAL,
    f"{NORMAL} s, m = Split <axis = 0> (n, parts)": OF_NORMAL,
    f"{NORMAL} p = MatMul (n, w) q = Neg (p) m = Add (n, q)": 5 * OF_NORMAL,
    f"{NORMAL} m = Mul (n, w)": 3 * OF_NORMAL,
    "m = MatMul (x, w)": None,
    "m = LayerNormalization <epsilon = 0.0> (x, g, b)": None,
    f"{NORMAL} m = MatMul (n, n)": None,
    f"{NORMAL} m = MatMul (n, b)": None,
    f"{NORMAL} m = Sub (n, x)": None,
    f'{NORMAL} m = Einsum <equation = "ab,cd->cd"> (n, w)': None,
    f'{NORMAL} m = Einsum <equation = "...a,ab->...b"> (n, w)': None,
    f'{NORMAL} m = Einsum <equation = "ab,bc"> (n, w)': None,
    f"{NORMAL} m = Pad (n, pads, z)": None,
}
MASKS = {
    "m = ConstantOfShape (size)": 0.0,
    "m = ConstantOfShape <value = float[1] {-5}> (size)": 5.0,
    "f = ConstantOfShape <value = float[1] {-5}> (size) m = Trilu (f, one)": 5.0,
    "f = ConstantOfShape (size) m = ScatterND (f, at, low)": 3.0e38,
    "f = ConstantOfShape <value = float[1] {20}> (size) m = ScatterND (f, at, ten)": 20.0,
    'f = ConstantOfShape (size) m = ScatterND <reduction = "add"> (f, at, ten)': None,
    "f = ConstantOfShape (size) m = ScatterND (f, at, x)": None,
    "m = Trilu (x, one)": None,
}


def result(nodes: str) -> ir.Value:
    """The value m that nodes give, in single precision."""
    read = {name for operands in re.findall(r"\(([^)]*)\)", nodes) for name in operands.split(", ")}
    used = ", ".join(text for name, text in CONSTANTS.items() if name in read)
    model = parse(f"main (float[2,2] x, float z, int64[2] size) => (float[S,T] m) <{used}> {{ {nodes} }}", 18)
    for node in model.graph:
        for value in node.outputs:
            value.dtype = ir.DataType.FLOAT
    return model.graph.outputs[0]


@pytest.mark.parametrize("nodes", COMPUTED)
def test_computed_bounds(nodes: str) -> None:
    known, wanted = computed_bound(result(nodes), mask.bound), COMPUTED[nodes]
    if wanted is None or known is None:
        assert known is wanted
    else:
        assert wanted <= known <= wanted * 1.1


@pytest.mark.parametrize("nodes", MASKS)
def test_bounds(nodes: str) -> None:
    known, wanted = mask.bound(result(nodes)), MASKS[nodes]
    assert known == wanted or (known is not None and wanted is not None and math.isclose(known, wanted, rel_tol=1e-6))


@pytest.mark.parametrize("base", [0.0, 1.0, 1e4, 1e18, 1.8e19, 3e38])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0, 1e18, 3e38])
def test_no_normalized_number_is_larger(base: float, spread: float) -> None:
    """The kernel's variance is a difference of rounded numbers: such values are where it fails."""
    import onnxruntime as ort

    text = "main (float[4,64] x) => (float[4,64] m) <float[64] g = {" + ", ".join(["1"] * 64) + "}> "
    model = parse(text + "{ m = LayerNormalization <epsilon = 0.000001> (x, g) }", 17)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.clip(base + spread * np.random.default_rng(0).uniform(-1, 1, (4, 64)), -3.4e38, 3.4e38).astype(np.float32)
    (got,) = session.run(None, {"x": x})
    most = computed_bound(model.graph.outputs[0], mask.bound)
    assert most is not None
    assert not (np.abs(got) > most).any()
