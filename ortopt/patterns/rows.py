"""Ops that treat each row of the last axis by itself, so that the axes before it may as well be one."""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import (
    Dim,
    Refusal,
    dims,
    inputs,
    is_op,
    need,
    need_float32,
    opset,
    optional,
    rank,
    same_dim,
)
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import CASTS, UNARY
from ortopt.semantics.opset_changes import BROADCASTS_FROM

ACTIVATIONS = ("FastGelu", "Gelu", "QuickGelu")
"""Elementwise ops of ONNX Runtime."""

COMBINING = ("Add", "Div", "Max", "Min", "Mul", "Sub", "Sum")
NORMALIZATIONS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
FEWEST_AXES = 3


def rows_of(node: ir.Node) -> tuple[ir.Value, ...]:
    """The operands of a node whose rows it treats one by one, each with as many rows as its result.

    Its other operands have one axis at most, or are the matrix of a product: they are the same for each row.

    Args:
        node: A node with one result that is asked for.

    Returns:
        The operands, at least one, of three axes or more; a value may be there several times.

    Raises:
        Refusal: If rows are mixed, or it is not known that they are not.
    """
    if not node.outputs:
        raise Refusal("it has no result", node)
    result = node.outputs[0]
    of = dims(result)
    need(len(of) >= FEWEST_AXES, "its result has fewer than three axes", node)
    need(not any(other.uses() or other.is_graph_output() for other in node.outputs[1:]), "it has more results", node)
    rows, shared = _operands(node)
    need(all(rank(value) <= 1 for value in shared), "an operand has more than one axis, and other rows", node)
    for value in (*rows, result):
        need_float32(value)
        shape = dims(value, len(of))
        need(all(map(same_dim, shape[:-1], of[:-1])), "an operand has other rows", value)
        need(isinstance(shape[-1], int) and shape[-1] > 0, "the size of a row is not fixed", value)
    return rows


def _operands(node: ir.Node) -> tuple[tuple[ir.Value, ...], tuple[ir.Value, ...]]:
    """The operands that have rows, and those that all rows share, without the matrix of a product."""
    present = tuple(value for value in node.inputs if value is not None)
    if is_op(node, "MatMul"):
        x, matrix = inputs(node, 2)
        dims(matrix, 2)
        return (x,), ()
    if is_op(node, *NORMALIZATIONS):
        need(ops.OneAxis(node).is_last, "it normalizes more than the last axis", node)
        return present[:1], present[1:]
    if is_op(node, *COMBINING):
        need(opset(node) >= BROADCASTS_FROM, "an attribute says how its operands broadcast", node)
        return tuple(value for value in present if rank(value) > 1), tuple(
            value for value in present if rank(value) <= 1
        )
    elementwise = is_op(node, *(UNARY - CASTS)) or is_op(node, *ACTIVATIONS, domain=MICROSOFT)
    need(elementwise and len(present) == 1, "rows are mixed", node)
    return present, ()


def bias_of(node: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """The product to which a node adds a number a column, and these numbers; None if it does not.

    Args:
        node: A node for which `rows_of` holds.
    """
    if not is_op(node, "Add", "Sum") or len(node.inputs) != 2:
        return None
    for place in (0, 1):
        product, bias = optional(node, place), optional(node, 1 - place)
        if product is None or bias is None or not is_op(maker := product.producer(), "MatMul"):
            continue
        if len(product.uses()) == 1 and not product.is_graph_output() and _is_bias(bias, dims(product)[-1]):
            return maker, bias
    return None


def _is_bias(value: ir.Value, columns: Dim) -> bool:
    return rank(value) == 1 and same_dim(dims(value)[0], columns)
