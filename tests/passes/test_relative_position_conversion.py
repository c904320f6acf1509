"""A bias by relative position is computed for each difference once."""

from __future__ import annotations

import re

import numpy as np
import onnxruntime as ort
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, check_rewrites, parse, run

PASS = "relative_position_conversion"
TABLE = np.arange(32 * 4, dtype=np.float32) % 57 / 8
CONSTANTS = {
    "float[32,4] table": TABLE,
    **{f"int64 {name}": (value,) for name, value in {"zero": 0, "one": 1, "eight": 8, "many": 16, "most": 15}.items()},
    "int64 two": (2,),
    "int64[1,1] wide": (8,),
    **{f"int64[1] {name}": (value,) for name, value in {"first": 0, "second": 1, "back": -1}.items()},
    **{f"float {name}": (value,) for name, value in {"small": 8.0, "scale": 2.885390043258667}.items()},
}
POSITIONS = """
    s = Shape (x)
    n = Squeeze (s)
    r = Range (zero, n, one)"""
PAIRS = """
    i = Unsqueeze (r, second)
    j = Unsqueeze (r, first)
    d = Sub (j, i)"""
SIDE = """
    g = Greater (d, zero)
    h = Cast <to = 7> (g)
    side = Mul (h, many)"""
DISTANCE = """
    a = Abs (d)"""
NEAR_OR_FAR = """
    near = Less (a, eight)
    f = Cast <to = 1> (a)
    q = Div (f, small)
    l = Log (q)
    m = Mul (l, scale)
    t = Cast <to = 7> (m)
    e = Add (t, eight)
    far = Min (e, most)
    w = Where (near, a, far)"""
BUCKETS = f"""{SIDE} {DISTANCE} {NEAR_OR_FAR}
    b = Add (side, w)"""
ONE_SIDED = f"""
    c = Min (d, zero)
    a = Neg (c) {NEAR_OR_FAR}
    b = Abs (w)"""
LOOKUP = """
    rows = Gather (table, b)
    y = Transpose <perm = [2, 0, 1]> (rows)"""
T5 = POSITIONS + PAIRS + BUCKETS + LOOKUP


def model(body: str, outputs: str = "float[4,N,N] y") -> str:
    """A body with the constants that it names."""
    named = [
        f"{declared} = {{{', '.join(map(str, numbers))}}}"
        for declared, numbers in CONSTANTS.items()
        if re.search(rf"\b{declared.split()[1]}\b", body)
    ]
    return f"main (float[N] x) => ({outputs}) <{', '.join(named)}> {{ {body} }}"


REWRITTEN = {
    "differences that grow with the column": T5,
    "differences that grow with the row": T5.replace("Sub (j, i)", "Sub (i, j)"),
    "an axis from the end": T5.replace("Unsqueeze (r, second)", "Unsqueeze (r, back)"),
    "one direction": POSITIONS + PAIRS + ONE_SIDED + LOOKUP,
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    check_rewrites(PASS, model(REWRITTEN[name]), ops={"Tile": 1, "Slice": 2, "Range": 1, "Log": 1, "Unsqueeze": 0})


@pytest.mark.parametrize("order", ["Sub (j, i)", "Sub (i, j)"])
def test_same_bits_at_every_size(order: str) -> None:
    before, after = (parse(model(T5.replace("Sub (j, i)", order))) for _ in range(2))
    assert run(PASS, after)[0]
    sessions = [ort.InferenceSession(to_bytes(one), providers=["CPUExecutionProvider"]) for one in (before, after)]
    for size in (0, 1, 2, 3, 8, 15, 16, 17, 33, 130):
        feeds = {"x": np.zeros(size, np.float32)}
        expected, got = (session.run(None, feeds)[0] for session in sessions)
        assert expected.shape == (4, size, size)
        np.testing.assert_array_equal(got, expected)


TWO = POSITIONS.replace("r = ", "o = Range (zero, n, one) r = ") + PAIRS.replace("(r, first)", "(o, first)")
FROM_ONE = POSITIONS.replace("n = Squeeze (s)", "k = Squeeze (s) n = Add (k, one)").replace("(zero, ", "(one, ")
BY_TWO = POSITIONS.replace("n = Squeeze (s)", "k = Squeeze (s) n = Add (k, k)").replace(" one)", " two)")
KEPT = {
    "another order of axes": (T5.replace("[2, 0, 1]", "[2, 1, 0]"), "the rows do not become columns"),
    "positions from 1": (FROM_ONE + PAIRS + BUCKETS + LOOKUP, "the positions do not count from 0"),
    "steps of two": (BY_TWO + PAIRS + BUCKETS + LOOKUP, "the positions do not count from 0"),
    "two ranges": (TWO + BUCKETS + LOOKUP, "the positions are of two ranges"),
    "little to save": (POSITIONS + PAIRS + DISTANCE.replace("a =", "b =") + LOOKUP, "but with nodes 4 or more"),
    "a number of each row": (
        T5.replace("near = Less (a, eight)", "c = ReduceMax <axes = [1]> (d) near = Less (a, c)"),
        "it is computed of something else than differences of positions",
    ),
    "a matrix of constants": (
        T5.replace("Less (a, eight)", "Less (a, wide)"),
        "a constant is no single number",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    body, because = KEPT[name]
    check_keeps(PASS, model(body), because)


def test_kept_for_another_user() -> None:
    check_keeps(PASS, model(T5 + " z = Neg (a)", "float[4,N,N] y, int64[N,N] z"), "used elsewhere")


def test_kept_below_opset_14() -> None:
    check_keeps(PASS, model(T5), opset=13)


@pytest.mark.parametrize(
    "more", ["int64[N,N] d", "int64[N,N] side", "float[N,N] l", "int64[N,N] b", "float[N,N,4] rows"]
)
def test_kept_where_a_step_is_a_result(more: str) -> None:
    check_keeps(PASS, model(T5, f"float[4,N,N] y, {more}"), "used elsewhere")
