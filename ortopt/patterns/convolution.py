"""Convolutions whose weights are moved to other axes, and what of them passes ask."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    array_of,
    attribute,
    inputs,
    need,
    plain_attributes,
    tensor_of,
)

_OF_THE_HEIGHT = {"kernel_shape": (1,), "strides": (1,), "dilations": (1,), "pads": (0, 0)}
"""What the attributes say of an axis in front of the only one."""


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
