"""A convolution computes blocks of channels at once; groups that fill no block are computed slowly, one by one.

ONNX Runtime's kernels for blocked layouts take groups of whole blocks, and groups of one channel. What lies between
goes to a general kernel. Several groups with zeros beside their weights are one block.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK
from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Code,
    array_of,
    inputs,
    is_op,
    need,
    need_float32,
    optional,
    plain_attributes,
    static_dims,
    tensor_of,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.convolution_activation import is_convolution
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.lowering.onnxruntime_cpu._channel_blocks import blocks_that_count

ELEMENTWISE = ("Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish", "Gelu", "Add", "Mul")
"""What works on blocked layouts, between two convolutions."""

MOST_BETWEEN = 2


class Found(Struct, frozen=True):
    """The convolution, and how many of its groups make one."""

    nodes: tuple[ir.Node, ...]
    merged: int


class GroupedConvMerging(RewriteRule[Found]):
    """``Conv(x)`` with groups of fewer than 16 channels → with groups of 16, whose weights are block-diagonal.

    It gains behind another convolution, on processors that compute 16 channels at once: with --march
    native only. The weights hold zeros: a NaN or an infinity spreads to the groups that are merged with its own.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Conv", f"{MICROSOFT}::FusedConv")
    after = ("conv_add_fusion", "conv_mul_fusion")
    lookback = MOST_BETWEEN + 1
    providers = (CPU,)
    targets = (Target.ORT,)
    produces = ((MICROSOFT, "FusedConv"),)
    fuses = ()
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Found:
        """Groups of 2 to 15 channels that fill blocks together, behind a convolution."""
        need(
            blocks_that_count(root) == (BLOCK,),
            "it pays where blocks are of 16 channels (--march native)",
            root,
            code=Code.OPTION,
        )
        x, weight = inputs(root, 2)
        need_float32(x, "the gain was measured")
        need(optional(root, 3) is None, "it adds another value", root)
        plain_attributes(root)
        groups = ops.Conv(root).group
        outputs, channels, *_ = static_dims(weight, rank=4)
        need(groups > 1 and 1 < channels < BLOCK, "its groups fill blocks, or are of one channel", root)
        need(outputs == groups * channels, "its groups have other numbers of outputs than of inputs", root)
        need(BLOCK % channels == 0 and groups % (BLOCK // channels) == 0, "its groups fill no blocks together", root)
        need(_is_behind_convolution(x), "it is behind no convolution, on whose layout it could work", x)
        tensor_of(weight)
        return Found((root,), BLOCK // channels)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the convolution with zeros in each group for the channels of the others."""
        (root,) = found.nodes
        weight = array_of(root.inputs[1])
        outputs, channels, rows, columns = weight.shape
        own = np.zeros((outputs // BLOCK, found.merged, channels, found.merged, channels, rows, columns), np.float32)
        of_groups = weight.reshape(outputs // BLOCK, found.merged, channels, channels, rows, columns)
        for place in range(found.merged):
            own[:, place, :, place] = of_groups[:, place]
        operands = [root.inputs[0], constant(own.reshape(outputs, BLOCK, rows, columns), FLOAT), *root.inputs[2:]]
        return ops.copied(root, operands, group=outputs // BLOCK)


def _is_behind_convolution(x: ir.Value) -> bool:
    """Whether a value comes from a convolution, with at most two elementwise operations between."""
    value: ir.Value | None = x
    for _ in range(MOST_BETWEEN + 1):
        node = None if value is None else value.producer()
        if is_convolution(node):
            return True
        if node is None or not is_op(node, *ELEMENTWISE):
            return False
        value = node.inputs[0]
    return False
