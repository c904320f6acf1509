"""Matrix products; quantizing and dequantizing."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.analysis.shape_rules.registry import Call, Unknown, axis_of, broadcast, rule
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


@rule("MatMulInteger", typed=INT32)
@rule("MatMulInteger16", domain=MICROSOFT, typed=INT32)
def matmul_integer(call: Call) -> None:
    """As MatMul, in int32."""
    call.shapes[0] = product_dims(call.dims(0), call.dims(1))


@rule("QLinearMatMul", typed=7)
@rule("QLinearMatMul", domain=MICROSOFT, typed=7)
def quantized_matmul(call: Call) -> None:
    """As MatMul of inputs 0 and 3, in the type of the output's zero point."""
    call.shapes[0] = product_dims(call.dims(0), call.dims(3))


@rule("Gemm")
@rule("FusedGemm", domain=MICROSOFT)
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


@rule("QGemm", domain=MICROSOFT)
def quantized_gemm(call: Call) -> None:
    """As Gemm of inputs 0 and 3; float where there is no output scale."""
    call.types[0] = call.dtype(8) if call.has(8) else ir.DataType.FLOAT
    _gemm(call, 0, 3)


@rule("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain=MICROSOFT, typed=0)
def fused_matmul(call: Call) -> None:
    """As MatMul, with the last two or the batch dimensions of either operand transposed first."""
    a = _transposed(call.dims(0), call.attribute("transA", 0), call.attribute("transBatchA", 0))
    b = _transposed(call.dims(1), call.attribute("transB", 0), call.attribute("transBatchB", 0))
    call.shapes[0] = product_dims(a, b)


def _transposed(dims: Dims, matrix: int, batch: int) -> Dims:
    if len(dims) < 2:
        return dims
    if batch:  # [batch..., rows, columns] has its rows in front
        dims = (*dims[1:-1], dims[0], dims[-1])
    return (*dims[:-2], dims[-1], dims[-2]) if matrix else dims


@rule("MatMulNBits", "MatMulBnb4", "MatMulFpQ4", domain=MICROSOFT, typed=0)
def matmul_bits(call: Call) -> None:
    """The last dimension becomes N."""
    call.shapes[0] = (*call.dims(0)[:-1], call.attribute("N", UNKNOWN))


@rule("MatMulIntegerToFloat", "DynamicQuantizeMatMul", domain=MICROSOFT)
def matmul_to_float(call: Call) -> None:
    """As MatMul, in the type of the scale."""
    call.types[0] = call.dtype(2) or ir.DataType.FLOAT
    call.shapes[0] = product_dims(call.dims(0), call.dims(1))


UINT8 = ir.DataType.UINT8
FLOAT = ir.DataType.FLOAT

_BITS = 4
"""Those of an integer of GatherBlockQuantized, where nothing else is said."""

_BITS_OF_A_BYTE = 8


@rule("QuantizeLinear")
@rule("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(call: Call) -> None:
    """The input's shape, the type of the zero point or of the attribute."""
    call.same(0, 0)
    stated = call.attribute("output_dtype", 0)
    call.types[0] = call.dtype(2) if call.has(2) else ir.DataType(stated) if stated else UINT8


@rule("DequantizeLinear")
@rule("DequantizeLinear", domain=MICROSOFT)
def dequantize_linear(call: Call) -> None:
    """The input's shape, the type of the scale or of the attribute."""
    call.same(0, 0)
    stated = call.attribute("output_dtype", 0)
    call.types[0] = ir.DataType(stated) if stated else call.dtype(1)


@rule("DynamicQuantizeLinear")
def dynamic_quantize_linear(call: Call) -> None:
    """uint8 in the input's shape, a scale and a zero point."""
    call.same(0, 0)
    call.types[0] = UINT8
    call.set(1, FLOAT, ())
    call.set(2, UINT8, ())


@rule("QLinearConcat", domain=MICROSOFT, typed=1)
def quantized_concat(call: Call) -> None:
    """The type of the output's zero point; inputs come in threes after it."""
    shapes = [call.dims(index) for index in range(2, len(call.inputs), 3)]
    axis = axis_of(call.attribute("axis"), len(shapes[0]))
    total = shapes[0][axis]
    for dims in shapes[1:]:
        total = symbolic.add(total, dims[axis])
    call.shapes[0] = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])


@rule("GatherBlockQuantized", domain=MICROSOFT, typed=2)
def gather_block_quantized(call: Call) -> None:
    """As Gather, in the type of the scales; bytes hold several integers along the last axis."""
    data, indices = call.dims(0), call.dims(1)
    if call.dtype(0) == UINT8:
        held = _BITS_OF_A_BYTE // call.attribute("bits", _BITS)
        data = (*data[:-1], symbolic.mul(data[-1], held))
    axis = axis_of(call.attribute("gather_axis", 0), len(data))
    call.shapes[0] = (*data[:axis], *indices, *data[axis + 1 :])
