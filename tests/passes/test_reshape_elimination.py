"""A Reshape goes only if its target is the shape that x has."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "reshape_elimination"


@pytest.mark.parametrize("target", ["0, 4", "-1, 4", "0, -1", "0, 0"])
@pytest.mark.parametrize("first", ["N", "?"])
def test_goes(first: str, target: str) -> None:
    check_rewrites(
        PASS,
        before=f"""main (float[{first},4] x) => (float[{first},4] y) <int64[2] s = {{{target}}}> {{
            t = Reshape (x, s) y = Neg (t) }}""",
        after="y = Neg (x)",
    )


def test_by_symbols() -> None:
    check_rewrites(
        PASS,
        before="main (float[N,M] x, float[N,M] z) => (float[N,M] y) { s = Shape (z) t = Reshape (x, s) y = Neg (t) }",
        after="y = Neg (x)",
    )


KEPT = [
    ("it moves elements", "(float[N,4] x) => (float[A] y) <int64[1] s = {-1}>", ""),
    ("it moves elements", "(float[N,4] x) => (float[4,A] y) <int64[2] s = {4, -1}>", ""),
    ("it moves elements", "(float[N,4] x) => (float[0,4] y) <int64[2] s = {0, 4}>", "<allowzero = 1>"),
    ("the target shape is not known", "(float[N,4] x, int64[2] s) => (float[N,4] y)", ""),
    ("it moves elements", "(float[N,0] x) => (float[A,0] y) <int64[2] s = {-1, 0}>", "<allowzero = 1>"),
]


@pytest.mark.parametrize(("because", "head", "attributes"), KEPT)
def test_keeps(because: str, head: str, attributes: str) -> None:
    check_keeps(PASS, f"main {head} {{ t = Reshape {attributes} (x, s) y = Neg (t) }}", because)
