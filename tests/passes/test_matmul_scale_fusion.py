"""One number by which operands or the result of a product are multiplied or divided becomes the product's alpha."""

from __future__ import annotations

import pytest

from ortopt.testing import check_rewrites

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
