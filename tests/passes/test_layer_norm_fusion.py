"""A layer normalization spelled out becomes one LayerNormalization."""

import re

import pytest

from ortopt import registry
from ortopt.testing import check_keeps, check_rewrites

PASS = "layer_norm_fusion"
PRIVATE = registry.installed().find(PASS)(private_op=True)

CONSTANTS = {"two": "2", "half": "0.5", "minus_half": "-0.5", "one": "1", "eps": "0.001"}
INPUTS = "float[N,3,8] x, float[8] s, float[8] b"
OUTPUTS = "float[N,3,8] y"
SQUARES = {"Pow": "q = Pow (d, two)", "Mul": "q = Mul (d, d)"}
SHIFTS = {"v + ε": "w = Add (v, eps)", "ε + v": "w = Add (eps, v)"}
QUOTIENTS = {
    "d / Sqrt": "r = Sqrt (w) n = Div (d, r)",
    "d · Reciprocal(Sqrt)": "r = Sqrt (w) i = Reciprocal (r) n = Mul (d, i)",
    "Reciprocal(Sqrt) · d": "r = Sqrt (w) i = Reciprocal (r) n = Mul (i, d)",
    "d · (1 / Sqrt)": "r = Sqrt (w) i = Div (one, r) n = Mul (d, i)",
    "d / Pow(½)": "r = Pow (w, half) n = Div (d, r)",
    "d · Pow(-½)": "r = Pow (w, minus_half) n = Mul (d, r)",
}
AFFINES = {
    "n·s + b": ("t = Mul (n, s) y = Add (t, b)", "y = LayerNormalization <axis = -1, epsilon = 0.001> (x, s, b)"),
    "b + s·n": ("t = Mul (s, n) y = Add (b, t)", "y = LayerNormalization <axis = -1, epsilon = 0.001> (x, s, b)"),
    "n·s": ("y = Mul (n, s)", "y = LayerNormalization <axis = -1, epsilon = 0.001> (x, s)"),
    "n + b": ("y = Add (n, b)", "y = LayerNormalization <axis = -1, epsilon = 0.001> (x, ones, b)"),
    "n": ("y = Identity (n)", "n = LayerNormalization <axis = -1, epsilon = 0.001> (x, ones) y = Identity (n)"),
}


def whole(body: str, inputs: str = INPUTS, outputs: str = OUTPUTS, more: str = "") -> str:
    """A model with the constants that its body names."""
    used = [f"float {name} = {{{number}}}" for name, number in CONSTANTS.items() if re.search(rf"\b{name}\b", body)]
    return f"main ({inputs}) => ({outputs}) <{', '.join((*used, more) if more else used)}> {{ {body} }}"


def mean(of: str, axes: str = "[-1]", opset: int = 17) -> str:
    if opset < 18:
        return f"ReduceMean <axes = {axes}> ({of})"
    return f"ReduceMean ({of}, axes)"


def model(
    square: str = "Pow",
    shift: str = "v + ε",
    quotient: str = "d / Sqrt",
    affine: str = "n·s + b",
    *,
    axes: str = "[-1]",
    opset: int = 17,
) -> str:
    body = f"""m = {mean("x", axes, opset)} d = Sub (x, m) {SQUARES[square]} v = {mean("q", axes, opset)}
        {SHIFTS[shift]} {QUOTIENTS[quotient]} {AFFINES[affine][0]}"""
    given = "" if opset < 18 else f"int64[{axes.count(',') + 1}] axes = {{{axes.strip('[]')}}}"
    return whole(body, more=given)


FUSED = AFFINES["n·s + b"][1]


@pytest.mark.parametrize("opset", [11, 13, 16])
def test_onnxruntimes_own_op_before_opset_17_only_where_the_caller_asks_for_it(opset: int) -> None:
    check_rewrites(PRIVATE, model(), FUSED, opset=opset, level=2)
    check_keeps(PRIVATE, model(), "LayerNormalization", opset=opset, level=2, target="onnx")
    check_keeps(PRIVATE, model(), "LayerNormalization", opset=opset, level=1)
    check_keeps(PASS, model(), f"opset {opset} has no LayerNormalization", opset=opset, level=2)


HALF_INPUTS = "float16[N,3,8] x, float16[8] s, float16[8] b"
CASTS = {
    "all in single precision, scale and bias in half": """
        c = Cast <to = 1> (x) m = MEAN(c) d = Sub (c, m) q = Pow (d, two) v = MEAN(q) w = Add (v, eps) r = Sqrt (w)
        n = Div (d, r) h = Cast <to = 10> (n) t = Mul (h, s) y = Add (t, b)""",
    "the difference is widened": """
        m = MEAN(x) d = Sub (x, m) c = Cast <to = 1> (d) q = Pow (c, two) v = MEAN(q) w = Add (v, eps) r = Sqrt (w)
        n = Div (c, r) h = Cast <to = 10> (n) t = Mul (h, s) y = Add (t, b)""",
    "the variance is computed in single precision": """
        m = MEAN(x) d = Sub (x, m) c = Cast <to = 1> (d) q = Mul (c, c) v = MEAN(q) w = Add (v, eps) r = Sqrt (w)
        h = Cast <to = 10> (r) n = Div (d, h) t = Mul (n, s) y = Add (t, b)""",
}


@pytest.mark.parametrize("case", CASTS)
@pytest.mark.parametrize("opset", [13, 17])
def test_casts(case: str, opset: int) -> None:
    body = CASTS[case].replace("MEAN(", "ReduceMean <axes = [-1]> (")
    check_rewrites(
        PASS if opset >= 17 else PRIVATE,
        whole(body, HALF_INPUTS, "float16[N,3,8] y"),
        FUSED,
        opset=opset,
        level=1 if opset >= 17 else 2,
    )
