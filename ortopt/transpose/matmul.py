"""Matrix products: batch axes move; the transposed product is that of the transposed operands, in the other order."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import FLOATS, inputs, is_op, need, opset, optional, rank, shape_of
from ortopt.semantics import DEQUANTIZERS, key
from ortopt.transpose.elementwise import demand_of
from ortopt.transpose.layout import normal
from ortopt.transpose.plan import FLEXIBLE, At, Operands, Plan, handles, rebuilt

_GEMM_WITHOUT_C = 11
_SWAP = (1, 0)


def flexible_inputs(node: ir.Node) -> frozenset[int]:
    """The inputs that a node can take in either orientation, by becoming a Gemm with other attributes."""
    if is_op(node, "Gemm"):
        fixed = any(entry.is_ref() for entry in node.attributes.values())
        return frozenset() if fixed else frozenset({0, 1})
    if is_op(node, "MatMul") and _becomes_gemm(node):
        return frozenset({0, 1})
    return frozenset()


def _becomes_gemm(node: ir.Node) -> bool:
    if opset(node) < _GEMM_WITHOUT_C:
        return False
    for value in node.inputs:
        if value is None or value.dtype not in FLOATS or len(shape_of(value) or ()) != 2:
            return False
        producer = value.producer()
        if producer is not None and key(producer) in DEQUANTIZERS:
            return False  # quantized kernels look for a MatMul here
    return True


def in_place(node: ir.Node) -> Plan:
    """How a node with flexible inputs takes them in another orientation, its result as it is."""
    rest = (None,) * (len(node.inputs) - 2)
    return Plan((FLEXIBLE, FLEXIBLE, *rest), (None,), lambda operands: _gemm(node, operands, turned=False))


def _gemm(node: ir.Node, operands: Operands, *, turned: bool) -> Sequence[ir.Value]:
    """The Gemm that a Gemm or MatMul becomes; turned, its result is the transposed one."""
    a, b, *rest = operands.values
    trans_a = ops.Gemm(node).transposes_a != operands.swapped[0]
    trans_b = ops.Gemm(node).transposes_b != operands.swapped[1]
    if turned:
        a, b, trans_a, trans_b = b, a, not trans_b, not trans_a
    return rebuilt(node, [a, b, *rest], op_type="Gemm", transA=int(trans_a) or None, transB=int(trans_b) or None)


@handles("Gemm")
def gemm(node: ir.Node, at: At) -> Plan:
    """The transposed result: operands change places, C takes the layout."""
    need(at.is_output or at.position == 2, "Gemm takes it in either orientation", node)
    need(len(flexible_inputs(node)) == 2, "the function's caller decides the orientation", node)
    c = optional(node, 2)
    rest = () if len(node.inputs) < 3 else (None if c is None else demand_of(c, _SWAP),)
    return Plan((FLEXIBLE, FLEXIBLE, *rest), (_SWAP,), lambda operands: _gemm(node, operands, turned=True))


@handles("MatMul")
def matmul(node: ir.Node, at: At) -> Plan:
    """Batch axes move; with both matrices transposed the operands change places."""
    a, b = inputs(node, 2)
    left, right = rank(a), rank(b)
    need(left >= 2 and right >= 2, "an operand is a vector", node)
    if left == right == 2:
        need(at.is_output or not flexible_inputs(node), "Gemm takes it in either orientation", node)
        if flexible_inputs(node):
            return Plan((FLEXIBLE, FLEXIBLE), (_SWAP,), lambda operands: _gemm(node, operands, turned=True))
        return Plan((_SWAP, _SWAP), (_SWAP,), lambda operands: rebuilt(node, operands.values[::-1]))
    of = max(left, right)
    need(at.is_output or (left, right)[at.position] == of, "the operand has a lower rank", node)
    layout = at.layout
    if left == right:
        if layout[-2:] == (of - 1, of - 2):
            return Plan((layout, layout), (layout,), lambda operands: rebuilt(node, operands.values[::-1]))
        need(layout[-2:] == (of - 2, of - 1), "an axis of the matrices would move", node)
        return Plan((layout, layout), (layout,), lambda operands: rebuilt(node, operands.values))
    need(layout[-1] == of - 1, "an axis of the matrices would move", node)
    if right == 2:
        return Plan((layout, None), (layout,), lambda operands: rebuilt(node, operands.values))
    need(layout[-2] == of - 2, "an axis of the matrices would move", node)
    need(left == 2 or right == 2, "the batch axes differ", node)
    return Plan((None, normal(layout)), (layout,), lambda operands: rebuilt(node, operands.values))
