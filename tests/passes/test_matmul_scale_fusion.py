"""One number by which operands or the result of a product are multiplied or divided becomes the product's alpha."""

from __future__ import annotations

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "matmul_scale_fusion"


def model(nodes: str, constants: str = "float half = {0.5}", dtype: str = "float", more: str = "") -> str:
    return f"main ({dtype}[2,3,8] a, {dtype}[2,8,4] b) => ({dtype}[2,3,4] y{more}) <{constants}> {{ {nodes} }}"


def fused(alpha: float, more: str = "") -> str:
    head = "main (float[2,3,8] a, float[2,8,4] b) => (float[2,3,4] y)"
    return f"{head} {{ y = com.microsoft.FusedMatMul <alpha = {alpha}{more}> (a, b) }}"


SPELLINGS = {
    "the left operand": ("s = Mul (a, half) y = MatMul (s, b)", 0.5),
    "the left operand, first": ("s = Mul (half, a) y = MatMul (s, b)", 0.5),
    "the right operand": ("s = Mul (b, half) y = MatMul (a, s)", 0.5),
    "both operands": ("s = Mul (a, half) t = Mul (b, half) y = MatMul (s, t)", 0.25),
    "the result": ("p = MatMul (a, b) y = Mul (p, half)", 0.5),
    "the result, first": ("p = MatMul (a, b) y = Mul (half, p)", 0.5),
    "the quotient": ("p = MatMul (a, b) y = Div (p, half)", 2.0),
    "a quotient": ("s = Div (a, half) y = MatMul (s, b)", 2.0),
    "all": ("s = Div (a, half) t = Mul (b, half) p = MatMul (s, t) y = Mul (p, half)", 0.5),
    "twice": ("p = MatMul (a, b) q = Mul (p, half) y = Mul (q, half)", 0.25),
    "a product that has a scale": ("p = com.microsoft.FusedMatMul <alpha = 3.0> (a, b) y = Mul (p, half)", 1.5),
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_rewrites(case: str) -> None:
    nodes, alpha = SPELLINGS[case]
    check_rewrites(PASS, model(nodes), fused(alpha))


@pytest.mark.parametrize("shape", ["", "[1]", "[1,1]", "[1,1,1]"])
def test_every_rank_of_one_number(shape: str) -> None:
    check_rewrites(PASS, model("s = Mul (a, half) y = MatMul (s, b)", f"float{shape} half = {{0.5}}"), fused(0.5))


def test_keeps_how_the_operands_are_read() -> None:
    text = model("s = Mul (a, half) y = com.microsoft.FusedMatMul <transB = 1> (s, b)").replace("2,8,4", "2,4,8")
    check_rewrites(PASS, text, fused(0.5, ", transB = 1").replace("2,8,4", "2,4,8"))


def test_vectors() -> None:
    text = "main (float[8] a, float[8] b) => (float y) <float half = {0.5}> { p = MatMul (a, b) y = Mul (p, half) }"
    after = "main (float[8] a, float[8] b) => (float y) { y = com.microsoft.FusedMatMul <alpha = 0.5> (a, b) }"
    check_rewrites(PASS, text, after)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_rows_of_a_batch_by_one_matrix(size: int) -> None:
    text = f"""main (float[B,S,{size}] a, float[{size},N] b) => (float[B,S,N] y) <float half = {{0.5}}> {{
        p = MatMul (a, b) y = Mul (p, half) }}"""
    check_rewrites(PASS, text, ops={"com.microsoft::FusedMatMul": 1, "Mul": 0})


def test_an_inner_dimension_that_may_be_0() -> None:
    text = model("p = MatMul (a, b) y = Mul (p, half)").replace("2,3,8", "2,3,K").replace("2,8,4", "2,K,4")
    check_rewrites(PASS, text, ops={"com.microsoft::FusedMatMul": 1, "Mul": 0})


def test_double_with_a_scale_that_single_precision_has() -> None:
    text = model("p = MatMul (a, b) y = Mul (p, half)", "double half = {0.5}", "double")
    check_rewrites(PASS, text, fused(0.5).replace("float[", "double["))


KEPT = {
    "alpha is in single precision": model("p = MatMul (a, b) y = Mul (p, c)", "double c = {0.1}", "double"),
    "the factor would raise the rank": model(
        "s = Mul (a, c) p = MatMul (s, b) y = Squeeze (p, d)", "float[1,1,1,1] c = {0.5}, int64[1] d = {0}"
    ),
    "it is not one number": model("p = MatMul (a, b) y = Mul (p, c)", "float[4] c = {0.5, 1, 2, 3}"),
    "no operand is a constant": model("c = ReduceMax <keepdims = 0> (a) p = MatMul (a, b) y = Mul (p, c)"),
    "it is no factor": model("p = MatMul (a, b) y = Mul (p, c)", "float c = {0.0}"),
    "times larger or smaller": model("p = MatMul (a, b) y = Mul (p, c)", "float c = {1e-30}"),
    "the kernel is for floats": model("p = MatMul (a, b) y = Mul (p, c)", "int64 c = {2}", "int64"),
    "result is used elsewhere": model("p = MatMul (a, b) y = Mul (p, half)", more=", float[2,3,4] p"),
    "no operand is scaled for it alone": model(
        "s = Mul (a, half) y = MatMul (s, b) z = Neg (s)", more=", float[2,3,8] z"
    ),
    "no product is scaled": model("p = MatMul (a, b) q = Neg (p) y = Mul (q, half)"),
    "which the kernel does not expect": model("p = com.microsoft.FusedMatMul <transB = 1> (a, b) y = Mul (p, half)")
    .replace("2,3,8", "2,3,K").replace("2,8,4", "2,4,K"),
    "it is not a constant": model("p = MatMul (a, b) y = Div (half, p)"),
    "no op of the ONNX specification": (model("p = MatMul (a, b) y = Mul (p, half)"), {"target": "onnx"}),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)
