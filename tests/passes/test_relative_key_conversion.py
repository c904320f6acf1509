"""Keys by relative position are multiplied once for each distance."""

from __future__ import annotations

import re

import numpy as np
import onnxruntime as ort
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import parse, run

PASS = "relative_key_conversion"
CONSTANTS = {
    "float[9,4] table": [(place * 7 % 11 - 5) / 8 for place in range(36)],
    "float[9,9,4] tables": [(place * 7 % 11 - 5) / 8 for place in range(324)],
    **{f"int64 {name}": (value,) for name, value in {"zero": 0, "one": 1, "four": 4, "less": -4}.items()},
    "int64[1,2] wide": (4, 4),
    **{f"int64[1] {name}": (value,) for name, value in {"first": 0, "second": 1, "two": 2}.items()},
    "int64[2] column": (-1, 1),
    "int64[2] row": (1, -1),
}
"""ONNX Runtime's Einsum ends the process where a dimension is 0: numbers are compared where none is."""

POSITIONS = """
    s = Shape <start = 2, end = 3> (q)
    n = Squeeze (s)
    r = Range (zero, n, one)
    i = Unsqueeze (r, second)
    j = Unsqueeze (r, first)"""
NEAR = """
    near = Clip (d, less, four)
    which = Add (near, four)
    keys = Gather (table, which)"""
QUERY = """
    y = Einsum <equation = "bhld,lrd->bhlr"> (q, keys)"""
KEY = QUERY.replace("bhld", "bhrd")
BY_QUERY = f"{POSITIONS} d = Sub (j, i) {NEAR} {QUERY}"


def model(body: str, inputs: str = "float[B,2,N,4] q", outputs: str = "float[B,2,N,N] y") -> str:
    """A body with the constants that it names."""
    named = [
        f"{declared} = {{{', '.join(map(str, numbers))}}}"
        for declared, numbers in CONSTANTS.items()
        if re.search(rf"\b{declared.split()[1]}\b", body)
    ]
    return f"main ({inputs}) => ({outputs}) <{', '.join(named)}> {{ {body} }}"


REWRITTEN = {
    "a query's distance to keys": BY_QUERY,
    "the other sign": BY_QUERY.replace("(j, i)", "(i, j)"),
    "a key's distance to queries": f"{POSITIONS} d = Sub (j, i) {NEAR} {KEY}",
    "a key's, with the other sign": f"{POSITIONS} d = Sub (i, j) {NEAR} {KEY}",
    "keys first": BY_QUERY.replace("bhld,lrd->", "lrd,bhld->").replace("(q, keys)", "(keys, q)"),
    "a result with columns first": BY_QUERY.replace("->bhlr", "->bhrl"),
    "positions spread by Reshape": BY_QUERY.replace("Unsqueeze (r, second)", "Reshape (r, column)").replace(
        "Unsqueeze (r, first)", "Reshape (r, row)"
    ),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_same_at_every_size(name: str) -> None:
    before, after = (parse(model(REWRITTEN[name])) for _ in range(2))
    assert run(PASS, after)[0]
    sessions = [ort.InferenceSession(to_bytes(one), providers=["CPUExecutionProvider"]) for one in (before, after)]
    for size in (1, 2, 3, 5, 8, 17):
        feeds = {"q": np.random.default_rng(size).standard_normal((3, 2, size, 4)).astype(np.float32)}
        expected, got = (session.run(None, feeds)[0] for session in sessions)
        assert expected.shape == got.shape == (3, 2, size, size)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
