"""A root-mean-square normalization spelled out becomes one node."""

import re

import pytest

from ortopt import registry
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "rms_norm_fusion"
PRIVATE = registry.installed().find(PASS)(private_op=True)
CONSTANTS = {"two": "2", "half": "0.5", "minus_half": "-0.5", "one": "1", "eps": "0.001"}
INPUTS = "float[N,3,8] x, float[8] s"
SQUARES = {"Pow": "q = Pow (x, two)", "Mul": "q = Mul (x, x)"}
QUOTIENTS = {
    "x / Sqrt": "r = Sqrt (w) n = Div (x, r)",
    "x · Reciprocal(Sqrt)": "r = Sqrt (w) i = Reciprocal (r) n = Mul (x, i)",
    "(1 / Sqrt) · x": "r = Sqrt (w) i = Div (one, r) n = Mul (i, x)",
    "x · Pow(-½)": "r = Pow (w, minus_half) n = Mul (x, r)",
}
OLD = "y = SimplifiedLayerNormalization <axis = -1, epsilon = 0.001> (x, s)"


def whole(body: str, inputs: str = INPUTS, outputs: str = "float[N,3,8] y", more: str = "") -> str:
    """A model with the constants that its body names."""
    used = [f"float {name} = {{{number}}}" for name, number in CONSTANTS.items() if re.search(rf"\b{name}\b", body)]
    return f"main ({inputs}) => ({outputs}) <{', '.join((*used, more) if more else used)}> {{ {body} }}"


def model(
    square: str = "Pow",
    quotient: str = "x / Sqrt",
    scale: str = "Mul (n, s)",
    mean: str = "<axes = [-1]> (q)",
    out: str = "",
) -> str:
    body = f"{SQUARES[square]} v = ReduceMean {mean} w = Add (v, eps) {QUOTIENTS[quotient]} y = {scale}"
    return whole(body, outputs="float[N,3,8] y" + out)


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("quotient", QUOTIENTS)
@pytest.mark.parametrize("scale", ["Mul (n, s)", "Mul (s, n)"])
def test_spellings(square: str, quotient: str, scale: str) -> None:
    check_rewrites(PRIVATE, model(square, quotient, scale), OLD, level=2)


def test_without_a_scale() -> None:
    text = model(scale="Neg (n)").replace(", float[8] s", "")
    after = "o = Constant <value = float[8] {1,1,1,1,1,1,1,1}> () " + OLD.replace("y =", "n =").replace("s)", "o)")
    check_rewrites(PRIVATE, text, after + " y = Neg (n)", level=2)


def test_a_scale_of_another_shape_stays_outside() -> None:
    text = model().replace("float[8] s", "float[1,8] s")
    after = "o = Constant <value = float[8] {1,1,1,1,1,1,1,1}> () " + OLD.replace("y =", "n =").replace("s)", "o)")
    check_rewrites(PRIVATE, text, after + " y = Mul (n, s)", level=2)


def test_a_bias_stays_outside() -> None:
    body = "q = Mul (x, x) v = ReduceMean <axes = [-1]> (q) w = Add (v, eps) r = Sqrt (w) n = Div (x, r)"
    text = whole(f"{body} t = Mul (n, s) y = Add (t, s)")
    check_rewrites(PRIVATE, text, OLD.replace("y =", "t =") + " y = Add (t, s)", level=2)


CASTS = {
    "all in single precision": """c = Cast <to = 1> (x) q = Pow (c, two) v = ReduceMean <axes = [-1]> (q)
        w = Add (v, eps) r = Sqrt (w) i = Div (one, r) n = Mul (c, i) h = Cast <to = 10> (n) y = Mul (s, h)""",
    "the root is narrowed": """c = Cast <to = 1> (x) q = Pow (c, two) v = ReduceMean <axes = [-1]> (q)
        w = Add (v, eps) r = Sqrt (w) h = Cast <to = 10> (r) n = Div (x, h) y = Mul (s, n)""",
    "the reciprocal is narrowed": """c = Cast <to = 1> (x) q = Pow (c, two) v = ReduceMean <axes = [-1]> (q)
        w = Add (v, eps) r = Sqrt (w) i = Reciprocal (r) h = Cast <to = 10> (i) n = Mul (x, h) y = Mul (s, n)""",
}


@pytest.mark.parametrize("case", CASTS)
def test_casts(case: str) -> None:
    text = whole(CASTS[case], INPUTS.replace("float", "float16"), "float16[N,3,8] y")
    check_rewrites(PRIVATE, text, OLD, level=2)


def test_a_difference_that_is_needed_elsewhere_is_still_normalized() -> None:
    text = whole(
        """m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) q = Pow (d, two) v = ReduceMean <axes = [-1]> (q)
        w = Add (v, eps) r = Sqrt (w) n = Div (d, r) y = Mul (n, s)""",
        outputs="float[N,3,8] y, float[N,3,8] d",
    )
    after = "m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) " + OLD.replace("x, s", "d, s")
    check_rewrites(PRIVATE, text, after, level=2)


KEPT = {
    "something else is divided": (
        "something else is divided",
        model().replace("Div (x, r)", "Div (z, r)").replace("[8] s)", "[8] s, float[N,3,8] z)"),
    ),
    "the exponent is 3": ("the exponent is not 2", model().replace("two = {2}", "two = {3}")),
    "the square of something else": (
        "no square",
        model("Mul").replace("Mul (x, x)", "Mul (x, z)").replace("[8] s)", "[8] s, float[N,3,8] z)"),
    ),
    "the mean drops its axes": (
        "the mean drops its axes",
        model(mean="<axes = [-1], keepdims = 0> (q)").replace("[N,3,8]", "[8,8]"),
    ),
    "other axes": ("not over the last axes", model(mean="<axes = [1]> (q)")),
    "the root is needed": ("used elsewhere", model(out=", float[N,3,1] r")),
    "the square is needed": ("Pow's result is used elsewhere", model(out=", float[N,3,8] q")),
    "a symbolic dimension": ("not fixed", model(scale="Identity (n)").replace("[N,3,8]", "[N,3,M]")),
    "a dimension of 0": ("is 0", model().replace("[N,3,8]", "[N,3,0]").replace("[8]", "[0]")),
    "double with an epsilon that float has not": ("single-precision number", model().replace("float", "double")),
}


test_keeps = keeps(PRIVATE, KEPT, level=2)


def test_onnxruntimes_own_op_only_where_the_caller_asks_for_it() -> None:
    check_keeps(PASS, model(), "opset 17 has no RMSNormalization", level=1)
    check_keeps(PASS, model(), "opset 17 has no RMSNormalization", level=2)
    check_keeps(PRIVATE, model(), "SimplifiedLayerNormalization", level=1)
    check_keeps(PRIVATE, model(), "SimplifiedLayerNormalization", level=2, target="onnx")


def test_without_an_epsilon() -> None:
    body = "q = Mul (x, x) v = ReduceMean <axes = [-1]> (q) r = Sqrt (v) n = Div (x, r) y = Mul (n, s)"
    check_rewrites(PRIVATE, whole(body), OLD.replace("0.001", "0.0"), level=2)
