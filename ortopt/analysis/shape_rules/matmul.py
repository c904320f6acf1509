"""Matrix products."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.analysis.shape_rules.registry import Call, Unknown, broadcast, rule
from ortopt.graph import symbolic
from ortopt.graph.facts import Dims
from ortopt.graph.symbolic import UNKNOWN
from ortopt.semantics.domains import MICROSOFT

INT32 = ir.DataType.INT32


def product_dims(a: Dims, b: Dims) -> Dims:
    """The shape of numpy's matmul; raises `Unknown` where the inner dimensions provably differ."""
    if not a or not b:
        raise Unknown
    if symbolic.provably_different(a[-1], b[-2] if len(b) > 1 else b[0]):
        raise Unknown
    rows = a[-2:-1] if len(a) > 1 else ()
    columns = b[-1:] if len(b) > 1 else ()
    return broadcast(a[:-2], b[:-2]) + rows + columns


@rule("MatMul")
def matmul(call: Call) -> None:
    """Batch dimensions broadcast, then rows of the first and columns of the second."""
    call.types[0] = call.dtype(0) or call.dtype(1)
    call.shapes[0] = product_dims(call.dims(0), call.dims(1))


@rule("MatMulInteger")
def matmul_integer(call: Call) -> None:
    """As MatMul, in int32."""
    call.types[0] = INT32
    call.shapes[0] = product_dims(call.dims(0), call.dims(1))


@rule("QLinearMatMul")
def quantized_matmul(call: Call) -> None:
    """As MatMul of inputs 0 and 3, in the type of the output's zero point."""
    call.types[0] = call.dtype(7)
    call.shapes[0] = product_dims(call.dims(0), call.dims(3))


@rule("Gemm")
def gemm(call: Call) -> None:
    """Rows of A, columns of B, either of them transposed."""
    call.set(0, call.dtype(0), (UNKNOWN, UNKNOWN))
    _gemm(call, 0, 1)


def _gemm(call: Call, left: int, right: int) -> None:
    transposed_a, transposed_b = call.attribute("transA", 0), call.attribute("transB", 0)
    a, b = call.dims_or_none(left), call.dims_or_none(right)
    if any(dims is not None and len(dims) != 2 for dims in (a, b)):
        raise Unknown
    rows = UNKNOWN if a is None else a[1 if transposed_a else 0]
    columns = UNKNOWN if b is None else b[0 if transposed_b else 1]
    call.shapes[0] = (rows, columns)


@rule("FusedGemm", domain=MICROSOFT)
def fused_gemm(call: Call) -> None:
    """As Gemm."""
    gemm(call)


@rule("QGemm", domain=MICROSOFT)
def quantized_gemm(call: Call) -> None:
    """As Gemm of inputs 0 and 3; float where there is no output scale."""
    call.types[0] = call.dtype(8) if call.has(8) else ir.DataType.FLOAT
    _gemm(call, 0, 3)


@rule("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain=MICROSOFT)
def fused_matmul(call: Call) -> None:
    """As MatMul, with the last two or the batch dimensions of either operand transposed first."""
    call.types[0] = call.dtype(0)
    a = _transposed(call.dims(0), call.attribute("transA", 0), call.attribute("transBatchA", 0))
    b = _transposed(call.dims(1), call.attribute("transB", 0), call.attribute("transBatchB", 0))
    call.shapes[0] = product_dims(a, b)


def _transposed(dims: Dims, matrix: int, batch: int) -> Dims:
    if len(dims) < 2:
        return dims
    if batch:  # [batch..., rows, columns] has its rows in front
        dims = (*dims[1:-1], dims[0], dims[-1])
    return (*dims[:-2], dims[-1], dims[-2]) if matrix else dims


@rule("MatMulNBits", "MatMulBnb4", "MatMulFpQ4", domain=MICROSOFT)
def matmul_bits(call: Call) -> None:
    """The last dimension becomes N."""
    call.types[0] = call.dtype(0)
    call.shapes[0] = (*call.dims(0)[:-1], call.attribute("N", UNKNOWN))


@rule("MatMulIntegerToFloat", "DynamicQuantizeMatMul", domain=MICROSOFT)
def matmul_to_float(call: Call) -> None:
    """As MatMul, in the type of the scale."""
    first_scale = 2
    call.types[0] = call.dtype(first_scale) or ir.DataType.FLOAT
    call.shapes[0] = product_dims(call.dims(0), call.dims(1))


@rule("MatMulInteger16", domain=MICROSOFT)
def matmul_integer_16(call: Call) -> None:
    """As MatMulInteger."""
    matmul_integer(call)


@rule("QLinearMatMul", domain=MICROSOFT)
def quantized_matmul_contrib(call: Call) -> None:
    """As the standard op."""
    quantized_matmul(call)
