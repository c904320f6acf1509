"""Quantization: element by element, along an axis of scales, or in blocks."""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import attribute, need, opset, rank
from ortopt.transpose.plan import At, Plan, handles, rebuilt


@handles("QuantizeLinear", "DequantizeLinear")
def quantize_linear(node: ir.Node, at: At) -> Plan:
    """The axis of the scales follows; blocks of scales take the data's layout."""
    of = len(at.layout)
    scale = node.inputs[1]
    assert scale is not None
    own = rank(scale)
    count = len(node.inputs) - 2
    if own == 0:
        need(at.is_output or at.position == 0, "it is a scale", node)
        return Plan((at.layout, None, *[None] * count), (at.layout,), lambda operands: rebuilt(node, operands.values))
    need(opset(node) >= 13, "scales have no axis before opset 13", node)
    axis = at.layout[ops.OneAxis(node).axis_of(of)]
    blocks = bool(attribute(node, "block_size", 0))
    need(own == 1 or (blocks and own == of), "the scales are of another rank", node)
    need(at.is_output or at.position == 0 or (blocks and own == of), "it is a scale", node)
    need(not (blocks and own == 1 and of > 1), "the scales are of another rank", node)
    scales = at.layout if blocks else None
    return Plan(
        (at.layout, scales, *[scales] * count),
        (at.layout,),
        lambda operands: rebuilt(node, operands.values, axis=axis),
    )


@handles("DynamicQuantizeLinear")
def dynamic(node: ir.Node, at: At) -> Plan:
    """The scale and the zero point are of the whole tensor, in any layout."""
    need(not at.is_output or at.position == 0, "it is a scale", node)
    return Plan((at.layout,), (at.layout, None, None), lambda operands: rebuilt(node, operands.values))
