"""Axes that are joined, moved together and taken apart need one Transpose."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "reshape_transpose_fusion"
HEADS = """main (float[N,4,S,8] x) => (float[N,4,8,S] y)
    <int64[1] minus = {-1}, int64[1] eight = {8}, int64[1] four = {4}> {
    n = Shape <start = 0, end = 1> (x) s = Shape <start = 2, end = 3> (x)
    j = Concat <axis = 0> (minus, s, eight) a = Reshape (x, j) t = Transpose <perm = [0, 2, 1]> (a)
    k = Concat <axis = 0> (n, four, eight, s) b = Reshape (t, k) y = Neg (b) }"""


def test_heads_folded_into_the_batch() -> None:
    check_rewrites(
        PASS,
        HEADS,
        "main (float[N,4,S,8] x) => (float[N,4,8,S] y) { b = Transpose <perm = [0, 1, 3, 2]> (x) y = Neg (b) }",
    )


def test_a_result_of_the_graph() -> None:
    text = """main (float[2,3,4] x) => (float[A,B,C] y) <int64[2] j = {6, 4}, int64[3] k = {4, 2, 3}> {
        a = Reshape (x, j) t = Transpose <perm = [1, 0]> (a) y = Reshape (t, k) }"""
    check_rewrites(PASS, text, "y = Transpose <perm = [2, 0, 1]> (x)")


@pytest.mark.parametrize(
    ("shape", "joined", "perm", "apart", "order"),
    [
        ([2, 3, 4, 5], [6, 20], [1, 0], [4, 5, 2, 3], [2, 3, 0, 1]),
        ([2, 1, 3], [2, 3], [1, 0], [1, 3, 2], [1, 2, 0]),
        ([2, 3, 1], [2, 3], [1, 0], [3, 1, 2], [1, 2, 0]),
    ],
)
def test_numbers(shape: list[int], joined: list[int], perm: list[int], apart: list[int], order: list[int]) -> None:
    dims = ",".join(map(str, apart))
    check_rewrites(
        PASS,
        f"""main (float[{",".join(map(str, shape))}] x) => (float[{dims}] y)
            <int64[{len(joined)}] j = {{{", ".join(map(str, joined))}}}, int64[{len(apart)}] k = {{{", ".join(map(str, apart))}}}> {{
            a = Reshape (x, j) t = Transpose <perm = {perm}> (a) b = Reshape (t, k) y = Neg (b) }}""",  # noqa: E501
        f"b = Transpose <perm = {order}> (x) y = Neg (b)",
    )


def test_one_that_undoes_itself() -> None:
    check_rewrites(
        PASS,
        """main (float[2,3] x) => (float[2,3] y) <int64[3] j = {1, 2, 3}, int64[2] k = {2, 3}> {
            a = Reshape (x, j) t = Transpose <perm = [1, 0, 2]> (a) b = Reshape (t, k) y = Neg (b) }""",
        "y = Neg (x)",
    )


test_keeps = keeps(
    PASS,
    [
        ("no single move does the same", HEADS.replace("(n, four, eight, s)", "(n, eight, four, s)").replace("float[N,4,8,S] y", "float[A,B,C,D] y")),  # noqa: E501
        ("used elsewhere", HEADS.replace("8,S] y", "8,S] y, float[A,B,C] t")),
        ("used elsewhere", HEADS.replace("8,S] y", "8,S] y, float[A,B,C] o").replace("y = Neg", "o = Neg (a) y = Neg")),
        ("the axes come apart into others", "main (float[2,6] x) => (float[6,2] y) <int64[2] j = {3, 4}, int64[2] k = {6, 2}> { a = Reshape (x, j) t = Transpose <perm = [1, 0]> (a) b = Reshape (t, k) y = Neg (b) }"),  # noqa: E501
    ],
)  # fmt: skip
