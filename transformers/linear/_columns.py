"""The columns of a product, followed through nodes that move axes."""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.match import Refusal, dims, inputs, is_op, same_dim
from ortopt.semantics.op_traits import RESHAPING

LONGEST_PATH = 4
"""So many nodes that move axes are followed."""


def path_to(value: ir.Value) -> tuple[list[ir.Node], ir.Value]:
    """The nodes above a value that only move its axes, in order of computation, and what they move."""
    path: list[ir.Node] = []
    while len(path) < LONGEST_PATH and is_op(value.producer(), *RESHAPING, "Transpose"):
        node = value.producer()
        assert node is not None
        path.insert(0, node)
        value = inputs(node, 1)[0]
    return path, value


def moved(node: ir.Node, position: int) -> int:
    """The new position of an axis that a node moves, but neither splits nor joins.

    Raises:
        Refusal: If it is not known, or the axis is cut or joined with another one.
    """
    source = dims(inputs(node, 1)[0])
    if node.op_type == "Transpose":
        return ops.Transpose(node).order.index(position)
    result = dims(node.outputs[0])
    before = symbolic.product(source[:position])
    for axis, dim in enumerate(result):
        if same_dim(dim, source[position]) and same_dim(symbolic.product(result[:axis]), before):
            return axis
    raise Refusal("the columns may be cut or joined", node)


__all__ = ["LONGEST_PATH", "moved", "path_to"]
