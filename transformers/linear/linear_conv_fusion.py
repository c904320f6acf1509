"""A 1x1 convolution of what a linear layer gave is linear in the layer's input: one product can do both.

Heads for segmentation and depth (SegFormer, DPT) project tokens, turn them into an image and project its channels.
"""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.magnitudes import need_digits, need_near, need_no_larger
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    Absent,
    array_of,
    attribute,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    optional,
    rank,
    small_array,
    tensor_of,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.convolution import need_points, vector
from ortopt.rule import RewriteRule
from ortopt.transformers.linear._columns import LONGEST_PATH, moved, path_to

COPY, INFER = 0, -1
"""What a Reshape's target says of a size that is that of the operand, and of one that follows from the others."""

MAX_WORK = 1 << 30
"""Multiplications that the product of the weights may take: about a second."""


class Found(Struct, frozen=True):
    """What computes the result.

    Attributes:
        nodes: The product, the sum if there is one, the nodes that move its axes, in order, and the convolution.
        a: What is multiplied.
        path: The nodes that move axes.
        places: For each of them, where the columns are behind it.
        weight: The product of both weights.
        bias: The summand of each column; None for none.
    """

    nodes: tuple[ir.Node, ...]
    a: ir.Value
    path: tuple[ir.Node, ...]
    places: tuple[int, ...]
    weight: np.ndarray
    bias: np.ndarray | None


class LinearConvFusion(RewriteRule[Found]):
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

    def match(self, root: ir.Node) -> Found:
        """Constant weights of floats, and a path on which the columns become the second axis."""
        image, kernel = inputs(root, 2)
        need(is_used_once(image), "the image is used elsewhere", image)
        path, total = path_to(image)
        need(bool(path), "the image is not made of columns", image)
        nodes, a, first, summand = _layer(total)
        need(rank(a) >= 2, "it multiplies a vector", a)
        position, places = rank(a) - 1, []
        for step in path:
            before, position = position, moved(step, position)
            places.append(position)
            _check_step(step, before, position)
        need(position == 1, "the columns are not the channels", root)
        need_points(root, kernel)
        left, right = tensor_of(first), array_of(kernel).reshape(tensor_of(kernel).shape.numpy()[:2]).T
        need(left.dtype in FLOATS and left.dtype == tensor_of(kernel).dtype, "the weights are no floats", first)
        need(len(left.shape) == 2 and left.shape.numpy()[1] == right.shape[0], "the weights do not fit", root)
        (rows, between), columns = left.shape.numpy(), right.shape[1]
        need(rows * columns <= between * (rows + columns), "both weights together are larger", root)
        need(rows * between * columns <= MAX_WORK, "the weights are large", root)
        of_layer, of_points = array_of(first).astype(np.float64), right.astype(np.float64)
        weight, bias = of_layer @ of_points, _bias(root, summand, of_points)
        kind = left.dtype.numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = weight.astype(kind)
            rounded_bias = None if bias is None else bias.astype(kind)
        folded = [rounded] if rounded_bias is None else [rounded, rounded_bias]
        finite = all(bool(np.isfinite(array).all()) for array in folded)
        need(finite, "a folded number would not be finite", root)
        gain = np.abs(of_layer).sum(axis=0)  # of the layer, for an input of magnitude 1
        need_near(gain, (1.0, np.abs(weight).sum(axis=0).max(initial=0.0)), left.dtype, root)
        need_digits(weight, of_layer, left.dtype, root)
        return Found((*nodes, *path, root), a, tuple(path), tuple(places), rounded, rounded_bias)

    def rewrite(self, found: Found) -> ir.Value:
        """Build the product, and the nodes that move its axes anew: reshapes to as many channels as there are now."""
        kind = tensor_of(found.nodes[0].inputs[1]).dtype
        value = ir.node("MatMul", [found.a, constant(found.weight, kind)]).outputs[0]
        if found.bias is not None:
            value = ir.node("Add", [value, constant(found.bias, kind)]).outputs[0]
        for step, place in zip(found.path, found.places, strict=True):
            operands = [value, *step.inputs[1:]]
            if step.op_type == "Reshape":
                target = [int(size) for size in small_array(operands[1])]
                if target[place] != INFER:
                    target[place] = found.weight.shape[1]
                operands[1] = constant(target)
            value = ops.copied(step, operands).outputs[0]
        return value


def _layer(total: ir.Value) -> tuple[tuple[ir.Node, ...], ir.Value, ir.Value, ir.Value | None]:
    """The nodes of a linear layer, its input, its weight, and what it adds to each column."""
    nodes: tuple[ir.Node, ...] = ()
    summand: ir.Value | None = None
    node = total.producer()
    if is_op(node, "Add"):
        assert node is not None
        left, right = inputs(node, 2)
        product, summand = (right, left) if is_constant(left) else (left, right)
        need(is_constant(summand), "what is added is no constant", node)
        nodes = (node,)
        node = product.producer()
    if node is None or not is_op(node, "MatMul"):
        raise Absent("no linear layer comes before", total)
    a, weight = inputs(node, 2)
    return (node, *nodes), a, weight, summand


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


def _bias(root: ir.Node, summand: ir.Value | None, of_points: np.ndarray) -> np.ndarray | None:
    """What the layer's summand and the bias of the convolution add to each column, in float64."""
    own = optional(root, 2)
    if summand is None and own is None:
        return None
    total = np.zeros(of_points.shape[1])
    if summand is not None:
        content = array_of(summand).astype(np.float64)
        need(content.ndim == 1 and content.shape[0] == of_points.shape[0], "it adds more than a row", summand)
        behind = np.abs(of_points).sum(axis=1)
        need_no_larger(np.abs(content), (1.0, behind), tensor_of(summand).dtype, summand)
        total = total + content @ of_points
    if own is not None:
        need(is_constant(own), "the bias is no constant", own)
        total = total + vector(own, len(total))
    return total
