"""Ops that do with a value what they do with its parts along an axis, and where the parts are joined behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import (
    Refusal,
    dims,
    inputs,
    integers,
    is_constant,
    need,
    rank,
    shape_of,
)
from ortopt.semantics.op_traits import BROADCASTING, UNARY


def axis_behind(node: ir.Node, axes: Sequence[int | None]) -> int:
    """The axis along which results of a node are parts of what the op gives of the whole.

    Args:
        node: A node that reads parts.
        axes: For each input the axis along which it is a part; None for what does not differ between the parts.

    Raises:
        Refusal: If the op treats the whole in another way, or that is not known.
    """
    need(node.domain == "", "the op is no standard one", node)
    if node.op_type in UNARY or node.op_type in BROADCASTING:
        return _elementwise(node, axes)
    if node.op_type == "Gather" and axes[0] is None and axes[1] is not None:
        return ops.Gather(node).axis + axes[1]
    along = axes[0]
    if along is None or any(other is not None for other in axes[1:]):
        raise Refusal("the parts are no data of it", node)
    rules = {"Gather": _gather, "Reshape": _reshape, "Split": _split, "Transpose": _transpose}
    rules |= dict.fromkeys(("Squeeze", "Unsqueeze"), _reranked)
    need(node.op_type in rules, "the op is none that treats the whole as its parts", node)
    return rules[node.op_type](node, along)


def _elementwise(node: ir.Node, axes: Sequence[int | None]) -> int:
    """Parts of the same rank along the same axis, with numbers."""
    values = inputs(node, len(node.inputs))
    of = next(value for value, along in zip(values, axes, strict=True) if along is not None)
    places = set()
    for value, along in zip(values, axes, strict=True):
        if along is None:
            number = shape_of(value)
            need(number is not None and all(dim == 1 for dim in number), "an operand is no single number", value)
            need(rank(value) <= rank(of), "an operand raises the rank", value)
        else:
            need(rank(value) == rank(of), "operands have other ranks", value)
            places.add(along)
    need(len(places) == 1, "operands are joined along other axes", node)
    return places.pop()


def _gather(node: ir.Node, along: int) -> int:
    _, places = inputs(node, 2)
    by = ops.Gather(node).axis
    need(by != along, "it selects of the parts", node)
    return along if along < by else along - 1 + rank(places)


def _transpose(node: ir.Node, along: int) -> int:
    return ops.Transpose(node).order.index(along)


def _reranked(node: ir.Node, along: int) -> int:
    listed = set(ops.Axes(node).axes)
    if node.op_type == "Squeeze":
        need(along not in listed, "it drops the axis of the parts", node)
        return along - sum(one < along for one in listed)
    after = rank(inputs(node, 1)[0]) + len(listed)
    return [one for one in range(after) if one not in listed][along]


def _split(node: ir.Node, along: int) -> int:
    need(ops.Split(node).axis != along, "it splits the parts", node)
    return along


def _reshape(node: ir.Node, along: int) -> int:
    """The sizes before the axis have the same product as before, and so have those behind it."""
    part, target = inputs(node, 2)
    need(is_constant(target), "the new shape is not constant", target)
    wanted, shape = integers(target), dims(part)
    need(wanted.count(-1) == 1 and 0 not in wanted, "the new shape does not leave one size open", target)
    at = wanted.index(-1)
    for old, new in ((shape[:along], wanted[:at]), (shape[along + 1 :], wanted[at + 1 :])):
        sizes = [dim for dim in old if isinstance(dim, int)]
        need(len(sizes) == len(old) and math.prod(sizes) == math.prod(new), "it joins the axis with others", node)
    return at


__all__ = ["axis_behind"]
