"""A sum and the root-mean-square normalization behind it become one SkipSimplifiedLayerNormalization."""

from functools import partial

import pytest

from ortopt.options import Options
from ortopt.testing import check_rewrites

PASS = "skip_rms_norm_fusion"
CUDA = "CUDAExecutionProvider"
rewrites = partial(check_rewrites, PASS, options=Options(providers=(CUDA,)))  # the numbers are compared on the CPU
OLD = "y = SimplifiedLayerNormalization <epsilon = 0.001> (t, g)"
NEW = "y = RMSNormalization <epsilon = 0.001> (t, g)"


def skip(inputs: str, outputs: str = "y") -> str:
    return f"{outputs} = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.001> ({inputs})"


def model(body: str, *, s: str = "N,M,8", g: str = "8", out: str = "", dtype: str = "float") -> str:
    return f"""main ({dtype}[N,M,8] x, {dtype}[{s}] s, {dtype}[{g}] g, {dtype}[8] c)
        => ({dtype}[N,M,8] y, {dtype}[8] k{out}) {{ k = Neg (c) {body} }}"""


@pytest.mark.parametrize(("norm", "opset"), [(OLD, 17), (NEW, 23)])
@pytest.mark.parametrize("add", ["Add (x, s)", "Add (s, x)"])
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_fuses(norm: str, opset: int, add: str, dtype: str) -> None:
    after = skip("x, s, g" if "x, s" in add else "s, x, g")
    rewrites(model(f"t = {add} {norm}", dtype=dtype), f"k = Neg (c) {after}", opset=opset)
