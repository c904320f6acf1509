"""Convolutions of one input whose results are added are one convolution with the sum of their weights.

Networks that are trained with several branches a layer (RepVGG, MobileOne, PP-LCNetV3) are often exported so.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.magnitudes import need_no_larger
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    Refusal,
    array_of,
    choose,
    inputs,
    is_op,
    is_used_once,
    need,
    optional,
    plain_attributes,
    producer,
    tensor_of,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.batch_normalization import scale_and_shift
from ortopt.patterns.convolution import vector
from ortopt.rule import NEWEST_OPSET, RewriteRule

MAX_BYTES = 1 << 25
"""Larger weights stay mapped from the file: a sum would be in memory."""


class Branch(Struct, frozen=True):
    """A convolution, or a normalization as one.

    Attributes:
        node: The node.
        x: What it is applied to.
        weight: Its weights in float64: output channels, input channels of a group, kernel.
        bias: One number for each output channel.
        strides: The steps of the kernel.
        begins: The zeros before each axis.
        ends: The zeros behind each axis.
    """

    node: ir.Node
    x: ir.Value
    weight: np.ndarray
    bias: np.ndarray
    strides: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def kernel(self) -> tuple[int, ...]:
        """The sizes of the kernel."""
        return self.weight.shape[2:]

    @property
    def gain(self) -> np.ndarray:
        """The largest magnitude of each output channel, without bias, for inputs of magnitude 1."""
        magnitudes: np.ndarray = np.abs(self.weight).sum(axis=tuple(range(1, self.weight.ndim)))
        return magnitudes


class Found(Struct, frozen=True):
    """The branches and their sum, the branch whose attributes stay, and the constants of the one convolution."""

    nodes: tuple[ir.Node, ...]
    wide: Branch
    weight: np.ndarray
    bias: np.ndarray


class ParallelConvMerging(RewriteRule[Found]):
    """``Conv(x, V, b) + Conv(x, W, c)`` → ``Conv(x, V + W, b + c)``, also for a smaller kernel inside a larger one.

    A BatchNormalization of x beside a convolution is such a kernel, too. What the larger kernel reads stays the same:
    an infinite x gives a NaN only where it did before.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = ("conv_add_fusion", "conv_bn_fusion", "conv_mul_fusion")
    roots = ("Add",)
    needs = ("Conv",)
    opsets = (7, NEWEST_OPSET)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """Two branches of one value, with the same steps, of which one kernel lies inside the other."""
        first, second = (producer(value, "Conv", "BatchNormalization") for value in inputs(root, 2))
        need(first is not second, "both operands are the same", root)
        pairs = [pair for pair in ((first, second), (second, first)) if is_op(pair[0], "Conv")]
        need(bool(pairs), "neither operand comes from a Conv", root)
        convolution, other = choose(pairs)
        need(inputs(convolution, 2)[0] is other.inputs[0], "they are of different values", root)
        need(
            is_used_once(convolution.outputs[0]) and is_used_once(other.outputs[0]), "a branch is used elsewhere", root
        )
        wide = _convolution(convolution)
        narrow = _convolution(other) if is_op(other, "Conv") else _normalization(other, convolution, wide)
        groups = [ops.Conv(node).group for node in (convolution, other) if is_op(node, "Conv")]
        need(len(set(groups)) == 1, "they differ in groups", root)
        need(wide.weight.shape[:2] == narrow.weight.shape[:2], "they differ in channels", root)
        need(wide.strides == narrow.strides, "they differ in strides", root)
        dilations = ops.Conv(convolution).dilations
        _need_same_dilations(other, narrow, dilations)
        weight = wide.weight + _placed(narrow, wide, dilations)
        return self._found(root, wide, narrow, weight)

    def _found(self, root: ir.Node, wide: Branch, narrow: Branch, weight: np.ndarray) -> Found:
        """The find, if no number overflows or vanishes."""
        kind = tensor_of(wide.node.inputs[1]).dtype
        bias = wide.bias + narrow.bias
        with np.errstate(over="ignore"):
            rounded = weight.astype(kind.numpy()), bias.astype(kind.numpy())
        finite = all(bool(np.isfinite(array).all()) for array in rounded)
        need(finite, "a merged number would not be finite", root)
        behind = np.abs(weight).sum(axis=tuple(range(1, weight.ndim)))
        for branch in (wide, narrow):
            need_no_larger(branch.gain, (1.0, behind), kind, root)
            need_no_larger(np.abs(branch.bias), (1.0, bias, behind), kind, root)
        return Found((wide.node, narrow.node, root), wide, *rounded)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the one convolution."""
        convolution = found.wide.node
        kind = tensor_of(convolution.inputs[1]).dtype
        operands = [found.wide.x, constant(found.weight, kind), constant(found.bias, kind)]
        return ir.Node("", "Conv", operands, list(convolution.attributes.values()))


def _convolution(node: ir.Node) -> Branch:
    """A Conv with constant weights and explicit padding as a branch."""
    plain_attributes(node)
    x, weight = inputs(node, 2)
    tensor = tensor_of(weight)
    need(tensor.dtype in FLOATS and tensor.nbytes <= MAX_BYTES, "the weights are no floats, or large", weight)
    conv = ops.Conv(node)
    need(conv.auto_pad == "NOTSET", "the padding depends on the input", node)
    content = array_of(weight).astype(np.float64)
    need(content.ndim >= 3, "it is no convolution", node)
    axes = content.ndim - 2
    bias = optional(node, 2)
    numbers = np.zeros(len(content)) if bias is None else vector(bias, len(content))
    return Branch(node, x, content, numbers, conv.strides, conv.pads[:axes], conv.pads[axes:])


def _normalization(node: ir.Node, convolution: ir.Node, beside: Branch) -> Branch:
    """A BatchNormalization as the convolution of a point, with the groups of the one beside it."""
    group = ops.Conv(convolution).group
    outputs, inner = beside.weight.shape[:2]
    need(outputs == inner * group, "the convolution gives another number of channels", convolution)
    scale, shift = scale_and_shift(node, outputs)
    need(bool(np.isfinite(scale).all() and np.isfinite(shift).all()), "a number is not finite", node)
    axes = len(beside.kernel)
    weight = np.zeros((outputs, inner, *(1,) * axes))
    rows = np.arange(outputs)
    weight[rows, rows % inner] = scale.reshape(-1, *(1,) * axes)
    return Branch(node, beside.x, weight, shift, (1,) * axes, (0,) * axes, (0,) * axes)


def _need_same_dilations(node: ir.Node, narrow: Branch, dilations: tuple[int, ...]) -> None:
    """Refuse a kernel whose elements have another distance; a single element has none."""
    own = ops.Conv(node).dilations if is_op(node, "Conv") else dilations
    same = all(size == 1 or a == b for size, a, b in zip(narrow.kernel, own, dilations, strict=True))
    need(same, "they differ in dilations", node)


def _placed(narrow: Branch, wide: Branch, dilations: tuple[int, ...]) -> np.ndarray:
    """The weights of a kernel where they lie in a larger one, with zeros around them."""
    margins = [(0, 0), (0, 0)]
    axes = zip(
        *(wide.kernel, narrow.kernel, dilations), *(wide.begins, narrow.begins, wide.ends, narrow.ends), strict=True
    )
    for size, inner, step, begin, inner_begin, end, inner_end in axes:
        before, rest = divmod(begin - inner_begin, step)
        behind = size - inner - before
        fits = rest == 0 and before >= 0 and behind >= 0 and end - inner_end == behind * step
        if not fits:
            raise Refusal("neither kernel lies inside the other", narrow.node)
        margins.append((before, behind))
    return np.pad(narrow.weight, margins)
