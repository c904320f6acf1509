"""A layer normalization spelled out becomes one LayerNormalization."""

import re

import pytest

from ortopt import registry
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

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
ONES = "ones = Constant <value = float[8] {1,1,1,1,1,1,1,1}> ()"


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


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_spellings(square: str, shift: str, quotient: str) -> None:
    check_rewrites(PASS, model(square, shift, quotient), FUSED)


@pytest.mark.parametrize("affine", AFFINES)
def test_scale_and_bias(affine: str) -> None:
    check_rewrites(PASS, model(affine=affine), f"{ONES} {AFFINES[affine][1]}")


@pytest.mark.parametrize("axes", ["[-1]", "[2]"])
@pytest.mark.parametrize("opset", [17, 18, 20])
def test_axes(axes: str, opset: int) -> None:
    check_rewrites(PASS, model(axes=axes, opset=opset), FUSED, opset=opset)


@pytest.mark.parametrize("axes", ["[1,2]", "[-1,-2]", "[2,-2]"])
@pytest.mark.parametrize("opset", [17, 18])
def test_several_axes(axes: str, opset: int) -> None:
    before = model(axes=axes, opset=opset).replace("float[8] s", "float[3,8] s").replace("float[8] b", "float[3,8] b")
    check_rewrites(PASS, before, FUSED.replace("axis = -1", "axis = -2"), opset=opset)


def test_all_axes() -> None:
    before = model().replace("<axes = [-1]>", "").replace("[N,3,8]", "[8]")
    check_rewrites(PASS, before, FUSED)


@pytest.mark.parametrize("reuse", ["m", "m2"])
def test_two_differences(reuse: str) -> None:
    again = f"m2 = {mean('x')}" if reuse == "m2" else ""
    check_rewrites(
        PASS,
        whole(
            f"""m = {mean("x")} {again} d = Sub (x, m) d2 = Sub (x, {reuse}) q = Pow (d, two) v = {mean("q")}
            w = Add (v, eps) r = Sqrt (w) n = Div (d2, r) t = Mul (n, s) y = Add (t, b)"""
        ),
        FUSED,
    )


def test_parameters_that_are_computed_after_the_root() -> None:
    before = model(affine="n").replace("y = Identity (n)", "s2 = Abs (s) t = Mul (n, s2) b2 = Neg (b) y = Add (t, b2)")
    after = "s2 = Abs (s) b2 = Neg (b) " + FUSED.replace("(x, s, b)", "(x, s2, b2)")
    check_rewrites(PASS, before, after)


def test_parameters_of_other_shapes_stay_outside() -> None:
    before = model().replace("float[8] s", "float[3,1] s")
    after = f"""{ONES} n = LayerNormalization <axis = -1, epsilon = 0.001> (x, ones)
        t = Mul (n, s) y = Add (t, b)"""
    check_rewrites(PASS, before, after)


def test_a_bias_of_another_shape_stays_outside() -> None:
    before = model().replace("float[8] b", "float[1,1,8] b")
    check_rewrites(PASS, before, "t = LayerNormalization <axis = -1, epsilon = 0.001> (x, s) y = Add (t, b)")


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


def test_casts_around_stay_outside() -> None:
    body = f"""c = Cast <to = 1> (x) m = {mean("c")} d = Sub (c, m) q = Pow (d, two) v = {mean("q")} w = Add (v, eps)
        r = Sqrt (w) n = Div (d, r) t = Mul (n, s) u = Add (t, b) y = Cast <to = 10> (u)"""
    before = whole(body, HALF_INPUTS.replace("float16[8]", "float[8]"), "float16[N,3,8] y")
    after = """c = Cast <to = 1> (x) u = LayerNormalization <axis = -1, epsilon = 0.001> (c, s, b)
        y = Cast <to = 10> (u)"""
    check_rewrites(PASS, before, after)


def test_double() -> None:
    before = model().replace("float", "double").replace("0.001", "0.0009765625")
    after = "y = LayerNormalization <axis = -1, epsilon = 0.0009765625, stash_type = 11> (x, s, b)"
    check_rewrites(PASS, before, after)


FUNCTION = """<ir_version: 10, opset_import: ["" : 17, "local" : 1]>
    main (float[N,3,8] x, float[8] s, float[8] b) => (float[N,3,8] y) {{ y = local.Norm <axes = [-1]> (x, s, b) }}
    <opset_import: ["" : 17], domain: "local"> Norm {attributes} (x, s, b) => (y) {{
        two = Constant <value = float {{2}}> () eps = Constant <value = float {{0.001}}> ()
        m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) q = Pow (d, two) v = ReduceMean <{axes}> (q)
        w = Add (v, eps) r = Sqrt (w) n = Div (d, r) t = Mul (n, s) y = Add (t, b) }}"""


def test_keeps_what_the_caller_decides() -> None:
    text = FUNCTION.format(attributes="<axes>", axes="axes: ints = @axes")
    check_keeps(PASS, text, "the function's caller decides axes")


