"""Unsqueeze goes if its list of axes is empty."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "unsqueeze_elimination"


def test_goes() -> None:
    check_rewrites(
        PASS,
        "main (float[N] x) => (float[N] y) <int64[0] a = {}> { t = Unsqueeze (x, a) y = Neg (t) }",
        after="main (float[N] x) => (float[N] y) { y = Neg (x) }",
    )


KEPT = [
    ("it moves elements", 17, "(float[N] x) => (float[N,1] y) <int64[1] a = {1}> { t = Unsqueeze (x, a) y = Neg (t) }"),
    ("the axes are not known", 17, "(float[N] x, int64[K] a) => (float[] y) { t = Unsqueeze (x, a) y = Neg (t) }"),
    ("it moves elements", 11, "(float[N] x) => (float[N,1] y) { t = Unsqueeze <axes = [1]> (x) y = Neg (t) }"),
]


@pytest.mark.parametrize(("because", "opset", "model"), KEPT)
def test_keeps(because: str, opset: int, model: str) -> None:
    check_keeps(PASS, f"main {model}", because, opset=opset)
