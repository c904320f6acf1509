"""Squeeze goes if it drops nothing, which is sure only where no dimension may be 1."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "squeeze_elimination"


@pytest.mark.parametrize(("opset", "shape"), [(11, "2,3"), (13, "2,3"), (13, "0,3"), (13, "2")])
def test_goes(opset: int, shape: str) -> None:
    check_rewrites(
        PASS,
        f"main (float[{shape}] x) => (float[{shape}] y) {{ t = Squeeze (x) y = Neg (t) }}",
        after="y = Neg (x)",
        opset=opset,
    )


KEPT = [
    ("a dimension may be 1", "(float[N] x) => (float[] y) { t = Squeeze (x) y = Neg (t) }"),
    ("it moves elements", "(float[2,1] x) => (float[2] y) { t = Squeeze (x) y = Neg (t) }"),
    ("it moves elements", "(float[2,1] x) => (float[2] y) <int64[1] a = {1}> { t = Squeeze (x, a) y = Neg (t) }"),
    ("the axes are not known", "(float[2,1] x, int64[1] a) => (float[] y) { t = Squeeze (x, a) y = Neg (t) }"),
    ("the shape is unknown", "(float[] x) => (float[] y) { t = Squeeze (x) y = Neg (t) }"),
]


test_keeps = keeps(PASS, KEPT)
