"""A ScatterND goes only if its indices name every place, each in its place."""

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "scatter_elimination"
CONSTANTS = """int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}, int64[3] column = {-1, 1, 1},
    int64[2] row = {-1, 1}"""
PARTS = """whole = Shape (x) n = Gather <axis = 0> (whole, zero) m = Gather <axis = 0> (whole, one)
    a = Range (zero, n, one) ac = Reshape (a, column) ae = Expand (ac, whole) au = Unsqueeze (ae, last)
    b = Range (zero, m, one) bc = Reshape (b, row) be = Expand (bc, whole) bu = Unsqueeze (be, last)
    c = Expand (four, whole) cu = Unsqueeze (c, last)
    i = Concat <axis = -1> (au, bu, cu) y = ScatterND (x, i, u)"""
FOUR = ", int64[4] four = {0, 1, 2, 3}"


def model(nodes: str = PARTS, x: str = "float[N,M,4] x", u: str = "float[N,M,4] u", four: str = FOUR) -> str:
    return f"main ({x}, {u}) => (float[N,M,4] z) <{CONSTANTS}{four}> {{ {nodes} z = Neg (y) }}"


AFTER = "main ({x}, float[N,M,4] u) => (float[N,M,4] z) {{ z = Neg (u) }}"


def test_all_places() -> None:
    check_rewrites(PASS, model(), AFTER.format(x="float[N,M,4] x"))


def test_an_axis_of_one() -> None:
    text = model(four=", int64[1,1,1] four = {0}").replace("[N,M,4]", "[N,M,1]")
    check_rewrites(PASS, text, AFTER.format(x="float[N,M,1] x").replace("[N,M,4]", "[N,M,1]"))


def test_static_sizes() -> None:
    check_rewrites(PASS, model().replace("[N,M,4]", "[2,3,4]"), ops={"ScatterND": 0})


TWICE = model(four=", int64[2,4] four = {0, 1, 2, 3, 0, 1, 2, 3}").replace("[N,M,4]", "[3,2,4]")
BACKWARDS = PARTS.replace("a = Range (zero, n, one)", "s = Sub (n, one) a = Range (s, less, less)")
KEPT = {
    "the updates are combined": model(PARTS.replace("ScatterND", 'ScatterND <reduction = "add">')),
    "the updates may be others than all": model(PARTS.replace("Shape (x)", "Shape (u)"), u="float[K,M,4] u"),
    "the indices do not count from 0": model(BACKWARDS, four=FOUR + ", int64 less = {-1}"),
    "not count from 0": model(four=", int64[4] four = {0, 1, 3, 2}"),
    "an input left out": model(PARTS.replace("(au, bu, cu)", "(ab, cu)").replace(
        "i =", "ab = Concat <axis = -1> (au, bu) i =")),
    "the indices may be for a part": model(PARTS.replace("(b, row)", "(b, column)")),
    "an index is not for one axis": TWICE,
    "not all positions are named": model(PARTS.replace("b = Range (zero, m, one)", "b = Range (zero, one, one)")
                                         .replace("m = Gather <axis = 0> (whole, one)", "")),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)
