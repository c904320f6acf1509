"""Splits: Slices that together take all of an axis are one, and what becomes of each part may come before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import (
    Refusal,
    dims,
    inputs,
    is_op,
    is_used_once,
    need,
    opset,
    plain_attributes,
    rank,
    users,
)
from ortopt.onnx_ir_internals import use_count
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.views.index_map import identity, part_along
from ortopt.views.reading import after

MAX_PARTS = 64

SPLIT_TAKES_SIZES_FROM = 2
"""In the first version of Split an input could hold the sizes, as floats too."""


class Part(NamedTuple):
    """The part of an axis that one node takes; a Gather by a scalar drops the axis."""

    node: ir.Node
    start: int
    end: int
    drops: bool


class GatherSliceToSplitFusion(RewriteRule[Match]):
    """``Slice``, ``Gather`` of all parts of an axis → ``Split``.

    A Gather by a scalar becomes a part and a Squeeze: the Slices must save more nodes than these Squeezes add. Where
    only another Slice reads a part, merging the two Slices must not save more.
    """

    after = (
        *("concat_slice_elimination", "gather_to_slice_fusion", "slice_merging", "slice_elimination"),
        "space_to_depth_fusion",  # it reads Slices, not the Split that they would become
    )
    roots = ("Gather", "Slice")
    opsets = (SPLIT_TAKES_SIZES_FROM, NEWEST_OPSET)
    lookback = 1
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
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
        results = tuple(part.node.outputs[0] for part in parts)
        return Match(tuple(part.node for part in parts), lambda: _split(x, place, parts), results)


def _split(x: ir.Value, place: int, parts: Sequence[Part]) -> dict[ir.Value, ir.Value]:
    """Build the Split, and a Squeeze for each axis that is dropped."""
    version = opset(parts[0].node)
    outputs = ops.split_node(x, place, [part.end - part.start for part in parts], version).outputs
    return {
        part.node.outputs[0]: ops.squeezed(value, [place], version) if part.drops else value
        for part, value in zip(parts, outputs, strict=True)
    }


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


class SplitUnsqueezeReordering(RewriteRule[Match]):
    """``Unsqueeze(part)`` for all parts of a ``Split`` → ``Split(Unsqueeze(x))``.

    Diffusion transformers compute six numbers for each channel in one layer, and give each part an axis for positions.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Split",)
    opsets = (SPLIT_TAKES_SIZES_FROM, NEWEST_OPSET)
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """Parts that nothing else reads, all of them with the same axes added."""
        need(len(root.outputs) > 1, "there is one part only", root)
        need(all(map(is_used_once, root.outputs)), "a part is used elsewhere, or not at all", root)
        nodes = [users(part)[0] for part in root.outputs]
        alike = all(is_op(node, "Unsqueeze") and node.graph is root.graph for node in nodes)
        need(alike, "a part is not unsqueezed", root)
        need(all(node.inputs[0] is part for node, part in zip(nodes, root.outputs, strict=True)), "it is an axis", root)
        plain_attributes(root)
        added = {ops.Unsqueeze(node).axes for node in nodes}
        need(len(added) == 1, "the parts get different axes", root)
        (axes,) = added
        results = tuple(node.outputs[0] for node in nodes)

        def build() -> dict[ir.Value, ir.Value]:
            (x,) = inputs(root, 1)
            behind = [place for place in range(rank(x) + len(axes)) if place not in axes]
            wide = ops.unsqueezed(x, axes, opset(root))
            attributes = ops.changed(root.attributes.values(), axis=behind[ops.Split(root).axis])
            split = ir.Node("", "Split", [wide, *root.inputs[1:]], attributes, num_outputs=len(root.outputs))
            return dict(zip(results, split.outputs, strict=True))

        return Match((root, *nodes), build, results)
