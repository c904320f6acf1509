"""Tile becomes Expand only where what it repeats is proven to be single elements."""

import pytest

from ortopt.api import optimize
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.tables import keeps

PASS = "tile_canonicalization"


def model(repeats: str, x: str, y: str, kind: str = "float") -> str:
    rank = x.count(",") + 1
    return f"main ({kind}[{x}] x) => ({kind}[{y}] y) <int64[{rank}] r = {{{repeats}}}> {{ y = Tile (x, r) }}"


@pytest.mark.parametrize(
    ("repeats", "x", "y"),
    (
        ("1, 1, 5", "N,3,1", "N,3,5"),
        ("1, 5, 1", "N,1,3", "N,5,3"),
        ("2, 1, 5", "1,3,1", "2,3,5"),
        ("1, 0", "3,1", "3,0"),
        ("0, 1", "1,N", "0,N"),
        ("7", "1", "7"),
    ),
)
def test_single_elements(repeats: str, x: str, y: str) -> None:
    check_rewrites(
        PASS,
        model(repeats, x, y),
        after=model(repeats, x, y).replace("Tile", "Expand"),
    )


@pytest.mark.parametrize("kind", ("double", "float16", "int32", "bool", "string"))
def test_kinds(kind: str) -> None:
    check_rewrites(PASS, model("1, 4", "N,1", "N,4", kind), ops={"Tile": 0, "Expand": 1})


def test_repeats_that_are_computed() -> None:
    """As many as another value has columns."""
    check_rewrites(
        PASS,
        """main (float[N,3,T] z, float[N,3,1] x) => (float[N,3,T] y) <int64[2] one = {1, 1}> {
            t = Shape <start = 2> (z) r = Concat <axis = 0> (one, t) y = Tile (x, r)
        }""",
        ops={"Tile": 0, "Expand": 1},
        opset=17,
    )


def test_a_mean_beside_what_it_is_of() -> None:
    """As statistics pooling repeats it; where it is subtracted, it need not be repeated."""
    model = parse(
        """main (float[N,3,T] x) => (float[N,3,T] y) <int64[2] one = {1, 1}> {
            m = ReduceMean <axes = [2]> (x) t = Shape <start = 2> (x) r = Concat <axis = 0> (one, t) w = Tile (m, r)
            y = Sub (x, w)
        }""",
        opset=17,
    )
    result = optimize(model, level=1, verify=False).model
    assert [node.op_type for node in result.graph] == ["ReduceMean", "Sub"]


test_stays = keeps(
    PASS,
    (
        ("may have several elements", model("1, 2", "N,3", "N,6")),
        ("may have several elements", model("2, 1", "N,1", "M,1")),
        ("repeats nothing", model("1, 1", "N,1", "N,1")),
        ("repeats are not known", "main (float[N,1] x, int64[2] r) => (float[A,B] y) { y = Tile (x, r) }"),
    ),
)


def test_before_there_was_expand() -> None:
    check_keeps(PASS, model("1, 5", "N,1", "N,5"), opset=7)
