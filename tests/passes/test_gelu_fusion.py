"""x · ½ · (1 + Erf(x / √2)) becomes Gelu(x), in every spelling."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "gelu_fusion"

ARGUMENTS = {
    "div": "t = Constant <value = float {1.4142135}> () s = Div (x, t)",
    "div, few digits": "t = Constant <value = float {1.41421}> () s = Div (x, t)",
    "mul": "t = Constant <value = float {0.70710677}> () s = Mul (x, t)",
    "mul, few digits": "t = Constant <value = float {0.7071}> () s = Mul (x, t)",
    "mul, reversed": "t = Constant <value = float {0.70710677}> () s = Mul (t, x)",
    "rank 1": "t = Constant <value = float[1] {1.4142135}> () s = Div (x, t)",
}
ONE_PLUS = {
    "erf + 1": "a = Add (e, one)",
    "1 + erf": "a = Add (one, e)",
}
PRODUCTS = {
    "(x·a)·½": "m = Mul (x, a) y = Mul (m, half)",
    "½·(a·x)": "m = Mul (a, x) y = Mul (half, m)",
    "(x·½)·a": "m = Mul (x, half) y = Mul (m, a)",
    "a·(½·x)": "m = Mul (half, x) y = Mul (a, m)",
    "x·(½·a)": "m = Mul (half, a) y = Mul (x, m)",
    "(a·½)·x": "m = Mul (a, half) y = Mul (m, x)",
    "(x·a)/2": "m = Mul (x, a) y = Div (m, two)",
    "(x/2)·a": "m = Div (x, two) y = Mul (m, a)",
    "x·(a/2)": "m = Div (a, two) y = Mul (x, m)",
}
NUMBERS = """
    one = Constant <value = float {1}> () half = Constant <value = float {0.5}> () two = Constant <value = float {2}> ()
"""
FUSED = "y = com.microsoft.Gelu (x)"


def model(argument: str = "div", one_plus: str = "erf + 1", product: str = "(x·a)·½") -> str:
    return f"""main (float[N,3,8] x) => (float[N,3,8] y) {{
        {NUMBERS} {ARGUMENTS[argument]} e = Erf (s) {ONE_PLUS[one_plus]} {PRODUCTS[product]} }}"""


@pytest.mark.parametrize("argument", ARGUMENTS)
@pytest.mark.parametrize("one_plus", ONE_PLUS)
def test_argument(argument: str, one_plus: str) -> None:
    check_rewrites(PASS, model(argument, one_plus), FUSED, level=2)


@pytest.mark.parametrize("product", PRODUCTS)
def test_half_anywhere(product: str) -> None:
    check_rewrites(PASS, model(product=product), FUSED, level=2)


HEAD = "main (float[2,8] x, float[2,8] other) => (float[2,8] y)"
BODY = "s = Div (x, r) e = Erf (s) a = Add (e, one) m = Mul (x, a) y = Mul (m, half)"
NO = "<float r = {1.4142135}, float one = {1}, float half = {0.5}, float two = {2}>"
KEPT = {
    "no constant for √2": ("the argument of Erf is not x / √2", HEAD, NO.replace("1.4142135", "1.414"), BODY),
    "√2 divided": ("the argument of Erf is not x / √2", HEAD, NO, BODY.replace("Div (x, r)", "Div (r, x)")),
    "√2 multiplied": ("the argument of Erf is not x / √2", HEAD, NO, BODY.replace("Div (x, r)", "Mul (x, r)")),
    "√2 is a vector": (
        "the argument of Erf is not x / √2",
        HEAD,
        NO.replace("float r = {1.4142135}", "float[8] r = {1.4142135,1,1,1,1,1,1,1}"),
        BODY,
    ),
    "no scaling": ("no Div or Mul comes before", HEAD, NO, BODY.replace("s = Div (x, r) e = Erf (s)", "e = Erf (x)")),
    "2 instead of 1": ("no operand is 1", HEAD, NO, BODY.replace("Add (e, one)", "Add (e, two)")),
    "nothing is added": ("no Add comes after", HEAD, NO, BODY.replace("Add (e, one)", "Mul (e, one)")),
    "a third instead of ½": ("the factors do not make", HEAD, NO.replace("0.5", "0.333"), BODY),
    "2 instead of ½": ("the factors do not make", HEAD, NO, BODY.replace("half", "two") + " z = Neg (y)"),
    "½ twice": (
        "the factors do not make",
        HEAD,
        NO,
        "s = Div (x, r) e = Erf (s) a = Add (e, one) b = Mul (a, half) c = Mul (b, half) y = Mul (c, x)",
    ),
    "another x": ("no Mul or Div comes before", HEAD, NO, BODY.replace("Mul (x, a)", "Mul (other, a)")),
    "another x, halved": (
        "not that of the same x",
        HEAD,
        NO,
        "s = Div (x, r) e = Erf (s) a = Add (e, one) h = Mul (other, half) y = Mul (a, h)",
    ),
    "x twice": ("another factor", HEAD, NO, BODY.replace("Mul (m, half)", "Mul (m, x)")),
    "x divides": ("x divides", HEAD, NO, BODY.replace("Mul (m, half)", "Div (half, m)")),
    "½ is a variable": ("another factor", HEAD, NO, BODY.replace("Mul (m, half)", "Mul (m, other)")),
    "erf is needed": ("used elsewhere", HEAD.replace("y)", "y, float[2,8] e)"), NO, BODY),
    "the scaled x is needed": ("Div's result is used elsewhere", HEAD.replace("y)", "y, float[2,8] s)"), NO, BODY),
    "the sum is needed": ("used elsewhere", HEAD.replace("y)", "y, float[2,8] a)"), NO, BODY),
    "a product is needed": ("factors do not make", HEAD.replace("y)", "y, float[2,8] z)"), NO, BODY + " z = Neg (m)"),
    "√2 raises the rank": (
        "the constant would raise the rank",
        "main (float x) => (float[1] y)",
        NO.replace("float r", "float[1] r"),
        BODY,
    ),
    "½ raises the rank": (
        "the constant would raise the rank",
        "main (float x) => (float[1,1] y)",
        NO.replace("float half", "float[1,1] half"),
        BODY,
    ),
    "1 raises the rank": (
        "the constant would raise the rank",
        "main (float[8] x) => (float[1,8] y)",
        NO.replace("float one", "float[1,1] one"),
        BODY,
    ),
    "½ can be overridden": (
        "another factor",
        "main (float[2,8] x, float half) => (float[2,8] y)",
        NO.replace("float half", "float h").replace("h = {0.5}", "half = {0.5}"),
        BODY,
    ),
}


@pytest.mark.parametrize("case", [case for case in KEPT if KEPT[case][0]])
def test_keeps(case: str) -> None:
    because, head, constants, body = KEPT[case]
    check_keeps(PASS, f"{head} {constants} {{ {body} }}", because, level=2)
