"""Quantization: element by element, along an axis of scales, or in blocks."""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import attribute, need, opset, rank
from ortopt.transpose.plan import At, Plan, follows, handles, rebuilt


@handles("QuantizeLinear", "DequantizeLinear")
def quantize_linear(node: ir.Node, at: At) -> Plan:
    """The axis of the scales follows; blocks of scales take the data's layout."""
    of = len(at.layout)
    scale = node.inputs[1]
    assert scale is not None
    own = rank(scale)
    if own == 0:
        return follows(node, at)
    need(opset(node) >= 13, "scales have no axis before opset 13", node)
    axis = at.layout[ops.OneAxis(node).axis_of(of)]
    blocks = bool(attribute(node, "block_size", 0))
    need(own == of if blocks else own == 1, "the scales are of another rank", node)
    if not blocks:
        return follows(node, at, axis=axis)
    layouts = (at.layout,) * len(node.inputs)
    return Plan(layouts, (at.layout,), lambda operands: rebuilt(node, operands.values, axis=axis))


@handles("DynamicQuantizeLinear")
def dynamic(node: ir.Node, at: At) -> Plan:
    """The scale and the zero point are of the whole tensor, in any layout."""
    need(not at.is_output or at.position == 0, "it is a scale", node)
    return Plan((at.layout,), (at.layout, None, None), lambda operands: rebuilt(node, operands.values))
