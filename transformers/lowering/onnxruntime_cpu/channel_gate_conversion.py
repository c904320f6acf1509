"""ONNX Runtime's blocked layout ends where an image is multiplied by one number a channel; of two images it goes on.

Mobile networks gate their channels so (squeeze and excitation): EfficientNet, MobileNetV3 and many for text in images.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.blocked_layout import BLOCK, is_blocked_convolution
from ortopt.analysis.blocked_values import is_in_blocks
from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.facts import DECLARED
from ortopt.graph.match import Refusal, dims, inputs, need, need_float32, opset, same_dim, users
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

RANK = 4


class Found(Struct, frozen=True):
    """The product, and its operands.

    Attributes:
        nodes: The product.
        image: What is gated.
        gate: The number for each channel.
        size: The height and width of the image.
    """

    nodes: tuple[ir.Node, ...]
    image: ir.Value
    gate: ir.Value
    size: tuple[int, int]


class ChannelGateConversion(RewriteRule[Found]):
    """``Mul(x, gate)`` → ``Mul(x, Resize(gate))`` between convolutions, for a gate with one number a channel.

    The same bits, and the image stays in the blocked layout.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Mul",)
    opsets = (11, NEWEST_OPSET)
    providers = (CPU,)
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Found:
        """An image of fixed size in whole blocks of channels, and a gate, both out of convolutions."""
        image, gate = inputs(root, 2)
        if dims(image, RANK)[2:] == (1, 1):
            image, gate = gate, image
        batch, channels, height, width = dims(image, RANK)
        need_float32(image, "the blocked kernels are")
        need(dims(gate, RANK)[2:] == (1, 1), "neither operand is one number a channel", gate)
        both = zip(dims(gate)[:2], (batch, channels), strict=True)
        need(all(same_dim(*pair) for pair in both), "the gate is not one number for each channel", gate)
        need(isinstance(channels, int) and channels % BLOCK == 0, "the channels fill no blocks", image)
        if not isinstance(height, int) or not isinstance(width, int):
            raise Refusal("a dimension is not fixed", image)
        need(height * width > 1, "the image is a point", image)
        need(is_in_blocks(image) and is_in_blocks(gate), "an operand is not in the blocked layout", root)
        readers = users(root.outputs[0])
        need(bool(readers) and all(map(is_blocked_convolution, readers)), "no convolution in blocks reads it", root)
        return Found((root,), image, gate, (height, width))

    def rewrite(self, found: Found) -> ir.Node:
        """Build the image of the gate, and the product."""
        scales = constant(np.array([1, 1, *found.size], np.float32))
        copy = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        # Up to opset 12 the region of interest, which nothing here reads, is no optional input.
        region = None if opset(found.nodes[0]) >= 13 else constant(np.array([], np.float32))
        gates = ir.node("Resize", [found.gate, region, scales], copy)
        product = ir.node("Mul", [found.image, gates.outputs[0]])
        # ONNX Runtime infers no symbolic dimension of what is resized, and sums of two images that it cannot prove
        # equally large leave the blocked layout: the file has to say that the batch is the image's.
        for node in (gates, product):
            node.outputs[0].meta[DECLARED] = True
        return product
