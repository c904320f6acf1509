"""A product with a weight that arithmetic unpacks becomes the kernel of few bits, where that is wanted."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto

import ortopt
from ortopt.options import Options
from ortopt.testing import check_keeps, check_rewrites
from tests.patterns.packed_weights import SPELLINGS, packed

PASS = "matmul_nbits_fusion"
KERNEL = "com.microsoft::MatMulNBits"


def rewritten(model: ir.Model, **ops: int) -> ir.Node:
    result = check_rewrites(PASS, model, ops={KERNEL: 1, **ops})
    return next(node for node in result.graph if node.op_type == "MatMulNBits")


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("zero", ["float", "integer", "none"])
def test_spellings(spelling: str, zero: str) -> None:
    node = rewritten(packed(spelling, zero=zero), Cast=0, MatMul=0)
    assert node.attributes["bits"].as_int() == 4


@pytest.mark.parametrize("block", [16, 32, 64])
def test_blocks(block: int) -> None:
    assert rewritten(packed(block=block)).attributes["block_size"].as_int() == block


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gemm(turned: bool, bias: bool) -> None:
    rewritten(packed(op="Gemm", turned=turned, bias=bias, rows=(3,)), Gemm=0)


def test_bias_and_rows() -> None:
    rewritten(packed(bias=True, rows=("B", "N")), Add=0)


def test_a_quotient() -> None:
    rewritten(packed(divides=True))


def test_scattered_groups_gather_the_activations() -> None:
    node = rewritten(packed(scatter=True, block=32), Gather=1)
    assert node.attributes["block_size"].as_int() == 32


@pytest.mark.parametrize(
    ("model", "because"),
    [
        (packed(zero="half"), "zero points are no integers"),
        (packed(scatter=True, block=8), "no size that the kernel knows"),
        (packed(block=8), "no size that the kernel knows"),
        (packed(scale_type=TensorProto.FLOAT16), "single precision only"),
    ],
)
def test_keeps(model: ir.Model, because: str) -> None:
    check_keeps(PASS, model, because)


def test_floats_are_faster() -> None:
    check_keeps(PASS, packed(), "MatMulNBits instead of floats", options=Options())


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("target", ["ort", "onnx"])
def test_folding_leaves_packed_weights_packed(spelling: str, target: str) -> None:
    """A weight of floats would be eight times as large; twice, if each integer had a byte."""
    model = packed(spelling)
    result = ortopt.optimize(model, target=target, verify=False).model  # type: ignore[arg-type]
    sizes = [value.const_value.nbytes for value in result.graph.initializers.values() if value.const_value is not None]
    assert max(sizes) == np.prod(model.graph.initializers["w"].shape.numpy())  # type: ignore[union-attr]
