"""Slices that together take all of an axis are one Split."""

from collections.abc import Mapping

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import (
    Refusal,
    dims,
    inputs,
    is_op,
    is_used_once,
    need,
    opset,
    users,
)
from ortopt.onnx_ir_internals import use_count
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.views.index_map import identity, part_along
from ortopt.views.reading import after

MAX_PARTS = 64


class Part(Struct, frozen=True):
    """The part of an axis that one node takes; a Gather by a scalar drops the axis."""

    node: ir.Node
    start: int
    end: int
    drops: bool


class Found(Struct, frozen=True):
    """The nodes, what they take apart, the axis, and the parts in their order."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    place: int
    parts: tuple[Part, ...]

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """All their results."""
        return tuple(node.outputs[0] for node in self.nodes)


class GatherSliceToSplitFusion(RewriteRule[Found]):
    """``Slice``, ``Gather`` of all parts of an axis → ``Split``.

    A Gather by a scalar becomes a part and a Squeeze: the Slices must save more nodes than these Squeezes add. Where
    only another Slice reads a part, merging the two Slices must not save more.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = (
        *("concat_slice_elimination", "gather_to_slice_fusion", "slice_merging", "slice_elimination"),
        "space_to_depth_fusion",  # it reads Slices, not the Split that they would become
    )
    roots = ("Gather", "Slice")
    opsets = (2, NEWEST_OPSET)  # the first with Split of the sizes as an attribute
    lookback = 1
    looks_downstream = True

    def match(self, root: ir.Node) -> Found:
        """Parts that follow one another from 0 to the fixed dimension."""
        (x,) = inputs(root, 1)
        first, place = _part(root)
        need(first.start == 0, "it is not the first part", root)
        size = dims(x)[place]
        need(isinstance(size, int), "the dimension is not fixed", x)
        need(use_count(x) <= MAX_PARTS, "too many nodes use it", x)
        need(not is_op(x.producer(), "Shape"), "shape arithmetic keeps its form", x)
        by_start = {first.start: first}
        for user in users(x):
            if user is root or user.graph is not root.graph or not is_op(user, "Gather", "Slice"):
                continue
            try:
                part, along = _part(user)
            except Refusal:
                continue
            if along == place and user.inputs[0] is x:
                by_start.setdefault(part.start, part)
        parts = []
        end = 0
        while end != size:
            following = by_start.pop(end, None)
            if following is None or following.end <= end:
                raise Refusal("no node takes the next part", root)
            parts.append(following)
            end = following.end
        nodes_after = 1 + sum(part.drops for part in parts)
        need(len(parts) > nodes_after, "there would be no fewer nodes", root)
        need(sum(map(_is_sliced, parts)) <= len(parts) - nodes_after, "Slices of the parts can take more away", root)
        return Found(tuple(part.node for part in parts), x, place, tuple(parts))

    def rewrite(self, found: Found) -> Mapping[ir.Value, ir.Value]:
        """Build the Split, and a Squeeze for each axis that is dropped."""
        version = opset(found.nodes[0])
        sizes = [part.end - part.start for part in found.parts]
        outputs = ops.split_node(found.source, found.place, sizes, version).outputs
        result = {}
        for part, value in zip(found.parts, outputs, strict=True):
            result[part.node.outputs[0]] = ops.squeezed(value, [found.place], version) if part.drops else value
        return result


def _is_sliced(part: Part) -> bool:
    """Whether only a Slice reads a part."""
    (value,) = part.node.outputs
    if part.node.op_type != "Slice" or not is_used_once(value):
        return False
    (user,) = users(value)
    return is_op(user, "Slice") and user.inputs[0] is value and user.graph is part.node.graph


def _part(node: ir.Node) -> tuple[Part, int]:
    """What a node takes, and along which axis."""
    (x,) = inputs(node, 1)
    places = ops.Slice(node).axes if is_op(node, "Slice") else (ops.Gather(node).axis,)
    need(len(places) == 1, "it is along several axes", node)
    return Part(node, *part_along(after(identity(x), node), places[0])), places[0]
