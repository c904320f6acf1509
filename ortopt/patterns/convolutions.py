"""Convolutions as passes read them: with their activation, the sizes of their images, and what they are made of."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.framework.fusions import places_of
from ortopt.graph import scope, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    Dim,
    array_of,
    attribute,
    dims,
    inputs,
    is_constant,
    is_never_zero,
    is_op,
    is_used,
    need,
    opset,
    optional,
    plain_attributes,
    same_dim,
    scalar,
    tensor_of,
    users,
)
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.opset_changes import BOUNDS_ARE_INPUTS_FROM

_FREE: Final = 16
"""The length of an axis of which nothing is known: fewer channels, rows or columns of an image are rare."""


def elements_of_an_image(value: ir.Value, root: ir.Node) -> list[Dim]:
    """The dimensions of an image of a batch, as costs are asked for: their product is the number of its elements.

    What depends on sizes that the caller expects, or that are representative, has its size there
    (`ortopt.framework.fusions.places_of`).

    Args:
        value: The batch.
        root: The node that asks.

    Raises:
        Refusal: The rank is unknown.
    """
    known = set.intersection(*map(set, places_of(root, scope.of_node(root).options)))
    return [dim if _is_known(dim, known) else _FREE for dim in dims(value)[1:]]


def _is_known(dim: Dim, names: Collection[str]) -> bool:
    return isinstance(dim, int) or (dim.value is not None and all(name in names for name in symbolic.symbols(dim)))


def is_filled_image(x: ir.Value, root: ir.Node) -> bool:
    """Whether each image of a batch has rows and columns, in any run that ends.

    Their number is never 0, or a convolution gives the image, or one of its size, or reads it and keeps its size: ONNX
    Runtime runs none that gives an empty image.

    Args:
        x: The batch.
        root: The node that asks.

    Raises:
        Refusal: The rank is unknown.
    """
    if all(is_never_zero(size, root) for size in dims(x)[2:]):
        return True
    convs = [x.producer(), *(user for user in users(x) if user.inputs[0] is x and is_used(user.outputs[0]))]
    return any(
        node is not None
        and node.graph is root.graph
        and is_convolution(node)
        and all(map(same_dim, dims(node.outputs[0])[2:], dims(x)[2:]))
        for node in convs
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


ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip")
LIMITS = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))


def is_convolution(node: ir.Node | None) -> bool:
    """Whether a node is a convolution of floats, with an activation or without."""
    return is_op(node, "Conv") or is_op(node, "FusedConv", domain=MICROSOFT)


def parameters_of(node: ir.Node) -> tuple[float, ...]:
    """The parameters of an activation, in the kernel's order."""
    if node.op_type != "Clip":
        return tuple(ops.Activation(node).parameters.values())
    bounds = _bounds(node)
    need(bounds[0] <= bounds[1], "the bounds are out of order", node)
    return bounds


def _bounds(node: ir.Node) -> tuple[float, float]:
    if opset(node) < BOUNDS_ARE_INPUTS_FROM["Clip"]:
        return attribute(node, "min", LIMITS[0]), attribute(node, "max", LIMITS[1])
    low, high = optional(node, 1), optional(node, 2)
    return (
        LIMITS[0] if low is None else scalar(low),
        LIMITS[1] if high is None else scalar(high),
    )


def fused_convolution(
    convolution: ir.Node, activation: str, parameters: Sequence[float], residual: ir.Value | None = None
) -> ir.Node:
    """Build a convolution with an activation.

    Args:
        convolution: The Conv that it stands for.
        activation: The activation's op type; empty for none.
        parameters: The activation's parameters (see `parameters_of`).
        residual: What is added before the activation, of the result's shape.
    """
    operands = list(convolution.inputs)
    if residual is not None:
        weight, bias = operands[1], optional(convolution, 2)
        if bias is None and is_constant(weight):  # without one ONNX Runtime's blocked layout ends at the sum
            tensor = tensor_of(weight)
            bias = constant(np.zeros(tensor.shape.numpy()[0], tensor.dtype.numpy()), tensor.dtype)
        operands = [operands[0], weight, bias, residual]
    node = ir.node("FusedConv", operands, domain=MICROSOFT)
    node.attributes.update(convolution.attributes)
    if activation:
        node.attributes["activation"] = ir.AttrString("activation", activation)
    if parameters:
        node.attributes["activation_params"] = ir.AttrFloat32s("activation_params", parameters)
    return node


def separate_activation(convolution: ir.Node, value: ir.Value) -> ir.Value:
    """Apply the activation of a fused convolution to another value, from opset 11 on.

    Args:
        convolution: A FusedConv, or a Conv, which has no activation.
        value: What the convolution computes, before its activation.
    """
    kind = attribute(convolution, "activation", "")
    if not kind:
        return value
    parameters: Sequence[float] = attribute(convolution, "activation_params", ())
    if kind == "Clip":
        bounds = [constant(np.array(bound, np.float32)) for bound in parameters]
        return ir.node(kind, [value, *bounds]).outputs[0]
    named: dict[str, float] = dict(zip(("alpha", "beta"), parameters, strict=False))
    return ir.node(kind, [value], named).outputs[0]
