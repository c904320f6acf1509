"""What scales and shifts rows or columns beside a product of matrices, and other products, go into its constants."""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    attribute,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    optional,
    producer,
    rank,
    same_dim,
    small_array,
)
from ortopt.linear.channels import Effect, affine_above, normalization
from ortopt.linear.folding import LinearFolding
from ortopt.linear.layer import Folded, biased, linear
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.convolutions import need_points
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.op_traits import RESHAPING

LONGEST_PATH = 4
"""So many nodes that move axes are followed."""

COPY, INFER = 0, -1
"""What a Reshape's target says of a size that is that of the operand, and of one that follows from the others."""


class AddMatmulFusion(LinearFolding):
    """``MatMul(x + c, W) + b`` → ``MatMul(x, W) + (c · W + b)``.

    It runs at level 2, because at level 1 the summand may still be part of what another pass recognises.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("bias_add_fusion", "layer_norm_fusion", "scaled_residual_merging")
    roots = ("Add",)

    def match(self, root: ir.Node) -> Folded:
        """A number for each row of a constant matrix, and one for each column."""
        layer = biased(root)
        addition = affine_above(layer.x, "Add")
        return layer.fold_before(addition, layer.effect_of(addition))


class GemmBnFusion(LinearFolding):
    """``BatchNormalization(Gemm(a, B, C))`` → ``Gemm(a, B', C')``."""

    roots = ("BatchNormalization",)
    into = ("Gemm",)


class MatMulBnFusion(LinearFolding):
    """``BatchNormalization(MatMul(a, B))`` → ``Gemm(a, B', c)``, with Reshapes and Transposes between too.

    This holds only if the axes are moved so that the columns become the channels. (ONNX Runtime does not check that.)
    Where `a` is a stack of matrices, which Gemm does not take, it is ``Add(MatMul(a, B'), c)``.
    """

    roots = ("BatchNormalization",)
    lookback = LONGEST_PATH + 1

    def match(self, root: ir.Node) -> Folded:
        """A matrix times a constant matrix, and a path on which the columns become the second axis."""
        path, product = _path_to(inputs(root, 1)[0])
        layer = linear(producer(product, "MatMul"))
        need(rank(layer.x) >= 2, "it multiplies a vector", layer.x)
        position = rank(layer.x) - 1
        for step in path:
            position = _moved(step, position)
        need(position == 1, "the columns are not the channels", root)
        return layer.fold_behind(Effect(*normalization(root, layer.outputs)), *path, root)

    def rewrite(self, found: Folded) -> ir.Node:
        """Build the Gemm, and the nodes that move its axes anew."""
        _, *path, _ = found.nodes
        node = found.node(as_gemm=rank(found.x) == 2)
        for step in path:
            node = ops.copied(step, [node.outputs[0], *step.inputs[1:]])
        return node


class MatmulReassociation(LinearFolding):
    """``(x · W1) · W2`` → ``x · (W1 · W2)`` where that has no more weights.

    Adapters of low rank stay as they are: with a small dimension in the middle, two products are cheaper.
    """

    after = ("constant_folding",)
    roots = ("MatMul",)
    opsets = (1, NEWEST_OPSET)
    lookback = 1

    def match(self, root: ir.Node) -> Folded:
        """Constant matrices of floats."""
        second = linear(root)
        first = linear(producer(second.x, "MatMul"))
        need(is_used_once(second.x), "the first product is used elsewhere", second.x)
        return Folded((first.node, root), first, first.x, *first.then(second))


class LinearConvFusion(RewriteRule[Match]):
    """``Conv(MatMul(a, V) + b)`` with a 1x1 kernel → ``MatMul(a, V·W) + c``, where that has no more weights.

    The axes may be moved between, so that the columns become the channels. `resize_projection_reordering` gives new
    ones at level 3, where `leading_axes_merging` would make another op of the layer.
    """

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL3)
    after = ("constant_folding", "resize_projection_reordering")
    level_independent = True
    roots = ("Conv",)
    needs = ("MatMul",)
    lookback = LONGEST_PATH + 2
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Constant weights of floats, and a path on which the columns become the second axis."""
        image, kernel = inputs(root, 2)
        need(is_used_once(image), "the image is used elsewhere", image)
        path, total = _path_to(image)
        need(bool(path), "the image is not made of columns", image)
        last = total.producer()
        first = biased(last) if is_op(last, "Add") else linear(producer(total, "MatMul"))
        need(rank(first.x) >= 2, "it multiplies a vector", first.x)
        position, places = rank(first.x) - 1, []
        for step in path:
            before, position = position, _moved(step, position)
            places.append(position)
            _check_step(step, before, position)
        need(position == 1, "the columns are not the channels", root)
        need_points(root, kernel)
        second = linear(root)
        folded = Folded((*first.nodes, *path, root), first, first.x, *first.then(second))
        return Match(folded.nodes, lambda: _reshaped(folded, path, places, second.outputs))


def _reshaped(folded: Folded, path: list[ir.Node], places: list[int], columns: int) -> ir.Value:
    """The product, and the nodes that move its axes anew: reshapes to as many columns as there are now.

    Args:
        folded: The product and the convolution as one.
        path: The nodes that move axes.
        places: Where the columns are behind each of them.
        columns: How many columns there are now.
    """
    value = folded.node().outputs[0]
    for step, place in zip(path, places, strict=True):
        operands = [value, *step.inputs[1:]]
        if step.op_type == "Reshape":
            target = [int(size) for size in small_array(operands[1])]
            if target[place] != INFER:
                target[place] = columns
            operands[1] = constant(target)
        value = ops.copied(step, operands).outputs[0]
    return value


def _check_step(step: ir.Node, before: int, behind: int) -> None:
    """Refuse a node that would do something else with another number of columns.

    Args:
        step: A node that moves axes.
        before: Where the columns are in its operand.
        behind: Where they are in its result.
    """
    if step.op_type == "Squeeze":
        need(bool(ops.Squeeze(step).stated_axes), "a Squeeze would take a single column away", step)
    if step.op_type == "Reshape":
        target = optional(step, 1)
        need(target is not None and is_constant(target), "the target of a Reshape is no constant", step)
        need(attribute(step, "allowzero", 0) == 0, "the target of a Reshape may hold zeros", step)
        sizes = small_array(target)
        copied = before != behind and before < len(sizes) and sizes[before] == COPY
        need(not copied, "a Reshape gives the number of columns to another axis", step)


def _path_to(value: ir.Value) -> tuple[list[ir.Node], ir.Value]:
    """The nodes above a value that only move its axes, in order of computation, and what they move."""
    path: list[ir.Node] = []
    while len(path) < LONGEST_PATH and is_op(node := value.producer(), *RESHAPING, "Transpose"):
        path.insert(0, node)
        value = inputs(node, 1)[0]
    return path, value


def _moved(node: ir.Node, position: int) -> int:
    """The new position of an axis that a node moves, but neither splits nor joins.

    Raises:
        Refusal: If it is not known, or the axis is cut or joined with another one.
    """
    source = dims(inputs(node, 1)[0])
    if node.op_type == "Transpose":
        return ops.Transpose(node).order.index(position)
    result = dims(node.outputs[0])
    before = symbolic.product(source[:position])
    for axis, dim in enumerate(result):
        if same_dim(dim, source[position]) and same_dim(symbolic.product(result[:axis]), before):
            return axis
    raise Refusal("the columns may be cut or joined", node)
