"""A sum and the root-mean-square normalization behind it become one SkipSimplifiedLayerNormalization."""

from functools import partial

import pytest

from ortopt.options import Options, Target
from ortopt.testing import all_fusions, check_keeps, check_rewrites

PASS = "skip_rms_norm_fusion"
CUDA = "CUDAExecutionProvider"
rewrites = partial(check_rewrites, PASS, options=Options(providers=(CUDA,)))  # the numbers are compared on the CPU
keeps = partial(check_keeps, PASS, options=Options(providers=(CUDA,)))
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


@pytest.mark.parametrize("short", ["1,M,8", "M,8"])
def test_a_skip_without_a_batch(short: str) -> None:
    rewrites(model(f"t = Add (s, x) {OLD}", s=short), f"k = Neg (c) {skip('x, s, g')}")


def test_a_bias_of_the_skip() -> None:
    rewrites(model(f"u = Add (c, x) t = Add (s, u) {OLD}"), f"k = Neg (c) {skip('x, s, g, c')}")


def test_the_sum_is_used_elsewhere() -> None:
    text = model(f"t = Add (x, s) z = Neg (t) {OLD}", out=", float[N,M,8] z")
    rewrites(text, f"k = Neg (c) {skip('x, s, g', 'y, , , t')} z = Neg (t)")
    text = model(f"t = Add (x, s) {OLD}", out=", float[N,M,8] t")
    rewrites(text, f"k = Neg (c) {skip('x, s, g', 'y, , , t')}")


BROADCAST = "the kernel does not broadcast the operands so"
KEPT = {
    "no sum": ("no Add comes before", model(f"t = Mul (x, s) {OLD}")),
    "a negative epsilon": ("an epsilon of at least 0", model(f"t = Add (x, s) {OLD}").replace("0.001", "-0.5")),
    "a skip for each batch": (BROADCAST, model(f"t = Add (x, s) {OLD}", s="N,1,8")),
    "a skip of rows": (BROADCAST, model(f"t = Add (x, s) {OLD}", s="8")),
    "a scale with more dimensions": ("has not the last dimension", model(f"t = Add (x, s) {OLD}", g="1,8")),
    "double": ("no provider has a kernel", model(f"t = Add (x, s) {OLD}", dtype="double")),
}


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    because, text = KEPT[case]
    keeps(text, because)


def test_keeps_for_other_runtimes() -> None:
    keeps(
        model(f"t = Add (x, s) {NEW}"),
        "no op of the ONNX specification",
        options=Options(providers=(CUDA,), target=Target.ONNX),
        opset=23,
    )


def test_keeps_what_runs_on_the_cpu() -> None:
    options = Options(providers=("CPUExecutionProvider", CUDA))
    keeps(model(f"t = Add (x, s) {OLD}"), "on the CPU, SkipSimplifiedLayerNormalization is", options=options)


def test_takes_what_runs_on_the_cpu_where_all_fusions_is_wanted() -> None:
    check_rewrites(PASS, model(f"t = Add (x, s) {OLD}"), f"k = Neg (c) {skip('x, s, g')}", options=all_fusions())
