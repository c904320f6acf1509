"""Quantizing and dequantizing."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.analysis.shape_rules.registry import Call, axis_of, rule
from ortopt.graph import symbolic
from ortopt.semantics.domains import MICROSOFT

UINT8 = ir.DataType.UINT8
FLOAT = ir.DataType.FLOAT

_BITS = 4
"""Those of an integer of GatherBlockQuantized, where nothing else is said."""

_BITS_OF_A_BYTE = 8


@rule("QuantizeLinear")
def quantize_linear(call: Call) -> None:
    """The input's shape, the type of the zero point or of the attribute."""
    call.same(0, 0)
    stated = call.attribute("output_dtype", 0)
    call.types[0] = call.dtype(2) if call.has(2) else ir.DataType(stated) if stated else UINT8


@rule("DequantizeLinear")
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


@rule("QuantizeLinear", domain=MICROSOFT)
def contrib_quantize_linear(call: Call) -> None:
    """As the standard op."""
    quantize_linear(call)


@rule("DequantizeLinear", domain=MICROSOFT)
def contrib_dequantize_linear(call: Call) -> None:
    """As the standard op."""
    dequantize_linear(call)


@rule("QLinearConcat", domain=MICROSOFT)
def quantized_concat(call: Call) -> None:
    """The type of the output's zero point; inputs come in threes after it."""
    call.types[0] = call.dtype(1)
    shapes = [call.dims(index) for index in range(2, len(call.inputs), 3)]
    axis = axis_of(call.attribute("axis"), len(shapes[0]))
    total = shapes[0][axis]
    for dims in shapes[1:]:
        total = symbolic.add(total, dims[axis])
    call.shapes[0] = (*shapes[0][:axis], total, *shapes[0][axis + 1 :])


@rule("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(call: Call) -> None:
    """As Gather, in the type of the scales; bytes hold several integers along the last axis."""
    call.types[0] = call.dtype(2)
    data, indices = call.dims(0), call.dims(1)
    if call.dtype(0) == UINT8:
        held = _BITS_OF_A_BYTE // call.attribute("bits", _BITS)
        data = (*data[:-1], symbolic.mul(data[-1], held))
    axis = axis_of(call.attribute("gather_axis", 0), len(data))
    call.shapes[0] = (*data[:axis], *indices, *data[axis + 1 :])
