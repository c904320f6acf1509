"""Rows that are selected of a constant, and then go through a layer, are selected of what the layer makes of all."""

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "row_selection_folding"
TABLE = "float[4,2] c = {1, 2, 3, 4, 5, 6, 7, 8}"
MATRIX = "float[2,3] w = {1, 0, 2, 1, 0, 3}"
PRODUCT = "float[4,3] p = {3, 0, 8, 7, 0, 18, 11, 0, 28, 15, 0, 38}"
BIAS = "float[2] b = {10, 20}"
SLICE = "s = Slice (c, i, e, a)"
BOUNDS = "int64[1] e = {3}, int64[1] a = {0}"
LAYER = f"main (int64[1] i) => (float[M,3] y) <{TABLE}, {MATRIX}, {BOUNDS}> {{ {SLICE} y = MatMul (s, w) }}"
LOOKUP = f"main (int64[N,M] i) => (float[N,M,3] y) <{TABLE}, {MATRIX}> {{ s = Gather (c, i) y = MatMul (s, w) }}"
SHIFT = f"main (int64[1] i) => (float[M,2] y) <{TABLE}, {BIAS}, {BOUNDS}> {{ {SLICE} y = Add (b, s) }}"


def test_rows_of_a_slice() -> None:
    after = f"main (int64[1] i) => (float[M,3] y) <{PRODUCT}, {BOUNDS}> {{ y = Slice (p, i, e, a) }}"
    check_rewrites(PASS, LAYER, after)


def test_an_axis_from_the_end() -> None:
    check_rewrites(PASS, LAYER.replace("a = {0}", "a = {-2}"), ops={"MatMul": 0, "Slice": 1})


def test_rows_of_a_gather() -> None:
    check_rewrites(PASS, LOOKUP, f"main (int64[N,M] i) => (float[N,M,3] y) <{PRODUCT}> {{ y = Gather (p, i) }}")


def test_rows_that_numbers_name() -> None:
    text = LOOKUP.replace("int64[N,M] i", "float[N,M] x").replace(
        "s = G", "p = Clip (x, l, h) i = Cast <to = 7> (p) s = G"
    )
    check_rewrites(
        PASS, text.replace(MATRIX, f"{MATRIX}, float l = {{0}}, float h = {{3}}"), ops={"MatMul": 0, "Gather": 1}
    )


def test_a_single_row() -> None:
    check_rewrites(PASS, LOOKUP.replace("int64[N,M]", "int64").replace("[N,M,3]", "[3]"), ops={"MatMul": 0})


@pytest.mark.parametrize("axes", ["{0}", "{-3}", "{1}"])
def test_axes_added_before_columns(axes: str) -> None:
    text = LAYER.replace("y = MatMul (s, w)", "u = Unsqueeze (s, n) y = MatMul (u, w)").replace(
        "float[M,3]", "float[K,M,3]"
    )
    check_rewrites(
        PASS, text.replace(f"{MATRIX},", f"{MATRIX}, int64[1] n = {axes},"), ops={"MatMul": 0, "Unsqueeze": 1}
    )


def test_an_axis_added_below_opset_13() -> None:
    text = LAYER.replace("y = MatMul (s, w)", "u = Unsqueeze <axes = [0]> (s) y = MatMul (u, w)")
    check_rewrites(PASS, text.replace("float[M,3]", "float[1,M,3]"), ops={"MatMul": 0, "Unsqueeze": 1}, opset=12)


def test_a_row_that_is_added() -> None:
    table = "float[4,2] c = {11, 22, 13, 24, 15, 26, 17, 28}"
    check_rewrites(PASS, SHIFT, f"main (int64[1] i) => (float[M,2] y) <{table}, {BOUNDS}> {{ y = Slice (c, i, e, a) }}")


def test_a_layer_with_a_bias() -> None:
    text = LAYER.replace("y = MatMul (s, w)", "m = MatMul (s, w) y = Add (m, b)")
    text = text.replace(f"{MATRIX},", f"{MATRIX}, float[3] b = {{1, 2, 3}},")
    check_rewrites(PASS, text, ops={"MatMul": 0, "Add": 0, "Slice": 1})


def test_layers_that_share_rows() -> None:
    text = LAYER.replace("y)", "y, float[M,2] z)").replace("y = MatMul (s, w)", "y = MatMul (s, w) z = MatMul (s, v)")
    text = text.replace(f"{MATRIX},", f"{MATRIX}, float[2,2] v = {{1, 2, 3, 4}},")
    check_rewrites(PASS, text, ops={"MatMul": 0, "Slice": 2})


MANY = f"float[5,2] c = {{{', '.join('1234567890')}}}"
KEPT = {
    "what it is multiplied with is no constant": LAYER.replace("(int64[1] i)", "(int64[1] i, float[2,3] w)").replace(
        f"{MATRIX}, ", ""
    ),
    "it is of no rows of a constant": LAYER.replace("(int64[1] i)", "(int64[1] i, float[4,2] c)").replace(
        f"{TABLE}, ", ""
    ),
    "it selects something else than rows": LOOKUP.replace("Gather (c", "Gather <axis = 1> (c")
    .replace("int64[N,M]", "int64[2]")
    .replace("float[N,M,3]", "float[4,3]"),
    "the constant is no matrix": LOOKUP.replace(TABLE, "float[2,2,2] c = {1, 2, 3, 4, 5, 6, 7, 8}").replace(
        "float[N,M,3]", "float[N,M,2,3]"
    ),
    "they are no floats": LAYER.replace("float[", "int32["),
    "the table has many more rows than the matrix": LAYER.replace(TABLE, MANY),
    "the matrix is used elsewhere": LAYER.replace("y)", "y, float[2,3] z)").replace("(s, w)", "(s, w) z = Neg (w)"),
    "would not be finite": LAYER.replace("{1, 2, 3,", "{1e38, 3e38, 1e38,").replace("{1, 0, 2,", "{9, 9, 9,"),
    "the rows are used elsewhere": SHIFT.replace("y)", "y, float[M,2] z)").replace("(b, s)", "(b, s) z = Neg (s)"),
    "it is not one number for each column": SHIFT.replace(BIAS, "float[3,2] b = {1, 2, 3, 4, 5, 6}").replace(
        "float[M,2]", "float[3,2]"
    ),
    "an axis is added behind the rows": SHIFT.replace("Add (b, s)", "Add (b, u)")
    .replace(SLICE, f"{SLICE} u = Unsqueeze (s, n)")
    .replace(BIAS, f"{BIAS}, int64[1] n = {{2}}")
    .replace("float[M,2]", "float[M,2,2]"),
}


test_kept = keeps(PASS, KEPT)


def test_kept_where_the_table_serves_others() -> None:
    text = SHIFT.replace("y)", "y, float[4,2] z)").replace("(b, s)", "(b, s) z = Neg (c)")
    check_keeps(PASS, text, "the rows are used elsewhere")


def test_kept_where_a_row_would_be_repeated() -> None:
    text = (
        LOOKUP.replace("int64[N,M]", "int64")
        .replace("float[N,M,3]", "float[1,2]")
        .replace("MatMul (s, w)", "Add (s, b)")
    )
    check_keeps(PASS, text.replace(MATRIX, "float[1,2] b = {1, 2}"), "it is not one number for each column")
