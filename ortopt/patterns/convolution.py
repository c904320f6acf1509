"""Convolutions into whose weights and bias a factor and a summand of each channel are folded."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.magnitudes import need_digits, need_no_larger, need_scaled_near
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    array_of,
    attribute,
    dims,
    inputs,
    is_constant,
    is_used_once,
    need,
    optional,
    plain_attributes,
    tensor_of,
)

CONVOLUTIONS = ("Conv", "ConvTranspose")
Array = np.ndarray

_OF_THE_HEIGHT = {"kernel_shape": (1,), "strides": (1,), "dilations": (1,), "pads": (0, 0)}
"""What the attributes say of an axis in front of the only one."""


class Folded(Struct, frozen=True):
    """A convolution with new weights and bias, and the nodes that it replaces.

    Attributes:
        nodes: The convolution, and the node that is folded into it.
        weight: The new weights, or None where they stay.
        bias: The new bias, one element for each output channel.
    """

    nodes: tuple[ir.Node, ...]
    weight: Array | None
    bias: Array

    def node(self) -> ir.Node:
        """Build the convolution."""
        convolution = self.nodes[0]
        dtype = tensor_of(convolution.inputs[1]).dtype
        weight = convolution.inputs[1] if self.weight is None else constant(self.weight, dtype)
        return ir.Node(
            "",
            convolution.op_type,
            [convolution.inputs[0], weight, constant(self.bias, dtype)],
            list(convolution.attributes.values()),
        )


def channels_of(convolution: ir.Node) -> int:
    """The number of output channels of a Conv or ConvTranspose with constant weights.

    Raises:
        Refusal: If the weights are no constant of floats, or its result has other users.
    """
    result = convolution.outputs[0]
    need(is_used_once(result), f"{convolution.op_type}'s result is used elsewhere", result)
    _, weight = inputs(convolution, 2)
    tensor = tensor_of(weight)
    need(tensor.dtype in FLOATS, "the weights are no floats", weight)
    need(len(tensor.shape) >= 2, "the weights have no channels", weight)
    shape = tensor.shape.numpy()
    return shape[0] if convolution.op_type == "Conv" else shape[1] * ops.Conv(convolution).group


def per_channel(value: ir.Value, convolution: ir.Node) -> Array:
    """A constant operand beside a convolution's result as one float64 per output channel.

    Args:
        value: The other operand of an elementwise node.
        convolution: A Conv or ConvTranspose (see `channels_of`).

    Raises:
        Refusal: If the operand is no constant, differs along another axis, or would enlarge the result.
    """
    channels = channels_of(convolution)
    content = array_of(value)
    rank = len(tensor_of(convolution.inputs[1]).shape)
    need(content.ndim <= rank, "the constant enlarges the rank", value)
    shape = (1,) * (rank - content.ndim) + content.shape
    need(all(dim == 1 for axis, dim in enumerate(shape) if axis != 1), "it is not one number a channel", value)
    need(shape[1] in (1, channels), "the constant enlarges the result", value)
    return np.broadcast_to(content.astype(np.float64).reshape(-1), (channels,))


def vector(value: ir.Value, length: int) -> Array:
    """A constant of rank 1 and a given length, in float64.

    Raises:
        Refusal: If it is no such constant.
    """
    need(dims(value) == (length,), "it is not one number a channel", value)
    return array_of(value).astype(np.float64)


def convolution_of_images(old: ir.Node, images: ir.Value, **settings: ops.Setting) -> ir.Node:
    """A convolution of signals as one of the rows of images, each by itself.

    Args:
        old: A Conv or FusedConv with constant weights.
        images: Its signals, with one axis more in front of their positions.
        settings: Attributes that differ (see `ops.changed`).
    """
    _, weight = inputs(old, 2)
    wide = constant(np.expand_dims(array_of(weight), 2), tensor_of(weight).dtype)
    lists: dict[str, ops.Setting] = {}
    for name, ahead in _OF_THE_HEIGHT.items():
        if name in old.attributes:
            numbers = old.attributes[name].as_ints()
            half = len(numbers) * len(ahead[:1]) // len(ahead)
            lists[name] = (*ahead[:1], *numbers[:half], *ahead[1:], *numbers[half:])
    return ops.copied(old, [images, wide, *old.inputs[2:3]], **lists | settings)


def need_points(root: ir.Node, weight: ir.Value) -> None:
    """Refuse a convolution that is not of single points, each by itself, or whose weights are no constant."""
    tensor = tensor_of(weight)
    shape = tensor.shape.numpy()
    need(tensor.dtype in FLOATS, "the weights are no floats", weight)
    need(len(shape) > 2 and set(shape[2:]) == {1}, "the kernel is larger than a point", root)
    plain_attributes(root)
    conv = ops.Conv(root)
    plain = conv.group == 1 and set(conv.strides) == {1}
    need(plain and not any(conv.stated_pads), "it has groups, strides or padding", root)


def stride_of_transposed(root: ir.Node) -> int:
    """The stride of a ConvTranspose, the same along all axes.

    Args:
        root: The transposed convolution.

    Raises:
        Refusal: If it has groups, dilations, or another size of the result than strides and pads give.
    """
    attributes = plain_attributes(root)
    conv = ops.Conv(root)
    need(conv.group == 1, "it has groups", root)
    need(set(conv.dilations) == {1}, "it has dilations", root)
    need(conv.auto_pad == "NOTSET", "its padding is not written out", root)
    need("output_shape" not in attributes, "its result's size is given", root)
    need(not any(attribute(root, "output_padding", (0,))), "its result is padded", root)
    strides = set(conv.strides)
    need(len(strides) == 1, "its strides differ", root)
    return int(strides.pop())


def fold(convolution: ir.Node, after: ir.Node, scale: Array | None, shift: Array | None) -> Folded:
    """Fold ``convolution(x) * scale + shift`` into weights and bias: computed in float64, rounded once.

    Args:
        convolution: A Conv or ConvTranspose (see `channels_of`).
        after: The node that scales and shifts.
        scale: One number for each output channel; None is 1.
        shift: One number for each output channel; None is 0.

    Raises:
        Refusal: If the bias is no constant, a number is not finite in the weights' type, or the convolution's
            result may overflow or vanish long before the folded one.
    """
    channels = channels_of(convolution)
    old_bias = optional(convolution, 2)
    need(old_bias is None or is_constant(old_bias), "the bias is not a constant", old_bias)
    kind = tensor_of(convolution.inputs[1]).dtype
    dtype = kind.numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        before = bias = np.zeros(channels) if old_bias is None else vector(old_bias, channels)
        if scale is not None:
            bias = bias * scale
        if shift is not None:
            bias = bias + shift
        rounded = bias.astype(dtype)
        weight = None if scale is None else _scaled(convolution, scale)
    finite = _is_finite(rounded) and (scale is None or bool(np.isfinite(scale).all()))
    need(finite and (weight is None or _is_finite(weight)), "a folded number would not be finite", convolution)
    if scale is not None:
        need_scaled_near(lambda: _gain(convolution), scale, kind, convolution)
        assert weight is not None
        need_digits(weight, array_of(convolution.inputs[1]), kind, convolution)
    need_no_larger(np.abs(before), (1.0, bias, lambda: _gain(convolution)), kind, old_bias)
    return Folded((convolution, after), weight, rounded)


def _gain(convolution: ir.Node) -> Array:
    """The largest magnitude of each output channel, without bias, for inputs of magnitude 1."""
    weight = np.abs(array_of(convolution.inputs[1]))
    if convolution.op_type == "Conv":
        return np.asarray(weight.sum(axis=tuple(range(1, weight.ndim)), dtype=np.float64))
    group = ops.Conv(convolution).group
    inputs, outputs = weight.shape[:2]
    by_group = weight.reshape(group, inputs // group, outputs, -1)
    return np.asarray(by_group.sum(axis=(1, 3), dtype=np.float64).reshape(-1))


def _scaled(convolution: ir.Node, scale: Array) -> Array:
    """The weights times one number for each output channel."""
    weight = array_of(convolution.inputs[1])
    if convolution.op_type == "Conv":
        return _product(weight, scale.reshape(-1, *(1,) * (weight.ndim - 1)))
    group = ops.Conv(convolution).group
    inputs, outputs, *kernel = weight.shape
    by_group = weight.reshape(group, inputs // group, outputs, *kernel)
    return _product(by_group, scale.reshape(group, 1, outputs, *(1,) * len(kernel))).reshape(weight.shape)


def _product(weight: Array, factor: Array) -> Array:
    """A product in float64, rounded to the weights' type: block by block, since a whole one in float64 is slow."""
    product = np.empty(weight.shape, weight.dtype)
    np.multiply(weight, factor, out=product, dtype=np.float64, casting="unsafe")
    return product


def _is_finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())
