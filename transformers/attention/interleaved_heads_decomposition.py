"""Queries, keys and values side by side in each head become all queries, all keys, all values: weights are sorted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    dims,
    inputs,
    is_op,
    is_used,
    is_used_once,
    need,
    same_dim,
    users,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.transformers.attention._product_columns import columns_of, reordered
from ortopt.views.index_map import identity, part_along
from ortopt.views.reading import after

PAIR = 2
"""Parts that are not taken apart: a rotary embedding rotates some of a head, and joins it with the others again."""


class Part(Struct, frozen=True):
    """A part of each head.

    Attributes:
        value: Its value.
        start: Where it begins along the axis of parts.
        end: Where it ends.
        drops: Whether the axis is gone.
    """

    value: ir.Value
    start: int
    end: int
    drops: bool


class Found(Struct, frozen=True):
    """What is taken apart.

    Attributes:
        nodes: The Reshape, the Transpose if there is one, the nodes that take parts, and those of the product.
        product: The nodes of the product.
        rank: The rank of the product's result.
        heads: How many heads there are.
        inner: What a head has: parts, or parts and their size.
        perm: The order that the Transpose brings the axes into.
        parts: All parts, in their order.
    """

    nodes: tuple[ir.Node, ...]
    product: tuple[ir.Node, ...]
    rank: int
    heads: int
    inner: tuple[int, ...]
    perm: tuple[int, ...]
    parts: tuple[Part, ...]

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The parts that anything needs."""
        return tuple(part.value for part in self.parts if is_used(part.value))


class InterleavedHeadsDecomposition(RewriteRule[Found]):
    """Parts of the last axes of ``Reshape(x · W, [B, S, N, 3 · H])`` → ``Reshape(part, [B, S, N, H])`` of a Split.

    The columns of W, and what is added to them, come in the order of the parts. Queries, keys and values then have
    their heads side by side, which attention reads as they are, and may be products of their own.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Reshape",)
    opsets = (13, NEWEST_OPSET)  # the first with the sizes of a Split as an input
    lookback = 6
    looks_downstream = True
    providers = (CPU,)
    targets = (Target.ORT,)
    numerics = Numerics.REORDERED  # a kernel may sum the last columns, which fill no block, in another order

    def match(self, root: ir.Node) -> Found:
        """A Reshape that splits the columns of a product into heads, and nodes that take parts of each."""
        x, split = inputs(root, 1)[0], root.outputs[0]
        before, after = dims(x), dims(split)
        outer = len(before) - 1
        need(len(after) - len(before) in {1, 2}, "no columns are split into heads", root)
        need(all(map(same_dim, before[:-1], after)), "the Reshape joins other axes", root)
        heads, *inner = (dim if isinstance(dim, int) else 0 for dim in after[outer:])
        need(heads > 1 and before[-1] == heads * math.prod(inner) > 0, "the sizes of heads are not known", split)
        perm, moved, nodes = _moved(split)
        place = perm.index(outer + 1)
        parts = sorted(_parts(moved, place), key=lambda part: part.start)
        bounds = [0, *itertools.chain.from_iterable((part.start, part.end) for part in parts), inner[0]]
        gapless = all(bounds[at] == bounds[at + 1] for at in range(0, len(bounds), 2))
        need(gapless, "the parts are not all of a head, each once", moved)
        need(len(parts) > PAIR, "two parts of a head may be what is rotated, and the rest", moved)
        product = columns_of(x)
        matched = (root, *nodes, *dict.fromkeys(users(moved)), *product)
        return Found(matched, product, outer + 1, heads, tuple(inner), perm, tuple(parts))

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the product with other weights, the Split, and a Reshape and a Transpose for each part."""
        unit = math.prod(found.inner[1:])
        columns = np.arange(found.heads * math.prod(found.inner)).reshape(found.heads, -1)
        order = np.concatenate([columns[:, part.start * unit : part.end * unit].reshape(-1) for part in found.parts])
        sizes = [found.heads * (part.end - part.start) * unit for part in found.parts]
        product = reordered(found.product, order)
        attributes = {"axis": found.rank - 1}
        split = ir.node("Split", [product, constant(sizes)], attributes, num_outputs=len(sizes))
        pairs = zip(found.parts, split.outputs, strict=True)
        return {part.value: _heads(value, part, found) for part, value in pairs if is_used(part.value)}


def _heads(value: ir.Value, part: Part, found: Found) -> ir.Value:
    """A part with its heads apart, in the order of axes that it had."""
    own = found.inner[1:] if part.drops else (part.end - part.start, *found.inner[1:])
    target = constant([*[0] * (found.rank - 1), found.heads, *own])
    result = ir.node("Reshape", [value, target]).outputs[0]
    order = _without(found.perm, found.rank) if part.drops else found.perm
    if order == tuple(range(len(order))):
        return result
    return ir.node("Transpose", [result], {"perm": order}).outputs[0]


def _without(perm: Sequence[int], place: int) -> tuple[int, ...]:
    """An order of axes when one of them is gone."""
    return tuple(at - (at > place) for at in perm if at != place)


def _moved(split: ir.Value) -> tuple[tuple[int, ...], ir.Value, tuple[ir.Node, ...]]:
    """The order that a Transpose brings axes into, its result, and itself; nothing happens where there is none."""
    need(not split.is_graph_output(), "what is split is a result", split)
    readers = users(split)
    if is_used_once(split) and is_op(readers[0], "Transpose"):
        perm = ops.Transpose(readers[0]).order
        need(not readers[0].outputs[0].is_graph_output(), "what is split is a result", split)
        return perm, readers[0].outputs[0], (readers[0],)
    return tuple(range(len(dims(split)))), split, ()


def _parts(value: ir.Value, place: int) -> Iterator[Part]:
    """What the nodes that read a value take of an axis.

    Raises:
        Refusal: If one takes something else.
    """
    for node in dict.fromkeys(users(value)):
        need(node.graph is value.graph and node.inputs[0] is value, "something else reads the heads", node)
        for result in node.outputs:
            yield Part(result, *part_along(after(identity(value), node, result), place))
