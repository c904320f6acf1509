"""ONNX Runtime's blocked convolutions compute columns that read padding one by one, the others many at a time.

With a wide kernel that is a large part of the image. Where the zeros are written beside the image first, all columns
are computed many at a time.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    array_of,
    dims,
    inputs,
    need,
    need_float32,
    opset,
    optional,
    plain_attributes,
    static_dims,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.opset_changes import PADS_ARE_AN_INPUT_FROM

RANK: Final = 4
LEFT, RIGHT = 1, 3
"""Where the attribute has the columns of zeros."""

WIDE, WIDEST = 9, 16
"""Columns of a kernel: the second number where the width of the image is not fixed."""

LEAST_PART, LARGEST_PART = 0.1, 2.0
"""Columns of zeros for each column of the result: with fewer, the copy costs what is saved; with more, the columns that
are computed one by one read little but zeros, which they leave out."""

LEAST_PRODUCTS: Final = 256
"""Products of each element of the image, at least: what it costs to copy it is nothing beside them."""

LEAST_OF_GROUP: Final = 8
"""Outputs of a group: convolutions of single channels have another kernel, in which padding costs nothing."""

BESIDE: Final = 0
"""The axis around a Pad. ONNX Runtime makes the Pad of an image a convolution's padding when it loads a model."""


class Found(Struct, frozen=True):
    """The convolution, and the columns of zeros."""

    nodes: tuple[ir.Node, ...]
    left: int
    right: int


class ConvPadDecomposition(RewriteRule[Found]):
    """``Conv(x, w)`` with a wide kernel and padded columns → ``Conv(Pad(x), w)``.

    On ONNX Runtime's CPU 1.05 to 2.0 times as fast for kernels with 9 or more columns, where there is a column of
    zeros for ten of the result: the fewer outputs there are, the more.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Conv", f"{MICROSOFT}::FusedConv")
    after = ("conv1d_conversion", "few_output_conv_unrolling", "tall_conv_conversion")
    providers = (CPU,)
    targets = (Target.ORT,)
    produces = ((MICROSOFT, "FusedConv"),)
    fuses = ()
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A dense kernel of constant finite weights."""
        x, weight = inputs(root, 2)
        need_float32(x, "the blocked kernels are")
        need(optional(root, 3) is None, "it adds another value", root)
        need(opset(root, "") >= PADS_ARE_AN_INPUT_FROM["Pad"], "pads are no input in this opset", root)
        plain_attributes(root)
        _, _, rows, columns = static_dims(weight, RANK)
        need(columns >= WIDE, "the kernel is narrow", weight)
        outputs = dims(weight)[0]
        groups = ops.Conv(root).group
        if not isinstance(outputs, int) or groups < 1 or outputs // groups < LEAST_OF_GROUP:
            raise Refusal("its groups have few outputs", root)
        need(outputs // groups * rows * columns >= LEAST_PRODUCTS, "each element is part of few products", root)
        left, right = _padded_columns(root)
        width = dims(root.outputs[0], RANK)[3]
        if isinstance(width, int):
            enough = LEAST_PART * width <= left + right <= LARGEST_PART * width
        else:
            enough = columns >= WIDEST
        need(enough, "too few columns read padding, or almost all", root)
        need(bool(np.isfinite(array_of(weight)).all()), "a weight is no finite number", weight)
        return Found((root,), left, right)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Pad, of an image that stands alone along another axis."""
        (old,) = found.nodes
        x, weight = inputs(old, 2)
        amounts = np.zeros((2, RANK + 1), np.int64)
        amounts[:, -1] = found.left, found.right
        version = opset(old, "")
        beside = ops.unsqueezed(x, [BESIDE], version)
        padded = ir.node("Pad", [beside, constant(amounts.reshape(-1))]).outputs[0]
        pads = list(ops.Conv(old).pads)
        pads[LEFT] = pads[RIGHT] = 0
        return ops.copied(old, [ops.squeezed(padded, [BESIDE], version), weight, *old.inputs[2:3]], pads=pads)


def _padded_columns(root: ir.Node) -> tuple[int, int]:
    """The columns of zeros on the left and on the right."""
    pads = ops.Conv(root).pads
    need(set(ops.Conv(root).dilations) == {1}, "its kernel has gaps", root)
    need(min(pads) >= 0, "its padding crops the image", root)
    need(pads[LEFT] + pads[RIGHT] > 0, "no columns are padded", root)
    return pads[LEFT], pads[RIGHT]
