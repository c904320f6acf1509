"""A 1x1 convolution of what a linear layer gave is linear in the layer's input: one product can do both.

Heads for segmentation and depth (SegFormer, DPT) project tokens, turn them into an image and project its channels.
"""

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    attribute,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    optional,
    producer,
    rank,
    small_array,
)
from ortopt.linear.layer import Folded, biased, linear
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.convolution import need_points
from ortopt.rule import RewriteRule
from ortopt.transformers.linear._columns import LONGEST_PATH, moved, path_to

COPY, INFER = 0, -1
"""What a Reshape's target says of a size that is that of the operand, and of one that follows from the others."""


class Found(Struct, frozen=True):
    """What computes the result.

    Attributes:
        nodes: The product, the sum if there is one, the nodes that move its axes, in order, and the convolution.
        folded: The product and the convolution as one.
        path: The nodes that move axes, and where the columns are behind each.
        columns: How many columns there are now.
    """

    nodes: tuple[ir.Node, ...]
    folded: Folded
    path: tuple[tuple[ir.Node, int], ...]
    columns: int


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
        last = total.producer()
        first = biased(last) if last is not None and is_op(last, "Add") else linear(producer(total, "MatMul"))
        need(rank(first.x) >= 2, "it multiplies a vector", first.x)
        position, places = rank(first.x) - 1, []
        for step in path:
            before, position = position, moved(step, position)
            places.append(position)
            _check_step(step, before, position)
        need(position == 1, "the columns are not the channels", root)
        need_points(root, kernel)
        second = linear(root)
        folded = Folded((*first.nodes, *path, root), first, first.x, *first.then(second))
        return Found(folded.nodes, folded, tuple(zip(path, places, strict=True)), second.outputs)

    def rewrite(self, found: Found) -> ir.Value:
        """Build the product, and the nodes that move its axes anew: reshapes to as many channels as there are now."""
        value = found.folded.node().outputs[0]
        for step, place in found.path:
            operands = [value, *step.inputs[1:]]
            if step.op_type == "Reshape":
                target = [int(size) for size in small_array(operands[1])]
                if target[place] != INFER:
                    target[place] = found.columns
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
