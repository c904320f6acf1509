"""A mean over height and width ends ONNX Runtime's blocked layout as a ReduceMean; as a pooling it goes on."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from ortopt.analysis.blocked_layout import BLOCK, is_in_blocks
from ortopt.analysis.kernels import CPU
from ortopt.graph.match import FLOAT, attribute, dims, dtype, inputs, integers, is_never_zero, need, opset
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

RANK = 4
AXES_ARE_AN_INPUT_FROM = 18


class Found(NamedTuple):
    """The mean, and the image."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value


class SpatialMeanConversion(RewriteRule[Found]):
    """``ReduceMean<axes = [2, 3]>(x)`` → ``GlobalAveragePool(x)`` for an x that convolutions give, in whole blocks."""

    levels = (TransformerLevel.LEVEL3,)
    roots = ("ReduceMean",)
    opsets = (1, NEWEST_OPSET)
    providers = (CPU,)
    targets = (Target.ORT,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """The last two of four axes, which stay as ones."""
        x = inputs(root, len(root.inputs))[0]
        _, channels, height, width = dims(x, RANK)
        need(dtype(x) == FLOAT, "the blocked kernels are for single precision only", x)
        none: tuple[int, ...] = ()
        given = integers(root.inputs[1]) if opset(root) >= AXES_ARE_AN_INPUT_FROM and len(root.inputs) > 1 else none
        axes = given or attribute(root, "axes", none)
        need({axis % RANK for axis in axes} == {2, 3}, "it is no mean over height and width", root)
        need(attribute(root, "keepdims", 1) == 1, "it drops the axes", root)
        need(is_never_zero(height, root) and is_never_zero(width, root), "the image may be empty", x)
        need(isinstance(channels, int) and channels % BLOCK == 0, "the channels fill no blocks", x)
        need(is_in_blocks(x), "the image is not in the blocked layout", x)
        return Found((root,), x)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the pooling."""
        return ir.node("GlobalAveragePool", [found.x])
