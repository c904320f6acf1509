"""A Gather by a range plus a column of offsets is a few Slices."""

from __future__ import annotations

import re

import numpy as np
import onnxruntime as ort
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, parse, run

PASS = "sliding_gather_decomposition"
CONSTANTS = {
    **{f"int64 {name}": (value,) for name, value in {"zero": 0, "one": 1, "two": 2, "less": -1, "three": 3}.items()},
    **{f"int64[1] {name}": (value,) for name, value in {"first": 0, "second": 1, "last": 2}.items()},
    "int64[3,1] column": (0, 1, 2),
    "int64[2,1] gaps": (0, 4),
    "int64[3,1] negative": (-1, 0, 1),
    "int64[1,1] single": (1,),
    "int64[1,3] row": (0, 1, 2),
    "int64[17,1] many": tuple(range(17)),
    "int64[6] pads": (0, 0, 1, 0, 0, 1),
    "int64[6] wide": (0, 0, 0, 0, 0, 4),
}
LENGTH = """
    s = Shape (x)
    b = Gather (s, last)
    n = Squeeze (b, first)"""
UNFOLD = f"""{LENGTH}
    p = Pad (x, pads)
    r = Range (zero, n, one)
    u = Unsqueeze (r, first)
    i = Add (u, column)
    y = Gather <axis = 2> (p, i)"""


def model(body: str, x: str = "float[B,2,N] x", y: str = "float[B,2,K,M] y") -> str:
    """A body with the constants that it names."""
    named = [
        f"{declared} = {{{', '.join(map(str, numbers))}}}"
        for declared, numbers in CONSTANTS.items()
        if re.search(rf"\b{declared.split()[1]}\b", body)
    ]
    return f"main ({x}) => ({y}) <{', '.join(named)}> {{ {body} }}"


REWRITTEN = {
    "positions side by side": UNFOLD,
    "the column first": UNFOLD.replace("(u, column)", "(column, u)"),
    "an axis from the end": UNFOLD.replace("axis = 2", "axis = -1"),
    "every second": UNFOLD.replace("(zero, n, one)", "(zero, n, two)"),
    "with gaps": UNFOLD.replace("pads", "wide").replace("column", "gaps"),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_same_bits_at_every_length(name: str) -> None:
    before, after = (parse(model(REWRITTEN[name])) for _ in range(2))
    assert run(PASS, after)[0]
    sessions = [ort.InferenceSession(to_bytes(one), providers=["CPUExecutionProvider"]) for one in (before, after)]
    for batch, length in ((0, 3), (2, 0), (1, 1), (1, 2), (3, 7), (2, 32)):
        feeds = {"x": np.random.default_rng(length).standard_normal((batch, 2, length)).astype(np.float32)}
        expected, got = (session.run(None, feeds)[0] for session in sessions)
        np.testing.assert_array_equal(got, expected)


KEPT = {
    "the gain was measured for single precision only": (UNFOLD, "double[B,2,N] x", "double[B,2,K,M] y"),
    "it takes rows, which are copied as they are": (
        UNFOLD.replace("p = Pad (x, pads)", "p = Identity (x)").replace("axis = 2", "axis = 0"),
        "",
        "float[K,M,2,N] y",
    ),
    "an offset is negative": (UNFOLD.replace("column", "negative"), "", ""),
    "the range is no row": (
        UNFOLD.replace("(r, first)", "(r, second)").replace("column", "column"),
        "",
        "float[B,2,K,M] y",
    ),
    "the range does not count from 0": (UNFOLD.replace("(zero, n, one)", "(one, n, one)"), "", ""),
    "the range does not count upwards": (UNFOLD.replace("(zero, n, one)", "(zero, n, less)"), "", ""),
    "the range may end below 0": (UNFOLD.replace("r = ", "m = Sub (n, three) r = ").replace(", n,", ", m,"), "", ""),
}


@pytest.mark.parametrize("because", KEPT)
def test_kept(because: str) -> None:
    body, x, y = KEPT[because]
    check_keeps(PASS, model(body, x or "float[B,2,N] x", y or "float[B,2,K,M] y"), because)
