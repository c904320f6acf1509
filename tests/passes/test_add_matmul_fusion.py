"""A constant row before a linear layer becomes a part of its bias."""

from __future__ import annotations

import pytest

from ortopt.testing import check_rewrites

PASS = "add_matmul_fusion"
CONSTANTS = "float[2] c = {3, -1}, float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}"
LAYER = "s = Add (x, c) m = MatMul (s, w) y = Add (m, b)"


def model(nodes: str = LAYER, constants: str = CONSTANTS, x: str = "float[N,S,2]", y: str = "float[N,S,3]") -> str:
    return f"main ({x} x) => ({y} y) <{constants}> {{ {nodes} }}"


AFTER = "float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {0, 3, 6}"


@pytest.mark.parametrize("total", ["Add (x, c)", "Add (c, x)"])
@pytest.mark.parametrize("end", ["Add (m, b)", "Add (b, m)"])
@pytest.mark.parametrize("row", ["float[2] c", "float[1,1,2] c"])
def test_fuses(total: str, end: str, row: str) -> None:
    text = model(f"s = {total} m = MatMul (s, w) y = {end}", CONSTANTS.replace("float[2] c", row))
    check_rewrites(PASS, text, model("m = MatMul (x, w) y = Add (m, b)", AFTER))
