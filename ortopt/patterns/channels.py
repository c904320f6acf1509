"""Constants with one number for each channel of a value, whose channels are its second dimension."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import array_of, dims, inputs, need, same_dim, tensor_of


def of_channels(value: ir.Value, channels: int, rank: int) -> np.ndarray:
    """A constant operand beside a value as one float64 for each of its channels.

    Args:
        value: The other operand of an elementwise node.
        channels: The number of channels.
        rank: The value's rank.

    Raises:
        Refusal: If it is no constant, differs along another axis, or would enlarge the result.
    """
    content = array_of(value)
    need(content.ndim <= rank, "the constant enlarges the rank", value)
    shape = (1,) * (rank - content.ndim) + content.shape
    need(all(dim == 1 for axis, dim in enumerate(shape) if axis != 1), "it is not one number a channel", value)
    need(shape[1] in (1, channels), "the constant enlarges the result", value)
    numbers = np.broadcast_to(content.astype(np.float64).reshape(-1), (channels,))
    need(bool(np.isfinite(numbers).all()), "a number is not finite", value)
    return numbers


def of_input_channels(value: ir.Value, convolution: ir.Node, x: ir.Value) -> np.ndarray:
    """A constant operand beside what goes into a convolution as one float64 for each channel.

    Args:
        value: The other operand of an elementwise node before the convolution.
        convolution: A Conv with constant weights.
        x: The operand that is no constant; it has the shape of the convolution's input.

    Raises:
        Refusal: If the number of channels is not fixed, or for a reason of `of_channels`.
    """
    shape, kernel = dims(x), tensor_of(inputs(convolution, 2)[1]).shape.numpy()
    need(len(kernel) >= 3 and len(shape) == len(kernel), "it is no convolution", convolution)
    channels = kernel[1] * ops.Conv(convolution).group
    need(same_dim(shape[1], channels), "the number of channels is not fixed", x)
    return of_channels(value, channels, len(shape))


__all__ = ["of_channels", "of_input_channels"]
