"""Concat goes where it joins one value, or all parts of a Split in their order; empty operands go too."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "concat_elimination"


def test_one_operand() -> None:
    check_rewrites(
        PASS,
        "main (float[N,4] x) => (float[N,4] y) { t = Concat <axis = -1> (x) y = Neg (t) }",
        after="y = Neg (x)",
    )


@pytest.mark.parametrize(("axis", "minus"), [(1, 1), (1, -1), (-1, 1)])
@pytest.mark.parametrize("opset", [11, 13, 18])
def test_the_parts_of_a_split(axis: int, minus: int, opset: int) -> None:
    more = ", num_outputs = 3" if opset >= 18 else ""
    check_rewrites(
        PASS,
        f"""main (float[N,6] x) => (float[N,6] y) {{
            a, b, c = Split <axis = {axis}{more}> (x) t = Concat <axis = {minus}> (a, b, c) y = Neg (t) }}""",
        ops={"Concat": 0},
        opset=opset,
    )


def test_the_parts_among_others_and_used_elsewhere() -> None:
    check_rewrites(
        PASS,
        """main (float[2,4] x, float[2,N] z) => (float[2,K] y, float[2,2] w) {
            a, b = Split <axis = 1> (x) y = Concat <axis = 1> (z, a, b, a) w = Neg (b) }""",
        after="a, b = Split <axis = 1> (x) y = Concat <axis = 1> (z, x, a) w = Neg (b)",
    )


def test_empty_operands_are_dropped() -> None:
    check_rewrites(
        PASS,
        """main (float[0,4] e, float[N,4] x, float[M,4] z) => (float[K,4] y) {
            y = Concat <axis = -2> (e, x, e, z) }""",
        after="y = Concat <axis = -2> (x, z)",
    )


def test_all_empty_but_one() -> None:
    check_rewrites(
        PASS,
        "main (float[2,N] x) => (float[2,N] y) <float[2,0] e = {}> { t = Concat <axis = 1> (e, x) y = Neg (t) }",
        after="main (float[2,N] x) => (float[2,N] y) { y = Neg (x) }",
    )


def test_all_empty() -> None:
    check_rewrites(
        PASS,
        "main (float[0,4] a, float[0,4] b) => (float[0,4] y) { t = Concat <axis = 0> (a, b) y = Neg (t) }",
        after="y = Neg (a)",
    )


KEPT = [
    ("each operand is needed", "(float[4] x) => (float[4] y) { a, b = Split <axis = 0> (x) y = Concat <axis = 0> (b, a) }"),  # noqa: E501
    ("each operand is needed", "(float[4] x) => (float[2] y) { a, b, c, d = Split <axis = 0> (x) y = Concat <axis = 0> (a, b) }"),  # noqa: E501
    ("each operand is needed", "(float[4,4] x) => (float[2,8] y) { a, b = Split <axis = 0> (x) y = Concat <axis = 1> (a, b) }"),  # noqa: E501
    ("each operand is needed", "(float[2,2] x) => (float[1,4] y) { a, b = Split <axis = -2> (x) y = Concat <axis = 1> (a, b) }"),  # noqa: E501
    ("each operand is needed", "(float[2,0] x, float[2,0] z) => (float[4,0] y) { y = Concat <axis = 0> (x, z) }"),
    ("each operand is needed", "(float[2,N] x, float[2,M] z) => (float[2,K] y) { y = Concat <axis = 1> (x, z) }"),
    ("keep its own name", "(float[2] x) => (float[2] y) { y = Concat <axis = 0> (x) }"),
]  # fmt: skip


test_keeps = keeps(PASS, KEPT)
