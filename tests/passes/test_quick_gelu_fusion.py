"""x · Sigmoid(alpha · x) becomes QuickGelu(x)."""

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "quick_gelu_fusion"
HEAD = "main (float[N,3,8] x) => (float[N,3,8] y)"


def quick(alpha: str) -> str:
    return f"y = com.microsoft.QuickGelu <alpha = {alpha}> (x)"


@pytest.mark.parametrize("scale", ["Mul (x, k)", "Mul (k, x)"])
@pytest.mark.parametrize("product", ["Mul (x, s)", "Mul (s, x)"])
@pytest.mark.parametrize("constant", ["float k = {1.702}", "float[1] k = {1.702}", "float k = {-2.5}"])
def test_fuses(scale: str, product: str, constant: str) -> None:
    alpha = "-2.5" if "-2.5" in constant else "1.702"
    check_rewrites(PASS, f"{HEAD} <{constant}> {{ t = {scale} s = Sigmoid (t) y = {product} }}", quick(alpha))


@pytest.mark.parametrize("product", ["Mul (x, s)", "Mul (s, x)"])
def test_silu(product: str) -> None:
    check_rewrites(PASS, f"{HEAD} {{ s = Sigmoid (x) y = {product} }}", quick("1.0"))


K = "<float k = {1.702}>"
NO_SCALE = "the argument of Sigmoid is not"
KEPT = {
    "a gate of something else": (
        NO_SCALE,
        f"{HEAD} {K} {{ t = Mul (x, k) u = Neg (x) s = Sigmoid (t) y = Mul (u, s) }}",
    ),
    "something else inside": (NO_SCALE, f"{HEAD} {{ t = Neg (x) s = Sigmoid (t) y = Mul (x, s) }}"),
    "a square inside": (NO_SCALE, f"{HEAD} {{ t = Mul (x, x) s = Sigmoid (t) y = Mul (x, s) }}"),
    "a vector inside": (
        "not one number",
        f"{HEAD} <float[8] k = {{1,2,3,4,5,6,7,8}}> {{ t = Mul (x, k) s = Sigmoid (t) y = Mul (x, s) }}",
    ),
    "a square of the sigmoid": ("used elsewhere", f"{HEAD} {{ s = Sigmoid (x) y = Mul (s, s) }}"),
    "the sigmoid is needed": (
        "used elsewhere",
        "main (float[8] x) => (float[8] y, float[8] s) { s = Sigmoid (x) y = Mul (x, s) }",
    ),
    "the scaled x is needed": (
        "Mul's result is used elsewhere",
        f"main (float[8] x) => (float[8] y, float[8] t) {K} {{ t = Mul (x, k) s = Sigmoid (t) y = Mul (x, s) }}",
    ),
    "alpha raises the rank": (
        "raise the rank",
        "main (float x) => (float[1] y) <float[1] k = {1.702}> { t = Mul (x, k) s = Sigmoid (t) y = Mul (x, s) }",
    ),
    "alpha can be overridden": (
        NO_SCALE,
        f"main (float[8] x, float k) => (float[8] y) {K} {{ t = Mul (x, k) s = Sigmoid (t) y = Mul (x, s) }}",
    ),
    "half precision": (
        "take QuickGelu apart again",
        "main (float16[8] x) => (float16[8] y) { s = Sigmoid (x) y = Mul (x, s) }",
    ),
}


test_keeps = keeps(PASS, KEPT)


def test_keeps_for_other_runtimes() -> None:
    check_keeps(PASS, f"{HEAD} {{ s = Sigmoid (x) y = Mul (x, s) }}", "no op of the ONNX specification", target="onnx")
