"""Flatten goes if a matrix keeps its shape."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "flatten_elimination"


@pytest.mark.parametrize(
    ("shape", "axis"), [("N,M", 1), ("N,4", -1), ("1,M", 0), ("1,M", -2), ("N,1", 2), ("0,4", 1), ("1,0", 0)]
)
def test_goes(shape: str, axis: int) -> None:
    check_rewrites(
        PASS,
        f"main (float[{shape}] x) => (float[{shape}] y) {{ t = Flatten <axis = {axis}> (x) y = Neg (t) }}",
        after="y = Neg (x)",
    )


KEPT = [
    ("it moves elements", "(float[N] x) => (float[A,B] y) { t = Flatten (x) y = Neg (t) }"),
    ("it moves elements", "(float[N,4,1] x) => (float[A,B] y) { t = Flatten (x) y = Neg (t) }"),
    ("it moves elements", "(float[N,4] x) => (float[A,B] y) { t = Flatten <axis = 0> (x) y = Neg (t) }"),
    ("it moves elements", "(float[1,4] x) => (float[A,B] y) { t = Flatten <axis = 2> (x) y = Neg (t) }"),
    ("the shape is unknown", "(float[] x) => (float[A,B] y) { t = Flatten (x) y = Neg (t) }"),
    ("keep its own name", "(float[N,M] x) => (float[N,M] y) { y = Flatten (x) }"),
]


test_keeps = keeps(PASS, KEPT)
