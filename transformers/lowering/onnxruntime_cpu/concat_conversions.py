"""Concats of parts that are moved, or weighted, before or behind: one move, or none, does the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Dim,
    Refusal,
    dims,
    inputs,
    is_op,
    is_used_once,
    need,
    need_fixed,
    need_float32,
    need_known,
    opset,
    optional,
    producer,
    rank,
    same_dim,
    small_array,
)
from ortopt.options import MEASURED_TARGETS, Numerics
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.semantics.op_traits import RESHAPING
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED, CpuRule
from ortopt.views.emission import chain
from ortopt.views.index_map import identity, reordered, reshaped, same
from ortopt.views.reading import maps, through


class InterleavedConcatConversion(CpuRule[Match]):
    """``Transpose(Reshape(Concat(a, b)))`` that interleaves a and b → ``Concat(Unsqueeze(a), Unsqueeze(b))``.

    Tensors that are joined one after another and then interleaved are copied twice; joined in turns, they are once.

    ShuffleNet and its relatives shuffle the channels of two branches so, a Concat, a Reshape and a Transpose each time.

    The same bits, and one move of the elements instead of two.
    """

    roots = ("Transpose",)
    opsets = (5, NEWEST_OPSET)  # the first with a Reshape to a shape that is an input

    def match(self, root: ir.Node) -> Match:
        """Moves that put the number of the tensor behind the place in it."""
        (apart,) = inputs(root, 1)
        reshape = producer(apart, *sorted(RESHAPING), alone="what is reshaped is used elsewhere")
        (joined,) = inputs(reshape, 1)
        concat = producer(joined, "Concat", alone="what is joined is used elsewhere")
        along, parts = ops.Concat(concat).axis, inputs(concat, len(concat.inputs))
        need(len(parts) > 1, "it joins nothing", concat)
        size = dims(parts[0])[along]
        need(all(same_dim(dims(part)[along], size) for part in parts), "the tensors have several sizes", concat)
        whole = dims(joined)
        tensors = reshaped(identity(joined), (*whole[:along], len(parts), size, *whole[along + 1 :]))
        behind = [*range(along), along + 1, along, *range(along + 2, len(whole) + 1)]
        need(same(through(joined, reshape, root), reordered(tensors, behind)), "the tensors take no turns", root)
        return Match((concat, reshape, root), lambda: _joined(parts, along + 1, opset(root)))


def _joined(parts: Sequence[ir.Value], axis: int, version: int) -> ir.Node:
    """Build the new axis of each tensor, behind the one that they share, and join them along it."""
    return ir.node("Concat", [ops.unsqueezed(part, [axis], version) for part in parts], {"axis": axis})


MAX_MOVES = 4
"""How many moves take a part, at most."""


class StridedConcatConversion(CpuRule[Match]):
    """``Concat`` of ``x[:, i::b, j::b]`` for all i, j → ``Reshape(Transpose(Reshape(x)))``, for channels that are last.

    Slices with steps and a Concat of what they take copy every pixel three times; one Transpose copies it once.

    Swin, its relatives and other pyramids of transformers join the channels of neighbouring pixels so, channels last.

    And of all other parts that follow one another at equal distances, however they are taken.
    """

    roots = ("Concat",)
    opsets = (5, NEWEST_OPSET)  # the first with a Reshape to a shape that is an input

    def match(self, root: ir.Node) -> Match:
        """Parts of one value, at equal distances, of which rows of channels stay together."""
        result = root.outputs[0]
        need(ops.Concat(root).axis_of(rank(result)) == rank(result) - 1, "it does not join the last axis", root)
        found = need_known(
            next((one for one in maps(result, MAX_MOVES) if one.source is not result), None),
            "it joins no parts of one value in an order of theirs",
            root,
        )
        need_float32(found.source, MEASURED)
        need(all(map(is_used_once, inputs(root, len(root.inputs)))), "a part is used elsewhere", root)
        once = chain(found, root)
        need(not once.cuts and not once.repeats and once.nodes <= 3, "no Transpose does the same", root)
        need(not once.transposes or once.moves.keeps_last, "the channels do not stay together", root)
        return Match((root,), once.build)


FEWEST_PARTS = 3
"""As many as were measured: two are joined faster."""

SUMS_OF_PRODUCTS = Form("", "ReduceSum", "of sums of products")


class WeightedConcatDecomposition(CpuRule[Match]):
    """``ReduceSum(Concat(a, b) · w)`` along what is joined → ``ReduceSum(a · v + b · w)`` with the weights split.

    A weighted sum of values that were joined first: the parts can be weighted and added up where they are.

    Deformable attention joins what it sampled at each level of a pyramid, a few points each, and sums it by its
    weights. A Concat of a few numbers at a time is slow, and so is a sum along them.

    The parts are short; they may be stacked, and the stack flattened.
    """

    targets = MEASURED_TARGETS
    roots = ("ReduceSum",)
    opsets = (13, NEWEST_OPSET)  # the first with axes of ReduceSum and sizes of Split as inputs
    lookback = 4
    weighs = (SUMS_OF_PRODUCTS,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A sum along the last axis of parts of equal size that a product alone reads."""
        (product,) = inputs(root, 1)
        need_float32(product, MEASURED)
        axes = optional(root, 1)
        need(axes is not None, "it sums everything", root)
        last = rank(product) - 1
        need([int(place) % (last + 1) for place in small_array(axes)] == [last], "it sums along other axes", root)
        multiply = producer(product, "Mul", alone="the product is used elsewhere")
        joined, weights = _operands(multiply)
        nodes, parts = _parts(joined)
        need(len(parts) >= FEWEST_PARTS, "there are few parts", joined)
        (points,) = need_fixed(dims(parts[0])[-1:], "the parts are empty, or of no known length", parts[0])
        need(points > 0, "the parts are empty, or of no known length", parts[0])
        groups, row = _shared(dims(parts[0]), (*dims(weights)[:-1], points))
        check_faster(root, SUMS_OF_PRODUCTS, columns=points, elements=dims(parts[0]), groups=groups, row=row)
        need(all(same_dim(dims(part)[-1], points) for part in parts), "the parts have different sizes", joined)
        need(same_dim(dims(weights)[-1], points * len(parts)), "the parts share weights", weights)
        return Match((root, multiply, *nodes), lambda: _of_parts(root, parts, weights, points))


