"""Axes that nodes go along: the ``axes`` of Squeeze, Unsqueeze and reductions, and the order that a Transpose gives.

The former are an attribute in older opsets, an input in newer ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ortopt.graph.detached import constant
from ortopt.graph.match import attribute, inputs, integers, need, opset, optional, rank
from ortopt.semantics.opset_changes import AXES_ARE_AN_INPUT_FROM


def node_along(
    op: str,
    value: ir.Value,
    axes: Sequence[int],
    version: int,
    attributes: Mapping[str, int] | None = None,
) -> ir.Node:
    """A new node of an op that goes along axes, as the opset wants them.

    Args:
        op: Squeeze, Unsqueeze, or a reduction.
        value: What it reads.
        axes: Along what.
        version: The opset of ai.onnx where the node will stand.
        attributes: Its other attributes.
    """
    if version < AXES_ARE_AN_INPUT_FROM[op]:
        return ir.node(op, [value], {"axes": list(axes), **(attributes or {})})
    return ir.node(op, [value, constant(list(axes))], attributes)


def squeezed(value: ir.Value, axes: Sequence[int], version: int) -> ir.Value:
    """A value without axes of one element (see `node_along`)."""
    return node_along("Squeeze", value, axes, version).outputs[0]


def unsqueezed(value: ir.Value, axes: Sequence[int], version: int) -> ir.Value:
    """A value with new axes of one element (see `node_along`)."""
    return node_along("Unsqueeze", value, axes, version).outputs[0]


def axes_of(node: ir.Node) -> tuple[int, ...]:
    """The axes that a node names, as it writes them; empty where it names none.

    Args:
        node: A Squeeze, an Unsqueeze or a reduction.

    Raises:
        Refusal: They are not known.
    """
    none: tuple[int, ...] = ()
    if opset(node) < AXES_ARE_AN_INPUT_FROM[node.op_type]:
        return attribute(node, "axes", none)
    listed = optional(node, 1)
    return none if listed is None else tuple(integers(listed))


def order_of(transpose: ir.Node) -> tuple[int, ...]:
    """The order into which a Transpose brings the axes of its input: reversed where it names none.

    Raises:
        Refusal: If the rank is not known, or it is no permutation.
    """
    (x,) = inputs(transpose, 1)
    none: tuple[int, ...] = ()
    order = attribute(transpose, "perm", none) or tuple(reversed(range(rank(x))))
    need(sorted(order) == list(range(rank(x))), "it is no permutation", transpose)
    return order


__all__ = ["axes_of", "node_along", "order_of", "squeezed", "unsqueezed"]