KEPT = {
    "the exponent is 3": ("the exponent is not 2", model().replace("two = {2}", "two = {3}")),
    "a vector of exponents": (
        "the exponent is not 2",
        model().replace("float two = {2}", "float[8] two = {2,2,2,2,2,2,2,2}"),
    ),
    "the exponent raises the rank": (
        "raise the rank",
        model().replace("[N,3,8]", "[8]").replace("float two", "float[1,1] two").replace("float[8] y", "float[1,8] y"),
    ),
    "the means drop their axes": (
        "the mean drops its axes",
        model().replace("axes = [-1]>", "axes = [-1], keepdims = 0>").replace("[N,3,8]", "[8,8]"),
    ),
    "a mean over the batch": ("not over the last axes", model(axes="[0]")),
    "a mean over the middle": ("not over the last axes", model(axes="[1]")),
    "a hole between the axes": ("not over the last axes", model(axes="[0,2]")),
    "means over different axes": (
        "the means are over different axes",
        model().replace("m = ReduceMean <axes = [-1]>", "m = ReduceMean <axes = [1,2]>"),
    ),
    "the variance over other axes": (
        "the means are over different axes",
        model().replace("v = ReduceMean <axes = [-1]>", "v = ReduceMean <axes = [1,2]>"),
    ),
    "epsilon is a vector": (
        "not one number",
        model().replace("float eps = {0.001}", "float[8] eps = {1,1,1,1,1,1,1,1}"),
    ),
    "epsilon is negative": ("epsilon is negative", model().replace("0.001", "-0.001")),
    "epsilon raises the rank": (
        "raise the rank",
        model().replace("[N,3,8]", "[8]").replace("float eps", "float[1,1] eps").replace("float[8] y", "float[1,8] y"),
    ),
    "epsilon can be overridden": ("not a constant", model().replace("float[8] b)", "float[8] b, float eps)")),
    "no epsilon": ("no Add comes before", model().replace("r = Sqrt (w)", "r = Sqrt (v)")),
    "a difference of other values": (
        "the mean of something else is subtracted",
        model().replace("float[8] b)", "float[8] b, float[N,3,8] z)").replace("d = Sub (x, m)", "d = Sub (z, m)"),
    ),
    "mean - x": ("no ReduceMean comes before", model().replace("Sub (x, m)", "Sub (m, x)")),
    "the sum": ("no Sub comes before", model().replace("Sub (x, m)", "Add (x, m)")),
    "x is divided": ("no Sub comes before", model().replace("Div (d, r)", "Div (x, r)")),
    "the root is divided": ("the root is divided", model().replace("Div (d, r)", "Div (r, d)")),
    "the reciprocal of something": ("no Div or Reciprocal comes after", model().replace("Div (d, r)", "Mul (d, r)")),
    "another square": ("no square", model("Mul").replace("Mul (d, d)", "Mul (d, x)")),
    "a cube root": ("no square root", model(quotient="d / Pow(½)").replace("half = {0.5}", "half = {0.333}")),
    "the deviation is needed": ("Sub's result is used elsewhere", model().replace("y)", "y, float[N,3,8] d)", 1)),
    "the mean is needed": ("ReduceMean's result is used elsewhere", model().replace("y)", "y, float[N,3,1] m)", 1)),
    "the root is needed": ("used elsewhere", model().replace("y)", "y, float[N,3,1] r)", 1)),
    "the variance is needed": ("Add's result is used elsewhere", model().replace("y)", "y, float[N,3,1] w)", 1)),
    "the shape is unknown": ("the shape is unknown", model().replace("[N,3,8]", "[]")),
    "the normalized dimension is symbolic": (
        "a normalized dimension is not fixed",
        model(affine="n").replace("[N,3,8]", "[N,3,M]"),
    ),
    "the normalized dimension is 0": (
        "a normalized dimension is 0",
        model().replace("[N,3,8]", "[N,3,0]").replace("[8]", "[0]"),
    ),
    "double with an epsilon that float has not": (
        "epsilon is no single-precision number",
        model().replace("float", "double"),
    ),
    "single precision inside double": (
        "computed in another type",
        whole(
            f"""c = Cast <to = 1> (x) m = {mean("c")} d = Sub (c, m) q = Pow (d, two) v = {mean("q")} w = Add (v, eps)
            r = Sqrt (w) n = Div (d, r) h = Cast <to = 11> (n) t = Mul (h, s) y = Add (t, b)""",
            INPUTS.replace("float", "double"),
            "double[N,3,8] y",
        ),
    ),
}


test_keeps = keeps(PASS, KEPT)


def test_keeps_means_over_no_axis() -> None:
    text = model(opset=18).replace("ReduceMean (x, axes)", "ReduceMean <noop_with_empty_axes = 1> (x)")
    check_keeps(PASS, text, "the mean is over no axis", opset=18)