def _shared(part: Sequence[Dim], weights: Sequence[Dim]) -> tuple[list[Dim], list[Dim]]:
    """How many numbers of a part have the same weight, and how many weights there are in a row before they repeat.

    Args:
        part: The dimensions of a part.
        weights: Those of its weights.

    Returns:
        The dimensions of which each is the product.
    """
    lacking = len(part) - len(weights)
    each = (*(1 for _ in range(lacking)), *weights)
    repeats = [same_dim(own, 1) and not same_dim(dim, 1) for dim, own in zip(part, each, strict=True)]
    groups = [dim for dim, repeated in zip(part, repeats, strict=True) if repeated]
    row = itertools.takewhile(lambda axis: not repeats[axis], reversed(range(len(part))))
    return groups, [part[axis] for axis in row]


def _of_parts(root: ir.Node, parts: Sequence[ir.Value], weights: ir.Value, points: int) -> ir.Node:
    """Build the Split of the weights, the products, their sum, and the sum of that."""
    count = len(parts)
    sizes = constant([points] * count)
    split = ir.node("Split", [weights, sizes], {"axis": rank(weights) - 1}, num_outputs=count)
    products = [ir.node("Mul", pair).outputs[0] for pair in zip(parts, split.outputs, strict=True)]
    return ops.copied(root, [ir.node("Sum", products).outputs[0], root.inputs[1]])


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
