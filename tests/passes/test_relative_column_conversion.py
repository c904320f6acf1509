"""Products of a table are computed for the distances that occur, not for all that it knows."""

from __future__ import annotations

import re

import numpy as np
import onnxruntime as ort
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import parse, run

PASS = "relative_column_conversion"
ROWS, SMALL = 480, 40
CONSTANTS = {
    f"float[2,{ROWS},3] table": [(place * 7 % 11 - 5) / 8 for place in range(2 * ROWS * 3)],
    f"float[2,3,{ROWS}] columns": [(place * 7 % 11 - 5) / 8 for place in range(2 * ROWS * 3)],
    f"float[2,3,{SMALL}] few": [(place * 7 % 11 - 5) / 8 for place in range(2 * SMALL * 3)],
    **{f"int64 {name}": (value,) for name, value in {"zero": 0, "one": 1, "middle": 240, "most": 479}.items()},
    **{f"int64[1] {name}": (value,) for name, value in {"first": 0, "second": 1}.items()},
    "int64[2] ones": (1, 1),
    "int64[2] leading": (0, 1),
    "int64[1] heads": (2,),
    "int64[1] back": (-1,),
    "int64[1] width": (3,),
    "int64 thirty": (30,),
    "int64[3] twice": (1, 3, 1),
    f"float[2,1,{ROWS}] flat": [(place * 7 % 11 - 5) / 8 for place in range(2 * ROWS)],
    "float unit": (1.0,),
    f"float[3,{ROWS}] shared": [(place * 7 % 11 - 5) / 8 for place in range(ROWS * 3)],
}
POSITIONS = """
    s = Shape <start = 1, end = 2> (q)
    n = Squeeze (s)
    r = Range (zero, n, one)
    i = Unsqueeze (r, second)
    j = Unsqueeze (r, first)"""
INDEX = """
    d = Sub (i, j)
    f = Unsqueeze (d, leading)
    o = Add (f, middle)
    c = Clip (o, zero, most)
    m = Squeeze (c, first)"""
SIZES = """
    l = Shape <start = 0, end = 1> (q)
    to = Concat <axis = 0> (l, s, s)
    e = Expand (m, to)"""
TAKEN = """
    p = MatMul (q, columns)
    y = GatherElements <axis = -1> (p, e)"""
TURNED = """
    k = Transpose <perm = [0, 2, 1]> (q)
    p = MatMul (table, k)
    y = GatherElements <axis = 1> (p, e)"""
PLAIN = POSITIONS + INDEX + SIZES + TAKEN
AS_ROWS = f"""{POSITIONS} {INDEX}
    t = Transpose <perm = [0, 2, 1]> (m) {SIZES.replace("(m,", "(t,")} {TURNED}"""


def model(body: str, inputs: str = "float[2,N,3] q", outputs: str = "float[2,N,N] y") -> str:
    """A body with the constants that it names."""
    named = [
        f"{declared} = {{{', '.join(map(str, numbers))}}}"
        for declared, numbers in CONSTANTS.items()
        if re.search(rf"\b{declared.split()[1]}\b", body)
    ]
    return f"main ({inputs}) => ({outputs}) <{', '.join(named)}> {{ {body} }}"


REWRITTEN = {
    "columns": PLAIN,
    "the other sign": PLAIN.replace("Sub (i, j)", "Sub (j, i)"),
    "a table that is turned": PLAIN.replace("MatMul (q, columns)", "MatMul (q, turned)").replace(
        "p = ", "turned = Transpose <perm = [0, 2, 1]> (table) p = "
    ),
    "rows of the product": AS_ROWS,
    "rows, with the other sign": AS_ROWS.replace("Sub (i, j)", "Sub (j, i)"),
    "rows, of an index that is not turned": POSITIONS + INDEX + SIZES + TURNED,
}
BATCHED = f"""
    b = Shape <start = 0, end = 1> (x)
    s = Shape <start = 2, end = 3> (x)
    every = Mul (b, heads)
    shape = Concat <axis = 0> (every, s, width)
    q = Reshape <allowzero = 1> (x, shape)
    n = Squeeze (s) {POSITIONS.split("(s)")[1]} {INDEX} {SIZES}
    times = Concat <axis = 0> (b, ones)
    again = Tile (columns, times) {TAKEN.replace("columns", "again")}"""
IN_BATCHES = f"""{BATCHED}
    some = Concat <axis = 0> (b, s, back)
    rest = Reshape (x, some)"""
"""No size can be inferred beside one of 0: the model has a batch where it runs."""

INPUT, RESULTS = "float[B,2,N,3] x", "float[M,N,N] y, float[B,N,R] rest"


def compare(text: str, name: str, shapes: list[tuple[int, ...]]) -> None:
    """The same numbers before and after, for inputs of some shapes."""
    before, after = (parse(text) for _ in range(2))
    assert run(PASS, after)[0]
    sessions = [ort.InferenceSession(to_bytes(one), providers=["CPUExecutionProvider"]) for one in (before, after)]
    for shape in shapes:
        feeds = {name: np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
        expected, got = (session.run(None, feeds)[0] for session in sessions)
        assert expected.shape == got.shape
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", REWRITTEN)
def test_same_at_every_size(name: str) -> None:
    """Also where there are more positions than the table knows distances, and where there are none."""
    compare(model(REWRITTEN[name]), "q", [(2, size, 3) for size in (0, 1, 2, 3, 8, 17, 240, 500)])


def test_same_in_batches() -> None:
    compare(model(IN_BATCHES, INPUT, RESULTS), "x", [(1, 2, 1, 3), (3, 2, 5, 3), (2, 2, 40, 3)])
