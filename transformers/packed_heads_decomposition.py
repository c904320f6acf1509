"""Queries, keys and values of one product, taken apart before their heads are moved: each is then a product's own."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    attribute,
    dims,
    inputs,
    is_op,
    is_used_once,
    need,
    producer,
    same_dim,
    scalar,
    shape_of,
    users,
)
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

PARTS_FIRST = (2, 0, 3, 1, 4)
HEADS_FIRST = (0, 2, 1, 3)
NO_ORDER: tuple[int, ...] = ()
ROWS = 3
PACKED = 5


class Found(Struct, frozen=True):
    """The Transpose, the Gathers by part, what is packed, how many heads there are, and their size."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    heads: int
    size: int

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The parts."""
        return tuple(node.outputs[0] for node in self.nodes[1:])


class PackedHeadsDecomposition(RewriteRule[Found]):
    """Parts of ``Transpose(Reshape(x, [B, S, 3, N, H]))`` → ``Transpose(Reshape(part, [B, S, N, H]))`` of ``Split(x)``.

    Other passes make products of their own of the parts, and attention that reads heads side by side.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Transpose",)
    opsets = (13, NEWEST_OPSET)  # the first with the sizes of a Split as an input
    lookback = 1
    looks_downstream = True
    providers = (CPU,)
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Found:
        """A Reshape that splits the last axis in three, and Gathers of all parts."""
        (packed,) = inputs(root, 1)
        need(attribute(root, "perm", NO_ORDER) == PARTS_FIRST, "no parts are brought to the front", root)
        reshape = producer(packed, "Reshape")
        need(is_used_once(packed), "what is packed is used elsewhere", packed)
        x = inputs(reshape, 2)[0]
        before, after = dims(x, ROWS), dims(packed, PACKED)
        need(all(map(same_dim, before[:2], after[:2])), "the Reshape joins other axes", reshape)
        parts, heads, size = after[2:]
        if not isinstance(parts, int) or not isinstance(heads, int) or not isinstance(size, int):
            raise Refusal("the sizes of heads are not known", packed)
        need(parts * heads * size > 0, "there are no heads", packed)
        return Found((root, *_gathers(root, parts)), x, heads, size)

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the Split, and a Reshape and a Transpose for each part."""
        width = found.heads * found.size
        sizes = constant([width] * len(found.replaced))
        split = ir.node("Split", [found.x, sizes], {"axis": ROWS - 1}, num_outputs=len(found.replaced))
        target = constant([0, 0, found.heads, found.size])
        heads = [ir.node("Reshape", [part, target]).outputs[0] for part in split.outputs]
        moved = [ir.node("Transpose", [value], {"perm": HEADS_FIRST}).outputs[0] for value in heads]
        return dict(zip(found.replaced, moved, strict=True))


def _gathers(root: ir.Node, count: int) -> list[ir.Node]:
    """The Gather of each part, in order.

    Raises:
        Refusal: If something else is read, or a part not once.
    """
    result = root.outputs[0]
    need(not result.is_graph_output(), "the parts are a result", root)
    found: dict[int, ir.Node] = {}
    for node in users(result):
        need(is_op(node, "Gather") and node.inputs[0] is result, "the parts are read together", node)
        need(attribute(node, "axis", 0) == 0, "the parts are read together", node)
        index = node.inputs[1]
        if index is None or shape_of(index) != ():
            raise Refusal("the parts are read together", node)
        place = int(scalar(index))
        need(place % count not in found and -count <= place < count, "a part is read twice", node)
        found[place % count] = node
    need(len(found) == count, "a part is not read", root)
    return [found[place] for place in range(count)]
