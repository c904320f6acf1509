"""Add(MatMul(a, b), c) becomes Gemm(a, b, c) unless C would enlarge the result."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "matmul_add_fusion"


@pytest.mark.parametrize("bias", ["float", "float[4]", "float[1,4]", "float[M,1]", "float[M,4]"])
@pytest.mark.parametrize("add", ["Add (t, c)", "Add (c, t)", "Sum (t, c)"])
def test_fuses(bias: str, add: str) -> None:
    check_rewrites(
        PASS,
        before=f"""
            main (float[M,8] a, float[8,4] b, {bias} c) => (float[M,4] y) {{
                t = MatMul (a, b)
                y = {add}
            }}""",
        after="y = Gemm (a, b, c)",
    )


KEPT = {
    "Gemm broadcasts C one way only": "(float[2,8] a, float[8,4] b, float[5,2,4] c) => (float[5,2,4] y)",
    "the shape is unknown": "(float[] a, float[8,4] b, float[4] c) => (float[2,4] y)",
    "only float Gemm kernels are fast": "(int32[2,8] a, int32[8,4] b, int32[4] c) => (int32[2,4] y)",
    "MatMul's result is used elsewhere": "(float[2,8] a, float[8,4] b, float[4] c) => (float[2,4] y, float[2,4] t)",
}


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    check_keeps(PASS, f"main {KEPT[because]} {{ t = MatMul (a, b) y = Add (t, c) }}", because)


def test_sums() -> None:
    """Three summands are no bias, and before opset 8 a Sum did not broadcast."""
    text = "main (float[2,8] a, float[8,4] b, float[2,4] c) => (float[2,4] y) { t = MatMul (a, b) y = Sum (t, c) }"
    check_keeps(PASS, text, "does not broadcast", opset=7)
    check_keeps(PASS, text.replace("(t, c)", "(t, c, c)"), "not two summands")


def test_before_opset_7_gemm_and_add_broadcast_otherwise() -> None:
    text = "main (float[2,8] a, float[8,4] b, float[2,4] c) => (float[2,4] y) { t = MatMul (a, b) y = Add (t, c) }"
    check_keeps(PASS, text, opset=6)
    check_rewrites(PASS, text, "y = Gemm (a, b, c)", opset=7)


def test_batched_products_have_no_gemm() -> None:
    text = "main (float[2,3,8] a, float[8,4] b, float[4] c) => (float[2,3,4] y) { t = MatMul (a, b) y = Add (t, c) }"
    check_keeps(PASS, text, "the rank is not 2")


def test_a_product_without_elements_is_the_bias() -> None:
    text = "main (float[2,K] a, float[K,4] b, float[4] c) => (float[2,4] y) { t = MatMul (a, b) y = Add (t, c) }"
    empty = {"a": np.zeros((2, 0), np.float32), "b": np.zeros((0, 4), np.float32), "c": np.ones(4, np.float32)}
    check_rewrites(PASS, text, "y = Gemm (a, b, c)", inputs=empty)
