"""What becomes of each part of a value can become of the value before it is split.

Diffusion transformers compute six numbers for each channel in one layer, and give each part an axis for positions.
"""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import (
    inputs,
    is_op,
    is_used_once,
    need,
    opset,
    plain_attributes,
    rank,
    users,
)
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """The Split and the Unsqueezes of its parts, and the axes that they add, from the front."""

    nodes: tuple[ir.Node, ...]
    axes: tuple[int, ...]

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """What the Unsqueezes give."""
        return tuple(node.outputs[0] for node in self.nodes[1:])


class SplitUnsqueezeReordering(RewriteRule[Found]):
    """``Unsqueeze(part)`` for all parts of a ``Split`` → ``Split(Unsqueeze(x))``."""

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Split",)
    opsets = (2, NEWEST_OPSET)
    looks_downstream = True

    def match(self, root: ir.Node) -> Found:
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
        return Found((root, *nodes), added.pop())

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the Unsqueeze, and the Split of an axis that is further behind."""
        root, *wider = found.nodes
        (x,) = inputs(root, 1)
        behind = [place for place in range(rank(x) + len(found.axes)) if place not in found.axes]
        wide = ops.unsqueezed(x, found.axes, opset(root))
        attributes = ops.changed(root.attributes.values(), axis=behind[ops.Split(root).axis])
        split = ir.Node("", "Split", [wide, *root.inputs[1:]], attributes, num_outputs=len(root.outputs))
        return {node.outputs[0]: part for node, part in zip(wider, split.outputs, strict=True)}
