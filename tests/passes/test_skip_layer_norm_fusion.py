"""A sum and the LayerNormalization behind it become one SkipLayerNormalization."""

from functools import partial

import pytest

from ortopt.options import Options
from ortopt.testing import check_keeps

PASS = "skip_layer_norm_fusion"
CUDA = "CUDAExecutionProvider"
keeps = partial(check_keeps, PASS, options=Options(providers=(CUDA,)))
NORM = "y = LayerNormalization <epsilon = 0.001> (t, g, b)"


def model(
    body: str = f"t = Add (x, s) {NORM}",
    *,
    x: str = "N,M,8",
    s: str = "N,M,8",
    g: str = "8",
    b: str = "8",
    y: str = "N,M,8",
    more: str = "",
    out: str = "",
    dtype: str = "float",
) -> str:
    return f"""main ({dtype}[{x}] x, {dtype}[{s}] s, {dtype}[{g}] g, {dtype}[{b}] b{more})
        => ({dtype}[{y}] y{out}) {{ {body} }}"""


BROADCAST = "the kernel does not broadcast the operands so"
COMPUTED = "a parameter is computed"
KEPT = {
    "no sum": ("no Add comes before", model(f"t = Sub (x, s) {NORM}")),
    "a negative epsilon": ("an epsilon of at least 0", model().replace("0.001", "-0.5")),
    "four dimensions": ("two or three dimensions", model(x="1,2,3,8", s="1,2,3,8", y="1,2,3,8")),
    "an unknown rank": ("the shape is unknown", model(x="", s="", y="").replace("[]", "[]")),
    "two axes": (
        "not over the last axis alone",
        model(NORM.join(["t = Add (x, s) ", ""]).replace("<", "<axis = -2, "), x="N,3,8", s="N,3,8", g="3,8", b="3,8"),
    ),
    "a scale for all": ("has not the last dimension", model(g="1")),
    "a scale with more dimensions": ("has not the last dimension", model(g="M,8")),
    "a bias for all": ("has not the last dimension", model(b="1")),
    "a skip for each batch": (BROADCAST, model(s="N,1,8")),
    "a skip of rows": (BROADCAST, model(s="8")),
    "a skip of another symbol": (BROADCAST, model(s="N,K,8")),
    "both are broadcast": (BROADCAST, model(x="N,1,8", s="1,M,8")),
    "two dimensions and one": (BROADCAST, model(x="M,8", s="1,8", y="M,8")),
    "the mean is used": (
        "its statistics are used",
        model(f"t = Add (x, s) {NORM.replace('y =', 'y, m =')}", out=", float[N,M,1] m"),
    ),
    "a scale that depends on the sum": (
        COMPUTED,
        model(
            f"""t = Add (x, s) f = ReduceMean <axes = [0, 1], keepdims = 0> (t) h = Mul (f, g)
            {NORM.replace("g, b", "h, b")}"""
        ),
    ),
    "double": ("no provider has a kernel of SkipLayerNormalization for double", model(dtype="double")),
}


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    because, text = KEPT[case]
    keeps(text, because)
