"""An attention of a value with itself projects queries, keys and values at once, right into heads."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    array_of,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used,
    is_used_once,
    need,
    optional,
    plain_attributes,
    tensor_of,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT

KEPT = ("mask_filter_value", "num_heads", "scale", "unidirectional")
"""Attributes that mean the same in both ops."""


class Projection(Struct, frozen=True):
    """``x · weight + bias``.

    Attributes:
        nodes: The product and the sum.
        x: What is projected, [batch, length, width].
        weight: A constant [width, hidden].
        bias: A constant of as many elements as there are columns, or None.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None

    @property
    def hidden(self) -> int:
        """How many columns the weight has."""
        return int(tensor_of(self.weight).shape.numpy()[1])


class Found(Struct, frozen=True):
    """The nodes that go, and what the new one reads.

    Attributes:
        nodes: The projections and the attention.
        root: The attention.
        projections: Of queries, keys and values; one where they are parts of one projection.
        sizes: The width of queries, keys and values.
        bias: What the attention itself adds to queries, keys and values, or None.
        mask: What is added to the scores, or None.
    """

    nodes: tuple[ir.Node, ...]
    root: ir.Node
    projections: tuple[Projection, ...]
    sizes: tuple[int, ...]
    bias: ir.Value | None
    mask: ir.Value | None


class PackedAttentionFusion(RewriteRule[Found]):
    """``MultiHeadAttention(x·q + a, x·k + b, x·v + c)`` → ``com.microsoft.Attention(x, [q|k|v], [a|b|c])``.

    The weights must be constants, and they are stored in another order. The pass does nothing if the opset has the
    standard Attention, which is as fast.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("attention_fusion", "matmul_reassociation", "scale_folding")
    roots = (f"{MICROSOFT}::MultiHeadAttention",)
    lookback = 4
    produces = ((MICROSOFT, "Attention"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """An attention whose queries, keys and values are projections of one value."""
        query, key, value = inputs(root, 3)
        for position, what in ((4, "a mask of keys"), (6, "a past"), (7, "a past"), (9, "a cache")):
            need(optional(root, position) is None, f"it has {what}", root)
        need(not any(map(is_used, root.outputs[1:])), "its keys and values are used elsewhere", root)
        mask, bias = optional(root, 5), optional(root, 3)
        packed = _packed((query, key, value))
        nodes, projections, sizes = _separate((query, key, value)) if packed is None else packed
        need(sizes[0] == sizes[1], "queries and keys have heads of different sizes", key)
        if bias is not None:
            need(is_constant(bias) and dims(bias) == (sum(sizes),), "its bias is not a constant row", bias)
        return Found((*nodes, root), root, projections, sizes, bias, mask)

    def rewrite(self, found: Found) -> ir.Node:
        """Put weights and biases side by side."""
        first = found.projections[0]
        weights = [array_of(projection.weight) for projection in found.projections]
        weight = first.weight if len(weights) == 1 else constant(np.concatenate(weights, axis=1))
        attributes = {name: given.value for name, given in plain_attributes(found.root).items() if name in KEPT}
        if len(set(found.sizes)) > 1:
            attributes["qkv_hidden_sizes"] = list(found.sizes)
        operands: list[ir.Value | None] = [first.x, weight, _bias(found, weights[0].dtype)]
        if found.mask is not None:
            operands += [None, None, found.mask]
        return ir.node("Attention", operands, attributes, domain=MICROSOFT)


def _bias(found: Found, dtype: np.dtype) -> ir.Value:
    """What is added to all projections: the kernel wants something even where it is nothing."""
    if len(found.projections) == 1 and found.bias is None and found.projections[0].bias is not None:
        only = found.projections[0].bias
        if len(dims(only)) == 1:
            return only
    parts = [
        np.zeros(projection.hidden, dtype) if projection.bias is None else array_of(projection.bias).reshape(-1)
        for projection in found.projections
    ]
    total = np.concatenate(parts)
    return constant(total if found.bias is None else total + array_of(found.bias).reshape(-1))


def _packed(
    values: tuple[ir.Value, ...],
) -> tuple[tuple[ir.Node, ...], tuple[Projection, ...], tuple[int, ...]] | None:
    """The one projection that queries, keys and values are the parts of, in this order; None if they are not."""
    split = values[0].producer()
    if not is_op(split, "Split"):
        return None
    assert split is not None
    if len(split.outputs) != 3 or any(one is not other for one, other in zip(split.outputs, values, strict=True)):
        return None
    need(ops.Split(split).axis == 2, "the projection is not split in its last dimension", split)
    whole = split.inputs[0]
    assert whole is not None
    need(is_used_once(whole) and all(map(is_used_once, values)), "the projection is used elsewhere", whole)
    projection = _projection(whole)
    sizes = tuple(dims(value, 3)[2] for value in values)
    known = tuple(size for size in sizes if isinstance(size, int))
    need(len(known) == 3, "the parts have no known sizes", split)
    return (*projection.nodes, split), (projection,), known


def _separate(
    values: tuple[ir.Value, ...],
) -> tuple[tuple[ir.Node, ...], tuple[Projection, ...], tuple[int, ...]]:
    for value in values:
        need(is_used_once(value), "the projection is used elsewhere", value)
    projections = tuple(map(_projection, values))
    alike = all(projection.x is projections[0].x for projection in projections)
    need(alike, "queries, keys and values are projections of different values", values[1])
    nodes = tuple(node for projection in projections for node in projection.nodes)
    return nodes, projections, tuple(projection.hidden for projection in projections)


def _projection(value: ir.Value) -> Projection:
    """The product, and what is added to it.

    Raises:
        Refusal: If it is no product of a value with three dimensions and a constant matrix.
    """
    node, bias = value.producer(), None
    nodes: list[ir.Node] = []
    if is_op(node, "Add"):
        assert node is not None
        nodes.append(node)
        a, b = inputs(node, 2)
        product, bias = (a, b) if is_constant(b) else (b, a)
        need(is_constant(bias) and is_used_once(product), "what is added to a projection is not a constant", value)
        node = product.producer()
    if not is_op(node, "MatMul"):
        raise Refusal("queries, keys or values are not a projection", value)
    assert node is not None
    x, weight = inputs(node, 2)
    dims(x, 3)
    need(is_constant(weight) and len(dims(weight)) == 2, "a projection's weight is not a constant matrix", weight)
    if bias is not None:
        own, columns = dims(bias), dims(weight)[1]
        need(own[-1:] == (columns,) and set(own[:-1]) <= {1} and len(own) <= 3, "the bias is no row", bias)
    return Projection((node, *nodes), x, weight, bias)
