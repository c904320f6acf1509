"""Images that ONNX Runtime's convolutions keep in blocks of channels, and the order of their axes beside these."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt.analysis.blocked_layout import ALIGNED
from ortopt.graph.match import Dim, Refusal, dims, is_constant, is_op, need, need_float32
from ortopt.semantics.domains import MICROSOFT

IMAGE: Final = 4
TO_CHANNELS_FIRST: Final = (0, 3, 1, 2)
TO_CHANNELS_LAST: Final = (0, 2, 3, 1)


def image_dims(image: ir.Value) -> tuple[Dim, int, int, int]:
    """The batch, and the sizes of an image's other axes, which fit blocks.

    Raises:
        Refusal: If they do not, or are not fixed.
    """
    batch, channels, height, width = dims(image, IMAGE)
    need_float32(image, "the blocked kernels are")
    if not (isinstance(channels, int) and isinstance(height, int) and isinstance(width, int)):
        raise Refusal("a size of the image is not fixed", image)
    need(min(channels, height, width) > 0, "the image is empty", image)
    need(channels % ALIGNED == 0, "the channels fit no blocks", image)
    return batch, channels, height, width


def convolves(node: ir.Node, image: ir.Value) -> bool:
    """Whether a node is a convolution of an image with weights that are known when the model is loaded."""
    if not (is_op(node, "Conv") or is_op(node, "FusedConv", domain=MICROSOFT)):
        return False
    matrix = node.inputs[1]
    return node.inputs[0] is image and image not in node.inputs[1:] and matrix is not None and is_constant(matrix)


__all__ = ["IMAGE", "TO_CHANNELS_FIRST", "TO_CHANNELS_LAST", "convolves", "image_dims"]
