"""The CPU's kernel for LRN raises every element to a power, one by one; roots and a pool take many at a time."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Code,
    dims,
    inputs,
    is_never_zero,
    need,
    need_float32,
    opset,
    plain_attributes,
)
from ortopt.options import Fusions, Numerics, Target, TransformerLevel
from ortopt.patterns.image_sizes import elements_of_an_image
from ortopt.rule import NEWEST_OPSET, RewriteRule

RANK = 4
FORM = Form("", "AveragePool", "in place of LRN")

LARGEST = 2.0**60
"""The largest scale: what is infinite after it has an infinite square without it."""

SMALLEST = float(np.finfo(np.float32).tiny)


class Found(Struct, frozen=True):
    """The normalization, and its numbers.

    Attributes:
        nodes: The node.
        size: How many channels a window has.
        factor: What the mean of a window's squares is multiplied with.
        power: The power by which it divides.
        bias: What is added to the means.
    """

    nodes: tuple[ir.Node, ...]
    size: int
    factor: float
    power: float
    bias: float


class LrnDecomposition(RewriteRule[Found]):
    """``LRN(x)`` → ``x / (AveragePool(alpha · x · x) + bias)^beta`` with a pool that takes channels for depth.

    A power of ¾ is two roots, ½ is one, 1 is none. For few elements, more kernels cost more than they save; of a large
    window, the pool adds up more than the kernel for LRN, which adds one channel and takes one away. What is not finite
    stays in its window, as the specification has it: ONNX Runtime's kernel carries it on to all channels that follow.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("LRN",)
    opsets = (7, NEWEST_OPSET)  # before, a number broadcasts by an attribute
    providers = (CPU,)
    weighs = (FORM,)
    targets = (Target.ORT,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """An image of enough elements, and a sum that is never 0."""
        options = scope.of(scope.graph_of(root)).options
        need(options.fusions is not Fusions.ALL, "--fusions all keeps what is one op", root, code=Code.COST)
        (x,) = inputs(root, 1)
        need_float32(x)
        image = dims(x, RANK)[1:]
        need(all(is_never_zero(dim, root) for dim in image), "a pool refuses an image without pixels", x)
        found = _numbers(root)
        check_faster(root, FORM, image=elements_of_an_image(x), window=found.size)
        return found

    def rewrite(self, found: Found) -> ir.Node:
        """Build the sums, and divide by their power."""
        (root,) = found.nodes
        x = root.inputs[0]
        scaled = ir.node("Mul", [x, constant(found.factor, FLOAT)]).outputs[0]
        squares = ir.node("Mul", [scaled, x]).outputs[0]
        sums = ir.node("Add", [_means(squares, found), constant(found.bias, FLOAT)]).outputs[0]
        if found.power not in (0.5, 0.75, 1.0):
            inverse = ir.node("Pow", [sums, constant(-found.power, FLOAT)])
            return ir.node("Mul", [x, inverse.outputs[0]])
        return ir.node("Div", [x, _power(sums, found.power)])


def _numbers(root: ir.Node) -> Found:
    """The numbers of a normalization that ONNX Runtime has a kernel for.

    Raises:
        Refusal: If a sum might be 0, negative or no number.
    """
    attributes = plain_attributes(root)
    size = attributes["size"].as_int()
    alpha, power, bias = (
        attributes[name].as_float() if name in attributes else default
        for name, default in (("alpha", 0.0001), ("beta", 0.75), ("bias", 1.0))
    )
    need(size > 0 and size % 2 == 1, "ONNX Runtime has no kernel for a window of an even number of channels", root)
    need(all(map(math.isfinite, (alpha, power, bias))) and power > 0, "it divides by no power", root)
    need(alpha <= LARGEST, "what it scales may be infinite before its square is", root)
    need(bias >= SMALLEST and alpha / size >= SMALLEST, "a sum may be 0 or negative", root)
    return Found((root,), size, alpha, power, bias)


def _means(squares: ir.Value, found: Found) -> ir.Value:
    """The mean over the window around each channel; beyond the first and the last one are zeros."""
    version = opset(found.nodes[0])
    depth = ops.unsqueezed(squares, [1], version)
    side = found.size // 2
    pads = [side, 0, 0, side, 0, 0]
    window: dict[str, int | list[int]] = {"kernel_shape": [found.size, 1, 1], "pads": pads, "count_include_pad": 1}
    pool = ir.node("AveragePool", [depth], window).outputs[0]
    return ops.squeezed(pool, [1], version)


def _power(sums: ir.Value, power: float) -> ir.Value:
    """A power that is made of square roots: ½, ¾ or 1."""
    if power == 1.0:
        return sums
    root = ir.node("Sqrt", [sums]).outputs[0]
    if power == 0.5:
        return root
    return ir.node("Mul", [root, ir.node("Sqrt", [root]).outputs[0]]).outputs[0]
