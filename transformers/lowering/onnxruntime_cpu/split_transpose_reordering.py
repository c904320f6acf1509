"""A Transpose that moves one axis is fast, one that moves two and ends with another axis goes element by element.

Attention over channels (XCiT, EdgeNeXt), and of pooled tokens (MViT), brings queries, keys and values to the front and
the tokens to the end, in one Transpose of five axes, and splits them there. Where they are split is free.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    Dim,
    Refusal,
    dims,
    inputs,
    is_op,
    is_used_once,
    need,
    producer,
    same_dim,
    users,
)
from ortopt.options import Target, TransformerLevel
from ortopt.patterns.permutations import moves_elements, moves_one_axis
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """The Transpose, the Split and the Squeezes or Reshapes, and what is done instead.

    Attributes:
        nodes: These nodes.
        order: The order of the axes that moves a single one.
        place: The axis in that order that is split.
    """

    nodes: tuple[ir.Node, ...]
    order: tuple[int, ...]
    place: int

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The parts without the axis."""
        return tuple(node.outputs[0] for node in self.nodes[2:])


class SplitTransposeReordering(RewriteRule[Found]):
    """``Squeeze(Split(Transpose(x)))`` → the same along another axis, where the Transpose then moves a single axis.

    And ``Reshape(Split(Transpose(x)))``.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Split",)
    opsets = (13, NEWEST_OPSET)
    providers = (CPU,)
    targets = (Target.ORT,)
    looks_downstream = True

    def match(self, root: ir.Node) -> Found:
        """Parts of size 1 that lose their axis or get another shape, and a Transpose of the last axis and one more."""
        value = inputs(root, 1)[0]
        transpose = producer(value, "Transpose")
        need(is_used_once(value), "what is split is used elsewhere", value)
        x = inputs(transpose, 1)[0]
        perm = ops.Transpose(transpose).order
        split = ops.Split(root).axis
        need(moves_elements(dims(x), perm), "the Transpose is fast", transpose)
        behind = tuple(_behind(part, split) for part in root.outputs)
        rest = (*perm[:split], *perm[split + 1 :])
        shaped = all(is_op(node, "Reshape") for node in behind)
        alike = [rest, _units_in_place(rest, dims(x))] if shaped else [rest]
        orders = ((*rest[:place], perm[split], *rest[place:]) for rest in alike for place in range(len(perm)))
        order = next(filter(moves_one_axis, orders), None)
        if order is None:
            raise Refusal("no Transpose of a single axis does the same", transpose)
        return Found((transpose, root, *behind), order, order.index(perm[split]))

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the Transpose, the Split, and what is behind it."""
        transpose, old, *behind = found.nodes
        turned = ir.node("Transpose", [transpose.inputs[0]], {"perm": found.order}).outputs[0]
        attributes = ops.changed(old.attributes.values(), axis=found.place)
        split = ir.Node("", "Split", [turned, *old.inputs[1:]], attributes, num_outputs=len(behind))
        axes = constant([found.place])
        return {
            node.outputs[0]: _again(node, part, axes).outputs[0]
            for node, part in zip(behind, split.outputs, strict=True)
        }


def _again(node: ir.Node, part: ir.Value, axes: ir.Value) -> ir.Node:
    """A Squeeze or a Reshape of a part whose axis is elsewhere."""
    if node.op_type == "Squeeze":
        return ir.node("Squeeze", [part, axes])
    return ops.copied(node, [part, *node.inputs[1:]])


def _units_in_place(rest: Sequence[int], sizes: Sequence[Dim]) -> tuple[int, ...]:
    """The same order of the elements, the axes of size 1 in front of one that they came before."""
    result = [place for place in rest if not same_dim(sizes[place], 1)]
    for unit in sorted(set(rest) - set(result)):
        later = min((place for place in result if place > unit), default=None)
        result.insert(len(result) if later is None else result.index(later), unit)
    return tuple(result)


def _behind(part: ir.Value, place: int) -> ir.Node:
    """The one node that uses a part: it drops its axis and no other, or gives it another shape."""
    need(is_used_once(part), "a part is used several times, or not at all", part)
    (node,) = users(part)
    if is_op(node, "Reshape"):
        need(node.inputs[0] is part, "a part is a shape", node)
        target = contents(inputs(node, 2)[1])
        numbers = target is not None and all(isinstance(size, int) and size != 0 for size in target)
        need(numbers, "the shape that a part gets is not known, or takes sizes of it", node)
        need(same_dim(dims(part)[place], 1), "a part is larger", part)
        return node
    need(is_op(node, "Squeeze"), "a part does not lose its axis alone", node)
    axes = ops.Squeeze(node).axes
    need(len(axes) == 1, "a part does not lose its axis alone", node)
    need(axes[0] == place, "a part loses another axis", node)
    return node
