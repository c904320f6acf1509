"""A product that is split becomes a product for each part, where there are rows enough."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "matmul_split_decomposition"
HEAD = "main (float[16,2] x) => (float[16,1] y, float[16,2] z)"
MATRIX = "float[2,3] w = {1, 2, 3, 4, 5, 6}, int64[2] k = {1, 2}"
WEIGHTS = f"{MATRIX}, float[3] b = {{7, 8, 9}}"
PARTS = "float[2,1] v = {1, 4}, float[2,2] w = {2, 3, 5, 6}"
SPLIT = "y, z = Split <axis = -1> (a, k)"


@pytest.mark.parametrize("add", ["Add (m, b)", "Add (b, m)"])
def test_with_a_bias(add: str) -> None:
    check_rewrites(
        PASS,
        f"{HEAD} <{WEIGHTS}> {{ m = MatMul (x, w) a = {add} {SPLIT} }}",
        f"""{HEAD} <{PARTS}, float[1] b = {{7}}, float[2] c = {{8, 9}}>
            {{ n = MatMul (x, w) z = Add (n, c) m = MatMul (x, v) y = Add (m, b) }}""",
    )


def test_without_a_bias() -> None:
    check_rewrites(
        PASS,
        f"{HEAD} <{MATRIX}> {{ a = MatMul (x, w) {SPLIT} }}",
        f"{HEAD} <{PARTS}> {{ z = MatMul (x, w) y = MatMul (x, v) }}",
    )


def test_a_part_that_is_not_used() -> None:
    text = f"main (float[1,16,2] x) => (float[1,16,2] z) <{MATRIX}> {{ a = MatMul (x, w) {SPLIT} }}"
    check_rewrites(PASS, text, ops={"Split": 0, "MatMul": 1})


def test_sizes_as_an_attribute() -> None:
    text = (
        f"{HEAD} <{MATRIX.partition(', int64')[0]}> {{ a = MatMul (x, w) y, z = Split <axis = 1, split = [1, 2]> (a) }}"
    )
    check_rewrites(PASS, text, ops={"MatMul": 2, "Split": 0}, opset=12)


NO_PRODUCT = "no product with a constant matrix is above it"
KEPT = {
    "few rows": ("than one MatMul and a Split", HEAD.replace("16", "8"), "a = MatMul (x, w)"),
    "one row, or more": ("than one MatMul and a Split", HEAD.replace("16", "S"), "a = MatMul (x, w)"),
    "the whole is needed": (NO_PRODUCT, HEAD.replace("y,", "y, float[16,3] a,"), "a = MatMul (x, w)"),
    "another op": (NO_PRODUCT, HEAD, "m = MatMul (x, w) a = Relu (m)"),
    "a matrix that is computed": (NO_PRODUCT, HEAD.replace("x)", "x, float[2,3] r)"), "a = MatMul (x, r)"),
    "a matrix of two products": (
        "used elsewhere",
        HEAD.replace("y,", "y, float[16,3] o,"),
        "o = MatMul (x, w) a = MatMul (x, w)",
    ),
    "a sum that is computed": (
        "no operand is a constant",
        HEAD.replace("x)", "x, float[3] r)"),
        "m = MatMul (x, w) a = Add (m, r)",
    ),
    "one number for all": ("no row", HEAD, "o = Constant <value = float[1] {1.0}> () m = MatMul (x, w) a = Add (m, o)"),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    because, head, above = KEPT[case]
    check_keeps(PASS, f"{head} <{WEIGHTS}> {{ {above} {SPLIT} }}", because)


def test_keeps_parts_of_rows() -> None:
    text = f"""main (float[16,2] x) => (float[8,3] y, float[8,3] z) <{WEIGHTS}, int64[2] n = {{8, 8}}>
        {{ a = MatMul (x, w) y, z = Split <axis = 0> (a, n) }}"""
    check_keeps(PASS, text, "it splits no columns")


def test_keeps_doubles() -> None:
    text = f"{HEAD} <{WEIGHTS}> {{ a = MatMul (x, w) {SPLIT} }}".replace("float", "double")
    check_keeps(PASS, text, "single precision only")
