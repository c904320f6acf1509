"""A Gemm between DequantizeLinear and QuantizeLinear becomes a kernel of integers."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites
from tests.passes.quantized_units import Tensor, check_unit, unit

PASS = "qgemm_fusion"
A = Tensor("N,6", 0.02, 90)
Y = Tensor("N,3", 0.3, 120)
SCALES = np.array([0.01, 0.02, 0.015])


def numbers(content: object) -> str:
    return "{" + ", ".join(f"{number:.9g}" for number in np.asarray(content).reshape(-1)) + "}"


def gemm(
    attributes: str = "alpha = 1.0",
    *,
    turned: bool = False,
    bias: str = "",
    a: Tensor = A,
    y: Tensor = Y,
    axis: int | None = None,
    zeros: tuple[int, ...] = (0, 0, 0),
) -> str:
    dims, at = ("3,6", 0) if turned else ("6,3", 1)
    # Of 7 bits: beside uint8, pairs of products saturate on x86 processors without VNNI.
    weight = np.random.default_rng(5).integers(-64, 64, 18)
    more = f"int8[{dims}] w = {numbers(weight)}, float[3] w_s = {numbers(SCALES)}, int8[3] w_z = {numbers(zeros)}, "
    statement = f"t = Gemm <{attributes}> (a_x, w_x{', c' if bias else ''})"
    constants, _, dequantized = bias.rpartition(";")
    op = f"w_x = DequantizeLinear <axis = {at if axis is None else axis}> (w, w_s, w_z) {dequantized} {statement}"
    return unit(op, y, more + constants, a=a)


def bias(factor: float = 1.0) -> str:
    scales = numbers(0.02 * SCALES * factor)
    return f"int32[3] c_q = {{300, -20000, 7}}, float[3] c_s = {scales}, ; c = DequantizeLinear <axis = 0> (c_q, c_s)"


@pytest.mark.parametrize("factor", [1.0, 1.37])
@pytest.mark.parametrize("turned", [True, False])
def test_with_a_bias(turned: bool, factor: float) -> None:
    check_unit(
        check_rewrites, PASS, gemm(f"transB = {int(turned)}", turned=turned, bias=bias(factor)), "com.microsoft::QGemm"
    )


@pytest.mark.parametrize("rows", ["N", "0", "1"])
def test_without_a_bias(rows: str) -> None:
    text = gemm(a=A._replace(dims=f"{rows},6"), y=Y._replace(dims=f"{rows},3"))
    check_unit(check_rewrites, PASS, text, "com.microsoft::QGemm")


def test_transposed_and_scaled() -> None:
    text = gemm("transA = 1, alpha = 0.5", bias=bias(0.5), a=A._replace(dims="6,N"))
    check_unit(check_rewrites, PASS, text, "com.microsoft::QGemm")
