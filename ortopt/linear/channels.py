"""What a node does to each channel: it multiplies it by a constant, and adds a constant."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir

from ortopt.analysis.magnitudes import need_near, need_no_larger
from ortopt.graph.match import array_of, attribute, dims, inputs, need, operand_constant, opset, producer, tensor_of
from ortopt.linear.weights import Array, rounded

Numbers: TypeAlias = tuple[Array, Array]
"""A factor and a summand for each channel, in float64."""


class Effect(NamedTuple):
    """``x * scale + shift``, one float64 for each channel; None where there is nothing to multiply by, or to add."""

    scale: Array | None = None
    shift: Array | None = None


class Affine(NamedTuple):
    """A node that scales or shifts the channels of a value by constants.

    Attributes:
        node: A BatchNormalization, or an elementwise Mul, Div, Add, Sub or Sum.
        x: The value.
        number: The other operand of an elementwise node.
    """

    node: ir.Node
    x: ir.Value
    number: ir.Value | None = None

    def effect(self, channels: int, rank: int, axis: int = 1) -> Effect:
        """What it does to each channel.

        Args:
            channels: The number of channels.
            rank: The rank of `x`.
            axis: The axis of the channels.

        Raises:
            Refusal: If a number is no constant, or not one a channel.
        """
        if self.number is None:
            return Effect(*normalization(self.node, channels))
        numbers = of_axis(self.number, channels, rank, axis)
        with np.errstate(divide="ignore"):
            match self.node.op_type:
                case "Mul":
                    return Effect(scale=numbers)
                case "Div":
                    return Effect(scale=1 / numbers)
                case "Sub":
                    return Effect(shift=-numbers)
        return Effect(shift=numbers)


def composed(
    first: tuple[Array, Array], second: tuple[Array, Array], kind: ir.DataType, about: ir.Node
) -> tuple[Array, Array]:
    """What two nodes do to each channel, one after the other, in float64.

    Args:
        first: Factors and summands of the first one.
        second: Those of the second one.
        kind: The element type.
        about: The node that it is about.

    Raises:
        Refusal: If a number is not finite in the type, or what is between them may overflow, or vanish, long before
            what stays.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        scale, shift = first[0] * second[0], first[1] * second[0] + second[1]
    for numbers in (scale, shift):
        rounded(numbers, kind, about)
    need_near(first[0], (1.0, scale), kind, about)
    need_no_larger(np.abs(first[1]), (1.0, first[0], shift), kind, about)
    return scale, shift


def affine_above(value: ir.Value | None, *ops: str) -> Affine:
    """The node above a value that scales or shifts by a constant.

    Args:
        value: Its result.
        ops: Which ops it may be.

    Raises:
        Refusal: If it is none of them, or no operand is a constant.
    """
    node = producer(value, *ops)
    if node.op_type == "BatchNormalization":
        return Affine(node, inputs(node, 1)[0])
    number, x = inputs(node, 2)[::-1] if node.op_type in ("Div", "Sub") else operand_constant(node)
    tensor_of(number)
    return Affine(node, x, number)


def of_axis(value: ir.Value, size: int, rank: int, axis: int = 1) -> Array:
    """A constant operand beside a value as one float64 for each index of an axis.

    Args:
        value: The other operand of an elementwise node.
        size: The size of the axis.
        rank: The value's rank.
        axis: The axis.

    Raises:
        Refusal: If it is no constant, differs along another axis, or would enlarge the result.
    """
    content = array_of(value)
    need(content.ndim <= rank, "the constant enlarges the rank", value)
    shape = (1,) * (rank - content.ndim) + content.shape
    need(all(dim == 1 for place, dim in enumerate(shape) if place != axis), "it is not one number a channel", value)
    need(shape[axis] in (1, size), "the constant enlarges the result", value)
    return np.broadcast_to(content.astype(np.float64).reshape(-1), (size,))


def of_channels(value: ir.Value, channels: int, rank: int) -> Array:
    """As `of_axis`, for the second axis and finite numbers only."""
    numbers = of_axis(value, channels, rank)
    need(bool(np.isfinite(numbers).all()), "a number is not finite", value)
    return numbers


def vector(value: ir.Value, length: int) -> Array:
    """A constant of rank 1 and a given length, in float64.

    Raises:
        Refusal: If it is no such constant.
    """
    need(dims(value) == (length,), "it is not one number a channel", value)
    return array_of(value).astype(np.float64)


def normalization(node: ir.Node, channels: int) -> Numbers:
    """The factor and the summand of each channel of a BatchNormalization at inference.

    Args:
        node: A BatchNormalization of opset 7 or later.
        channels: The number of channels.

    Raises:
        Refusal: If it is training, or a parameter is no constant of one number a channel.
    """
    _, gamma, beta, mean, variance = inputs(node, 5)
    version = opset(node)
    if version < 9:
        need(attribute(node, "spatial", 1) == 1, "it normalizes each position by itself", node)
    if version >= 14:
        need(attribute(node, "training_mode", 0) == 0, "it is in training mode", node)
    need(not any(value.name for value in node.outputs[1:]), "it is in training mode", node)
    epsilon = attribute(node, "epsilon", 1e-5)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = vector(gamma, channels) / np.sqrt(vector(variance, channels) + epsilon)
        shift = vector(beta, channels) - vector(mean, channels) * scale
    return scale, shift
