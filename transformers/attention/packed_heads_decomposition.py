"""Queries, keys and values of one product, taken apart before their heads are moved: each is then a product's own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Dim,
    Refusal,
    dims,
    inputs,
    is_op,
    is_used,
    is_used_once,
    need,
    producer,
    rank,
    same_dim,
    scalar,
    shape_of,
    users,
)
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

COPY, INFER = 0, -1
"""What a Reshape's target says of a size that is that of the operand, and of one that follows from the others."""


class Found(Struct, frozen=True):
    """The parts, and how each comes from what is packed.

    Attributes:
        nodes: The Transpose, the Reshape behind it if there is one, and the Gathers by part, or the Split.
        replaced: The parts, in order.
        x: What is packed.
        target: What a Reshape of a part of the last axis is told.
        order: The order of its axes.
        joined: What a Reshape behind the Transpose is told of a part; None where there is none.
    """

    nodes: tuple[ir.Node, ...]
    replaced: tuple[ir.Value, ...]
    x: ir.Value
    target: tuple[int, ...]
    order: tuple[int, ...]
    joined: tuple[int, ...] | None

    @property
    def is_split(self) -> bool:
        """Whether each part has a first axis of 1."""
        return is_op(self.nodes[-1], "Split")


class PackedHeadsDecomposition(RewriteRule[Found]):
    """Parts of ``Transpose(Reshape(x, [B, S, 3, N, H]))`` → ``Transpose(Reshape(part, [B, S, N, H]))`` of ``Split(x)``.

    Other passes make products of their own of the parts, and attention that reads heads side by side. Positions may be
    in windows, which are axes of their own, and a Reshape behind the Transpose may join axes, though not the parts.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Transpose",)
    opsets = (13, NEWEST_OPSET)  # the first with the sizes of a Split as an input
    lookback = 1
    looks_downstream = True
    providers = (CPU,)
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Found:
        """A Reshape that splits the last axis, and Gathers of all parts or a Split."""
        (packed,) = inputs(root, 1)
        order = ops.Transpose(root).order
        need(bool(order) and 0 < order[0] < len(order) - 1, "no parts are brought to the front", root)
        place = order[0]
        reshape = producer(packed, "Reshape")
        need(is_used_once(packed), "what is packed is used elsewhere", packed)
        x = inputs(reshape, 2)[0]
        before, after = dims(x), dims(packed, len(order))
        need(bool(before), "what is packed has no axes", x)
        width = _product(after[place:], packed)
        need(width > 0, "there are no heads", packed)
        need(same_dim(before[-1], width), "the Reshape joins other axes", reshape)
        count = after[place]
        assert isinstance(count, int)
        need(count > 1, "there is one part", packed)
        own = (*after[:place], *after[place + 1 :])
        target = _target(own, before[:-1], reshape)
        joined, above = _joined(root, count)
        nodes, parts = _parts(above, count)
        moved = tuple(at - (at > place) for at in order[1:])
        return Found((root, *joined, *nodes), parts, x, target, moved, _rest(joined))

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the Split, and a Reshape and a Transpose for each part."""
        count = len(found.replaced)
        width = dims(found.x)[-1]
        assert isinstance(width, int)
        split = ir.node(
            "Split", [found.x, constant([width // count] * count)], {"axis": rank(found.x) - 1}, num_outputs=count
        )
        new = zip(found.replaced, split.outputs, strict=True)
        return {part: _moved(found, value) for part, value in new if is_used(part)}


def _moved(found: Found, part: ir.Value) -> ir.Value:
    heads = ir.node("Reshape", [part, constant(found.target)]).outputs[0]
    value: ir.Value = ir.node("Transpose", [heads], {"perm": found.order}).outputs[0]
    if found.joined is not None:
        leading = (1,) if found.is_split else ()
        return ir.node("Reshape", [value, constant([*leading, *found.joined])]).outputs[0]
    return ir.node("Unsqueeze", [value, constant([0])]).outputs[0] if found.is_split else value


def _product(sizes: Sequence[Dim], of: ir.Value) -> int:
    """The product of sizes that are all known."""
    numbers = [size for size in sizes if isinstance(size, int)]
    need(len(numbers) == len(sizes), "the sizes of heads are not known", of)
    return math.prod(numbers)


def _target(own: Sequence[Dim], before: Sequence[Dim], at: ir.Node) -> tuple[int, ...]:
    """What a Reshape is told for it to give certain dimensions, of an operand whose leading ones are given."""
    target = []
    for place, size in enumerate(own):
        if place < len(before) and same_dim(size, before[place]):
            target.append(COPY)
        elif isinstance(size, int):
            need(size > 0, "an axis is empty", at)
            target.append(size)
        else:
            target.append(INFER)
    open_ = [size for size in own if not isinstance(size, int)]
    need(INFER not in target or len(open_) == 1, "the Reshape joins other axes", at)
    return tuple(target)


def _joined(root: ir.Node, count: int) -> tuple[tuple[ir.Node, ...], ir.Value]:
    """The Reshape behind the Transpose, if there is one, and what the parts are read from.

    Raises:
        Refusal: If the Reshape joins the parts with another axis.
    """
    result = root.outputs[0]
    need(not result.is_graph_output(), "the parts are a result", root)
    below = users(result)
    if len(below) != 1 or not is_op(below[0], "Reshape") or below[0].inputs[0] is not result:
        return (), result
    value = below[0].outputs[0]
    need(not value.is_graph_output(), "the parts are a result", root)
    shape = dims(value)
    need(bool(shape) and same_dim(shape[0], count), "a Reshape joins the parts with another axis", below[0])
    _target(shape[1:], (), below[0])
    return (below[0],), value


def _rest(joined: Sequence[ir.Node]) -> tuple[int, ...] | None:
    return _target(dims(joined[0].outputs[0])[1:], (), joined[0]) if joined else None


def _parts(packed: ir.Value, count: int) -> tuple[tuple[ir.Node, ...], tuple[ir.Value, ...]]:
    """The Gather of each part, or the Split, and the parts, in order.

    Raises:
        Refusal: If something else is read, or a part not once.
    """
    found: dict[int, ir.Node] = {}
    for node in users(packed):
        if is_op(node, "Split") and len(node.outputs) == count and ops.Split(node).axis == 0:
            need(is_used_once(packed), "the parts are read together", node)
            return (node,), tuple(node.outputs)
        need(is_op(node, "Gather") and node.inputs[0] is packed, "the parts are read together", node)
        need(ops.Gather(node).axis == 0, "the parts are read together", node)
        index = node.inputs[1]
        if index is None or shape_of(index) != ():
            raise Refusal("the parts are read together", node)
        place = int(scalar(index))
        need(place % count not in found and -count <= place < count, "a part is read twice", node)
        found[place % count] = node
    need(len(found) == count, "a part is not read", packed)
    nodes = tuple(found[place] for place in range(count))
    return nodes, tuple(node.outputs[0] for node in nodes)
