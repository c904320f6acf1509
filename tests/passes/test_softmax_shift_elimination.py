"""What a Softmax does by itself is not done before."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "softmax_shift_elimination"
IMPORTS = '<ir_version: 8, opset_import: ["" : {}]>'
HEAD = IMPORTS + " main (float[N,3,5] x) => (float[N,3,5] y)"
MAXIMUM = {13: "m = ReduceMax<axes = [-1]> (x)", 18: "m = ReduceMax (x, last)"}
LAST = {13: "", 18: "last = Constant<value_ints = [-1]> ()"}
SCALED = "<float c = {32.0}>"
ROWS = [[-np.inf] * 5, [1, np.nan, 2, 3, 4], [1, np.inf, 2, 3, 4], [-3.4e38] * 5, [0, -3.4e38, 3.4e38, 1, 2], [9.0] * 5]
EDGES = np.array(ROWS, np.float32).reshape(2, 3, 5)


@pytest.mark.parametrize("version", MAXIMUM)
def test_the_largest_is_taken_off(version: int) -> None:
    text = f"{HEAD.format(version)} {{ {LAST[version]} {MAXIMUM[version]} d = Sub (x, m) y = Softmax (d) }}"
    check_rewrites(PASS, text, "y = Softmax<axis = -1> (x)", inputs={"x": EDGES})


def test_another_axis() -> None:
    text = f"{HEAD.format(13)} {{ m = ReduceMax<axes = [1]> (x) d = Sub (x, m) y = Softmax<axis = -2> (d) }}"
    check_rewrites(PASS, text, "y = Softmax<axis = -2> (x)")


def test_scores_that_were_scaled_down() -> None:
    text = f"{HEAD.format(13)} {SCALED} {{ z = Div (x, c) {MAXIMUM[13].replace('(x', '(z')} d = Sub (z, m)"
    text += " e = Mul (d, c) y = Softmax (e) }"
    check_rewrites(PASS, text, "y = Softmax<axis = -1> (x)")
    check_rewrites(PASS, text, "y = Softmax<axis = -1> (x)", inputs={"x": EDGES})


PLAIN = f"{MAXIMUM[13]} d = Sub (x, m) y = Softmax (d)"
KEPT = {
    "another axis": ("not the largest of a row", HEAD, PLAIN.replace("[-1]", "[1]")),
    "two axes": ("not the largest of a row", HEAD, PLAIN.replace("[-1]", "[1, 2]")),
    "another value": (
        "the largest of something else",
        HEAD,
        PLAIN.replace("m = ", "n = Neg (x) m = ")
        .replace("] > (x)", "")
        .replace("ReduceMax<axes = [-1]> (x)", "ReduceMax<axes = [-1]> (n)"),
    ),
    "no dimension": (
        "the rows' dimension is gone",
        HEAD.replace("N,3,5", "5,5,5"),
        PLAIN.replace("[-1]", "[-1], keepdims = 0"),
    ),
    "scaled up only": (
        "comes before",
        HEAD + SCALED.replace("{", "{{").replace("}", "}}"),
        PLAIN.replace("(d)", "(e)").replace("y =", "e = Mul (d, c) y ="),
    ),
    "scaled down": (
        "the differences are scaled down",
        HEAD + " <float c = {{0.5}}>",
        PLAIN.replace("(d)", "(e)").replace("y =", "e = Mul (d, c) y ="),
    ),
    "another divisor": (
        "the scores were not divided by",
        HEAD + " <float c = {{32.0}}, float b = {{16.0}}>",
        "z = Div (x, b) m = ReduceMax<axes = [-1]> (z) d = Sub (z, m) e = Mul (d, c) y = Softmax (e)",
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    because, head, body = KEPT[case]
    check_keeps(PASS, f"{head.format(13)} {{ {body} }}", because)


def test_flattened_axes() -> None:
    text = f"{HEAD.format(12)} {{ m = ReduceMax<axes = [2]> (x) d = Sub (x, m) y = Softmax<axis = 2> (d) }}"
    check_keeps(PASS, text)
