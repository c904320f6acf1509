"""Split goes if its one needed part is all of its input."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "split_elimination"


@pytest.mark.parametrize(
    ("opset", "constants", "spelling"),
    [
        (11, "", "t = Split (x)"),
        (11, "", "t = Split <split = [4], axis = 1> (x)"),
        (13, "", "t = Split <axis = -1> (x)"),
        (13, "<int64[1] s = {4}>", "t = Split <axis = 1> (x, s)"),
        (18, "", "t = Split <num_outputs = 1> (x)"),
        (18, "<int64[2] s = {4, 0}>", "t, u = Split <axis = 1> (x, s)"),
        (18, "<int64[2] s = {0, 4}>", "u, t = Split <axis = -1> (x, s)"),
        (11, "", "u, t, v = Split <axis = 1, split = [0, 4, 0]> (x)"),
    ],
)
def test_goes(opset: int, constants: str, spelling: str) -> None:
    check_rewrites(
        PASS,
        f"main (float[N,4] x) => (float[N,4] y) {constants} {{ {spelling} y = Neg (t) }}",
        ops={"Split": 0},
        opset=opset,
    )


def test_no_elements() -> None:
    check_rewrites(PASS, "main (float[0] x) => (float[0] y) { t, u = Split (x) y = Neg (t) }", ops={"Split": 0})


KEPT = [
    ("several parts are needed", "(float[4] x) => (float[2] y, float[2] z) { y, z = Split (x) }"),
    ("several parts are needed", "(float[4] x) => (float[4] y, float[0] z) <int64[2] s = {4, 0}> { y, z = Split (x, s) }"),  # noqa: E501
    ("the sizes of the parts are not known", "(float[4] x, int64[2] s) => (float[M] y) { t, u = Split (x, s) y = Neg (t) }"),  # noqa: E501
    ("it leaves something out", "(float[N] x) => (float[3] y) <int64[2] s = {3, 0}> { t, u = Split (x, s) y = Neg (t) }"),  # noqa: E501
    ("it leaves something out", "(float[4] x) => (float[0] y) <int64[2] s = {4, 0}> { u, t = Split (x, s) y = Neg (t) }"),  # noqa: E501
    ("keep its own name", "(float[4] x) => (float[4] y) { y = Split (x) }"),
]  # fmt: skip


test_keeps = keeps(PASS, KEPT)
