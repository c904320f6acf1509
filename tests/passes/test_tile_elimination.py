"""Tile goes only if it is known to repeat each axis once."""

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "tile_elimination"


def test_goes() -> None:
    check_rewrites(
        PASS,
        "main (float[N,4] x) => (float[N,4] y) <int64[2] r = {1, 1}> { t = Tile (x, r) y = Neg (t) }",
        after="main (float[N,4] x) => (float[N,4] y) { y = Neg (x) }",
    )


def test_a_scalar() -> None:
    check_rewrites(
        PASS, "main (float x) => (float y) <int64[0] r = {}> { t = Tile (x, r) y = Neg (t) }", ops={"Tile": 0}
    )


KEPT = [
    ("it repeats something", "(float[4] x) => (float[8] y) <int64[1] r = {2}> { t = Tile (x, r) y = Neg (t) }"),
    ("takes nothing", "(float[4] x) => (float[0] y) <int64[1] r = {0}> { t = Tile (x, r) y = Neg (t) }"),
    ("the repeats are not known", "(float[4] x, int64[1] r) => (float[M] y) { t = Tile (x, r) y = Neg (t) }"),
    ("the repeats are not known", "(float[4] x, int64[1] r = {1}) => (float[M] y) { t = Tile (x, r) y = Neg (t) }"),
    ("keep its own name", "(float[4] x) => (float[4] y) <int64[1] r = {1}> { y = Tile (x, r) }"),
]


test_keeps = keeps(PASS, KEPT)
