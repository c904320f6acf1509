"""Images that ONNX Runtime's convolutions keep in blocks of channels, and the order of their axes beside these."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt.analysis.blocked_layout import ALIGNED
from ortopt.graph.match import Dim, dims, is_constant, need, need_fixed, need_float32
from ortopt.patterns.convolution_activation import is_convolution
from ortopt.transformers.lowering.onnxruntime_cpu._rules import FOR_BLOCKS

IMAGE: Final = 4
TO_CHANNELS_FIRST: Final = (0, 3, 1, 2)
TO_CHANNELS_LAST: Final = (0, 2, 3, 1)


def channels_first(value: ir.Value) -> ir.Value:
    """An image whose channels are last, with its channels first."""
    return ir.node("Transpose", [value], {"perm": TO_CHANNELS_FIRST}).outputs[0]


def channels_last(image: ir.Value) -> ir.Value:
    """An image with its channels last."""
    return ir.node("Transpose", [image], {"perm": TO_CHANNELS_LAST}).outputs[0]


def image_dims(image: ir.Value) -> tuple[Dim, int, int, int]:
    """The batch, and the sizes of an image's other axes, which fit blocks.

    Raises:
        Refusal: If they do not, or are not fixed.
    """
    batch, *sizes = dims(image, IMAGE)
    need_float32(image, FOR_BLOCKS)
    channels, height, width = need_fixed(sizes, "a size of the image is not fixed", image)
    need(min(channels, height, width) > 0, "the image is empty", image)
    need(channels % ALIGNED == 0, "the channels fit no blocks", image)
    return batch, channels, height, width


def convolves(node: ir.Node, image: ir.Value) -> bool:
    """Whether a node is a convolution of an image with weights that are known when the model is loaded."""
    if not is_convolution(node) or node.inputs[0] is not image or image in node.inputs[1:]:
        return False
    return node.inputs[1] is not None and is_constant(node.inputs[1])
