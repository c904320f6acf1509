"""BatchNormalization at inference: the factor and the summand of each channel."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import attribute, inputs, need, opset
from ortopt.patterns.convolution import vector


def scale_and_shift(node: ir.Node, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """The factor and the summand of each channel, in float64.

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
