"""A weighted sum of values that were joined first: the parts can be weighted and added up where they are.

Deformable attention joins what it sampled at each level of a pyramid, a few points each, and sums it by its weights.
A Concat of a few numbers at a time is slow, and so is a sum along them.
"""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    dims,
    inputs,
    is_op,
    is_used_once,
    need,
    need_float32,
    optional,
    producer,
    rank,
    same_dim,
    small_array,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

FORM = Form("", "ReduceSum", "of sums of products")


class Found(Struct, frozen=True):
    """The sum, the product and what joins the parts.

    Attributes:
        nodes: These nodes.
        parts: What is joined, each with its points as the last axis.
        weights: What the joined parts are multiplied by.
        points: How many points each part has.
    """

    nodes: tuple[ir.Node, ...]
    parts: tuple[ir.Value, ...]
    weights: ir.Value
    points: int


class WeightedConcatDecomposition(RewriteRule[Found]):
    """``ReduceSum(Concat(a, b) · w)`` along what is joined → ``ReduceSum(a · v + b · w)`` with the weights split.

    The parts are short; they may be stacked, and the stack flattened.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("ReduceSum",)
    opsets = (13, NEWEST_OPSET)  # the first with axes of ReduceSum and sizes of Split as inputs
    lookback = 4
    providers = (CPU,)
    targets = (Target.ORT,)
    weighs = (FORM,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A sum along the last axis of parts of equal size that a product alone reads."""
        (product,) = inputs(root, 1)
        need_float32(product, "the gain was measured")
        axes = optional(root, 1)
        need(axes is not None, "it sums everything", root)
        last = rank(product) - 1
        need([int(place) % (last + 1) for place in small_array(axes)] == [last], "it sums along other axes", root)
        multiply = producer(product, "Mul")
        need(is_used_once(product), "the product is used elsewhere", product)
        joined, weights = _operands(multiply)
        nodes, parts = _parts(joined)
        points = dims(parts[0])[-1]
        if not isinstance(points, int) or points == 0:
            raise Refusal("the parts are empty, or of no known length", parts[0])
        check_faster(root, FORM, columns=points)
        need(all(same_dim(dims(part)[-1], points) for part in parts), "the parts have different sizes", joined)
        need(same_dim(dims(weights)[-1], points * len(parts)), "the parts share weights", weights)
        return Found((root, multiply, *nodes), parts, weights, points)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Split of the weights, the products, their sum, and the sum of that."""
        root = found.nodes[0]
        count = len(found.parts)
        sizes = constant([found.points] * count)
        split = ir.node("Split", [found.weights, sizes], {"axis": rank(found.weights) - 1}, num_outputs=count)
        products = [
            ir.node("Mul", [part, weight]).outputs[0] for part, weight in zip(found.parts, split.outputs, strict=True)
        ]
        total = ir.node("Sum", products).outputs[0]
        return ops.copied(root, [total, root.inputs[1]])


def _operands(multiply: ir.Node) -> tuple[ir.Value, ir.Value]:
    """What is joined, and its weights, which have its rank."""
    first, second = inputs(multiply, 2)
    for joined, weights in ((first, second), (second, first)):
        node = joined.producer()
        if is_op(node, "Concat") or (is_op(node, "Reshape") and node is not None and _is_joined(node)):
            need(is_used_once(joined), "the joined parts are used elsewhere", joined)
            need(0 < rank(weights) <= rank(joined), "the weights have more axes", weights)
            return joined, weights
    raise Refusal("no joined parts are multiplied", multiply)


def _is_joined(reshape: ir.Node) -> bool:
    source = reshape.inputs[0]
    return source is not None and is_op(source.producer(), "Concat")


def _parts(joined: ir.Value) -> tuple[tuple[ir.Node, ...], tuple[ir.Value, ...]]:
    """The nodes that join the parts along the last axis, and the parts."""
    node = producer(joined, "Concat", "Reshape")
    if node.op_type == "Concat":
        operands = inputs(node, len(node.inputs))
        need(len(operands) > 1, "there is one part", node)
        need(ops.Concat(node).is_last, "the parts are joined along another axis", node)
        return (node,), operands
    stack = inputs(node, 1)[0]
    need(is_used_once(stack), "the joined parts are used elsewhere", stack)
    concat = producer(stack, "Concat")
    before, after = dims(stack), dims(joined)
    operands = inputs(concat, len(concat.inputs))
    need(len(operands) > 1, "there is one part", concat)
    need(len(before) > 2 and ops.Concat(concat).axis == len(before) - 2, "the parts are not stacked", concat)
    flat = len(after) == len(before) - 1 and all(map(same_dim, before[:-2], after[:-1]))
    count, points = len(operands), before[-1]
    flat = flat and isinstance(points, int) and same_dim(after[-1], count * points)
    need(flat, "the Reshape does not flatten the stack", node)
    return (node, concat), tuple(_unstacked(operand) for operand in operands)


def _unstacked(operand: ir.Value) -> ir.Value:
    """What a part was before it got an axis to be stacked along."""
    node = producer(operand, "Unsqueeze")
    own, axes = inputs(node, 2)
    places = [int(place) % rank(operand) for place in small_array(axes)]
    need(places == [rank(operand) - 2], "a part gets another axis", node)
    return own
