"""An Expand goes only if no dimension can grow."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "expand_elimination"


@pytest.mark.parametrize("target", ["[2] s = {1, 4}", "[1] s = {4}", "[1] s = {1}", "[0] s = {}"])
def test_goes(target: str) -> None:
    check_rewrites(
        PASS,
        before=f"main (float[N,4] x) => (float[N,4] y) <int64{target}> {{ t = Expand (x, s) y = Neg (t) }}",
        after="main (float[N,4] x) => (float[N,4] y) { y = Neg (x) }",
    )


def test_by_symbols() -> None:
    check_rewrites(
        PASS,
        before="main (float[N,M] x, int64[N,M] z) => (float[N,M] y) { s = Shape (z) t = Expand (x, s) y = Neg (t) }",
        after="y = Neg (x)",
    )


KEPT = [
    ("it enlarges the rank", "(float[4] x) => (float[1,4] y) <int64[2] s = {1, 4}>"),
    ("it may enlarge a dimension", "(float[1,4] x) => (float[3,4] y) <int64[2] s = {3, 4}>"),
    ("it may enlarge a dimension", "(float[N,4] x) => (float[3,4] y) <int64[2] s = {3, 4}>"),
    ("it may enlarge a dimension", "(float[1,4] x) => (float[0,4] y) <int64[2] s = {0, 4}>"),
    ("the target shape is not known", "(float[N,4] x, int64[2] s) => (float[A,B] y)"),
]


@pytest.mark.parametrize(("because", "head"), KEPT)
def test_keeps(because: str, head: str) -> None:
    check_keeps(PASS, f"main {head} {{ t = Expand (x, s) y = Neg (t) }}", because)
