"""Rolls and transpositions of windows become one Gather."""

from __future__ import annotations

import re

import pytest

from ortopt.testing import check_rewrites

PASS = "roll_gather_fusion"
CONSTANTS = {
    "s": "int64[2] s = {1, 5}",
    "z": "int64[2] z = {5, 1}",
    "q": "int64[3] q = {1, 2, 3}",
    "half": "int64[2] half = {3, 3}",
    "image": "int64[4] image = {0, 6, 6, 16}",
    "windows": "int64[6] windows = {0, 2, 3, 2, 3, 16}",
    **{f"n{number}": f"int64[1] n{number} = {{{number}}}" for number in (0, 1, 2, 6)},
    "flat": "int64[3] flat = {-1, 9, 16}",
    "tokens": "int64[3] tokens = {0, 36, 16}",
}
ROLL = """
    a, b = Split <axis = 1> (i, s)
    c = Concat <axis = 1> (b, a)
    d, e = Split <axis = 2> (c, s)
    f = Concat <axis = 2> (e, d)"""
CUT = """
    g = Reshape (f, windows)
    t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (g)
    y = Reshape (t, flat)"""


def model(body: str, x: str = "float[2,36,16]", y: str = "float[M,9,16]") -> str:
    """A body with the constants that it names."""
    named = ", ".join(text for name, text in CONSTANTS.items() if re.search(rf", {name}\b", body))
    return f"main ({x} x) => ({y} y) <{named}> {{ {body} }}"


SLICED = """
    a = Slice (i, n0, n1, n1) b = Slice (i, n1, n6, n1)
    c = Concat <axis = 1> (b, a)
    d = Slice (c, n0, n1, n2) e = Slice (c, n1, n6, n2)
    f = Concat <axis = 2> (e, d)"""
INTO_WINDOWS = f"i = Reshape (x, image) {ROLL} {CUT}"
OUT_OF_WINDOWS = """
    w = Reshape (x, windows)
    t = Transpose <perm = [0, 1, 3, 2, 4, 5]> (w)
    i = Reshape (t, image)
    a, b = Split <axis = 1> (i, z)
    c = Concat <axis = 1> (b, a)
    d, e = Split <axis = 2> (c, z)
    f = Concat <axis = 2> (e, d)
    y = Reshape (f, tokens)"""
ONE = {"Gather": 1, "Slice": 0, "Split": 0, "Concat": 0, "Transpose": 0}

REWRITTEN = {
    "into windows": model(INTO_WINDOWS),
    "out of windows": model(OUT_OF_WINDOWS, "float[2,36,16]", "float[2,36,16]"),
    "a batch of any size": model(INTO_WINDOWS, "float[N,36,16]"),
    "integers": model(INTO_WINDOWS, "int64[2,36,16]", "int64[M,9,16]"),
    "rolls alone": model(f"i = Reshape (x, image) {ROLL.replace('f =', 'y =')}", "float[2,36,16]", "float[2,6,6,16]"),
    "by Slices": model(f"i = Reshape (x, image) {SLICED} {CUT}"),
    "an image as it comes": model(f"i = Identity (x) {ROLL} {CUT}", "float[2,6,6,16]"),
    "three parts": model(
        INTO_WINDOWS.replace("a, b = Split <axis = 1> (i, s)", "a, b, h = Split <axis = 1> (i, q)").replace(
            "(b, a)", "(h, a, b)"
        )
    ),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    check_rewrites(PASS, REWRITTEN[name], ops=ONE)
