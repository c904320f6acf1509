"""Convolutions of one input whose results are added are one convolution with the sum of their weights.

Networks that are trained with several branches a layer (RepVGG, MobileOne, PP-LCNetV3) are often exported so.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.magnitudes import need_no_larger
from ortopt.graph.match import (
    Refusal,
    array_of,
    choose,
    inputs,
    is_op,
    is_used_once,
    need,
    plain_attributes,
    producer,
    tensor_of,
)
from ortopt.linear.channels import normalization
from ortopt.linear.folding import LinearFolding
from ortopt.linear.layer import Folded, Linear, linear
from ortopt.linear.weights import MAX_BYTES, Array, rounded


class Branch(Struct, frozen=True):
    """A convolution, or a normalization as one.

    Attributes:
        node: The node.
        weight: Its weights in float64: output channels, input channels of a group, kernel.
        bias: One number for each output channel.
        strides: The steps of the kernel.
        pads: The zeros before each axis, then behind each.
        dilations: How far the elements of the kernel lie apart.
    """

    node: ir.Node
    weight: Array
    bias: Array
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]


class ParallelConvMerging(LinearFolding):
    """``Conv(x, V, b) + Conv(x, W, c)`` → ``Conv(x, V + W, b + c)``, also for a smaller kernel inside a larger one.

    A BatchNormalization of x beside a convolution is such a kernel, too. What the larger kernel reads stays the same:
    an infinite x gives a NaN only where it did before.
    """

    after = ("conv_add_fusion", "conv_bn_fusion", "conv_mul_fusion")
    roots = ("Add",)
    needs = ("Conv",)

    def match(self, root: ir.Node) -> Folded:
        """Two branches of one value, with the same steps, of which one kernel lies inside the other."""
        first, second = (producer(value, "Conv", "BatchNormalization") for value in inputs(root, 2))
        need(first is not second, "both operands are the same", root)
        pairs = [pair for pair in ((first, second), (second, first)) if is_op(pair[0], "Conv")]
        need(bool(pairs), "neither operand comes from a Conv", root)
        convolution, other = choose(pairs)
        need(inputs(convolution, 2)[0] is other.inputs[0], "they are of different values", root)
        alone = is_used_once(convolution.outputs[0]) and is_used_once(other.outputs[0])
        need(alone, "a branch is used elsewhere", root)
        layer = _layer(convolution)
        wide = _convolution(layer)
        narrow = _convolution(_layer(other)) if is_op(other, "Conv") else _normalization(other, layer, wide)
        groups = {ops.Conv(node).group for node in (convolution, other) if is_op(node, "Conv")}
        need(len(groups) == 1, "they differ in groups", root)
        need(wide.weight.shape[:2] == narrow.weight.shape[:2], "they differ in channels", root)
        need(wide.strides == narrow.strides, "they differ in strides", root)
        weight, bias = wide.weight + _placed(narrow, wide), wide.bias + narrow.bias
        folded = rounded(weight, layer.kind, root), rounded(bias, layer.kind, root)
        for branch in (wide, narrow):
            need_no_larger(_gain(branch.weight), (1.0, _gain(weight)), layer.kind, root)
            need_no_larger(np.abs(branch.bias), (1.0, bias, _gain(weight)), layer.kind, root)
        return Folded((convolution, other, root), layer, layer.x, *folded)


def _gain(weight: Array) -> Array:
    """The largest magnitude of each output channel, without bias, for inputs of magnitude 1."""
    magnitudes: Array = np.abs(weight).reshape(len(weight), -1).sum(axis=1)
    return magnitudes


def _layer(node: ir.Node) -> Linear:
    plain_attributes(node)
    layer = linear(node)
    need(tensor_of(layer.weight).nbytes <= MAX_BYTES, "the weights are large", layer.weight)
    return layer


def _convolution(layer: Linear) -> Branch:
    """A Conv with constant weights and explicit padding as a branch."""
    window = ops.Conv(layer.node)
    weight = array_of(layer.weight).astype(np.float64)
    return Branch(layer.node, weight, layer.summand(), window.strides, window.pads, window.dilations)


def _normalization(node: ir.Node, layer: Linear, beside: Branch) -> Branch:
    """A BatchNormalization as the convolution of a point, with the groups of the one beside it."""
    outputs, inner, *kernel = beside.weight.shape
    need(outputs == layer.inputs, "the convolution gives another number of channels", layer.node)
    scale, shift = normalization(node, outputs)
    need(bool(np.isfinite(scale).all() and np.isfinite(shift).all()), "a number is not finite", node)
    points = tuple(1 for _ in kernel)
    weight = np.zeros((outputs, inner, *points))
    rows = np.arange(outputs)
    weight[rows, rows % inner] = scale.reshape(-1, *points)
    return Branch(node, weight, shift, points, (0,) * 2 * len(points), beside.dilations)


def _placed(narrow: Branch, wide: Branch) -> Array:
    """The weights of a kernel where they lie in a larger one, with zeros around them."""
    margins = [(0, 0), (0, 0)]
    sizes, own = wide.weight.shape[2:], narrow.weight.shape[2:]
    same = all(size == 1 or a == b for size, a, b in zip(own, narrow.dilations, wide.dilations, strict=True))
    need(same, "they differ in dilations", narrow.node)  # a single element has none
    beside = [a - b for a, b in zip(wide.pads, narrow.pads, strict=True)]
    ahead, after = beside[: len(sizes)], beside[len(sizes) :]
    for size, inner, step, begin, end in zip(sizes, own, wide.dilations, ahead, after, strict=True):
        before, rest = divmod(begin, step)
        behind = size - inner - before
        if rest or before < 0 or behind < 0 or end != behind * step:
            raise Refusal("neither kernel lies inside the other", narrow.node)
        margins.append((before, behind))
    return np.pad(narrow.weight, margins)
