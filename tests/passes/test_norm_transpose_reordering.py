"""Heads are normalized before they are moved."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "norm_transpose_reordering"
IMPORTS = '<ir_version: 10, opset_import: ["" : 23]>'
HEAD = f"{IMPORTS} main (float[B,S,2,4] x) => (float[B,2,S,4] y)"
S = "float[4] s = {0.5, 1.5, 2.0, 1.0}"
B = "float[4] b = {0.5, 0.0, 1.0, 2.0}"
EACH = "float[2,1,4] s = {0.5, 1.5, 2.0, 1.0, 0.5, 1.5, 2.0, 3.0}"
ROWS = "int64[2] rows = {3, 4}"
MOVED = "t = Transpose<perm = [0, 2, 1, 3]> (x)"


@pytest.mark.parametrize(
    "norm",
    [
        "RMSNormalization<epsilon = 0.01> ({}, s)",
        "RMSNormalization<axis = 3> ({}, s)",
        "LayerNormalization<epsilon = 0.01> ({}, s, b)",
        "SimplifiedLayerNormalization ({}, s)",
    ],
)
def test_moves_behind(norm: str) -> None:
    check_rewrites(
        PASS,
        f"{HEAD} <{S}{', ' + B if 'b)' in norm else ''}> {{ {MOVED} y = {norm.format('t')} }}",
        f"n = {norm.format('x')} y = Transpose<perm = [0, 2, 1, 3]> (n)",
    )


KEPT = {
    "another order": (
        "no heads are moved",
        f"{IMPORTS} main (float[2,4,S,B] x) => (float[B,S,4,2] y) <float[2] s = {{0.5, 1.5}}>"
        " { t = Transpose (x) y = RMSNormalization (t, s) }",
    ),
    "two dimensions": (
        "more than the last dimension is normalized",
        f"{HEAD.replace('S,', '3,')} <{S}, {ROWS}> {{ {MOVED} e = Expand (s, rows)"
        " y = RMSNormalization<axis = -2> (t, e) }",
    ),
    "a weight for each head": (
        "a weight differs between positions or heads",
        f"{HEAD} <{EACH}> {{ {MOVED} y = RMSNormalization (t, s) }}",
    ),
    "other users": (
        "the heads are used elsewhere",
        f"{HEAD.replace('y)', 'y, float[B,2,S,4] z)')} <{S}> {{ {MOVED} y = RMSNormalization (t, s) z = Neg (t) }}",
    ),
    "statistics": (
        "its statistics are asked for",
        f"{HEAD.replace('y)', 'y, float[B,2,S,1] m)')} <{S}> {{ {MOVED} y, m = LayerNormalization (t, s) }}",
    ),
    "nothing is moved": (
        "comes before",
        f"{HEAD.replace('B,2,S,4', 'B,S,2,4')} <{S}> {{ y = RMSNormalization (x, s) }}",
    ),
}


test_keeps = keeps(PASS, KEPT)
