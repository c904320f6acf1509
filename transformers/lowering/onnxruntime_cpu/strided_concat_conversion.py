"""Slices with steps and a Concat of what they take copy every pixel three times; one Transpose copies it once.

Swin, its relatives and other pyramids of transformers join the channels of neighbouring pixels so, channels last.
"""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, dims, inputs, is_used_once, need, need_float32
from ortopt.options import Target, TransformerLevel
from ortopt.patterns.strided_blocks import RANK, strided_blocks
from ortopt.rule import NEWEST_OPSET, RewriteRule

ROWS, COLUMNS, CHANNELS = 1, 2, 3
ORDER = (0, 1, 3, 2, 4)
COPIED = 0
"""What a Reshape takes for the size of its input."""


class Found(Struct, frozen=True):
    """The Concat.

    Attributes:
        nodes: The Concat.
        source: The image.
        view: The image's axes as the Transpose sees them.
        shape: The shape of the result.
    """

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    view: tuple[int, ...]
    shape: tuple[int, ...]


class StridedConcatConversion(RewriteRule[Found]):
    """``Concat`` of ``x[:, i::b, j::b]`` for all i, j → ``Reshape(Transpose(Reshape(x)))``, for channels that are last.

    1.25 to 2 times as fast for images of 8x8 to 56x56 pixels with 8 to 384 channels.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Concat",)
    opsets = (5, NEWEST_OPSET)  # the first with a Reshape to a shape that is an input
    providers = (CPU,)
    targets = (Target.ORT,)
    lookback = 2

    def match(self, root: ir.Node) -> Found:
        """All blocks, row by row or column by column, of an image of fixed size."""
        need(ops.Concat(root).axis_of(RANK) == CHANNELS, "it does not join the last axis", root)
        found = strided_blocks(root, ROWS, COLUMNS)
        source, size = found.source, found.size
        need_float32(source, "the gain was measured")
        used_once = all(map(is_used_once, inputs(root, len(root.inputs))))
        need(used_once, "a block is used elsewhere", root)
        _, height, width, channels = dims(source, RANK)
        if not (isinstance(height, int) and isinstance(width, int) and isinstance(channels, int)):
            raise Refusal("a size of the image is not fixed", source)
        need(min(height, width, channels) > 0, "the image is empty", source)
        by_rows = tuple(range(size * size))
        by_columns = tuple(row * size + column for column in range(size) for row in range(size))
        need(found.order in (by_rows, by_columns), "the blocks are in another order", root)
        columns = (width // size, size * channels) if found.order == by_rows else (width, channels)
        shape = (COPIED, height // size, width // size, size * size * channels)
        return Found((root,), source, (COPIED, height // size, size, *columns), shape)

    def rewrite(self, found: Found) -> ir.Node:
        """Bring the rows of a block behind the columns."""
        viewed = ir.node("Reshape", [found.source, constant(found.view)])
        turned = ir.node("Transpose", viewed.outputs, {"perm": ORDER})
        return ir.node("Reshape", [turned.outputs[0], constant(found.shape)])
