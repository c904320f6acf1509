"""One convolution of a signal as one of an image, whose rows give consecutive pieces of the result.

A piece of the result depends on a piece of the signal that is longer by the kernel. So nothing is computed twice, the
rows are the result as they lie in memory, and what it costs is to copy the signal once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, array_of, dims, inputs, need, opset, static_dims
from ortopt.semantics.opset_changes import PADS_ARE_AN_INPUT_FROM

COUNTS: Final = ((8, 64), (4, 16), (2, 16))
"""How many pieces a result is cut into, and how many positions each of them must have for it."""

FORM: Final = Form("", "Conv", "of pieces of signals")


class Pieces(Struct, frozen=True):
    """How a convolution's signals are cut.

    Attributes:
        count: How many pieces there are.
        positions: How many positions of the result each of them gives.
        stride: How far apart positions of the result are in the signal.
        width: How long the pieces of the signal are.
        padding: How many zeros come before and behind the signal.
    """

    count: int
    positions: int
    stride: int
    width: int
    padding: tuple[int, int]

    def image(self, row: ir.Value) -> ir.Value:
        """The image of a signal, which is one of height 1."""
        if any(self.padding):
            amounts = np.zeros((2, 4), np.int64)
            amounts[:, 3] = self.padding
            row = ir.node("Pad", [row, constant(amounts.reshape(-1))]).outputs[0]
        starts = range(0, self.count * self.positions * self.stride, self.positions * self.stride)
        bounds = ((constant([start]), constant([start + self.width])) for start in starts)
        parts = [ir.node("Slice", [row, start, stop, constant([3])]).outputs[0] for start, stop in bounds]
        return ir.node("Concat", parts, {"axis": 2}).outputs[0]

    def joined(self, image: ir.Value, behind: Sequence[int]) -> ir.Node:
        """The signal of an image whose rows are pieces of the result.

        Args:
            image: The image.
            behind: The sizes of the axes behind that of positions: ones.
        """
        return ir.node("Reshape", [image, constant([0, 0, self.count * self.positions, *behind])])


def pieces_of(convolution: ir.Node) -> Pieces:
    """How the signals of a convolution are cut, where that pays.

    Args:
        convolution: A Conv or FusedConv with a constant kernel, along the first axis behind the channels; along
            others the kernel and the images have one element, and are not padded.

    Raises:
        Refusal: If it does not pay, or the pieces would not be equal.
    """
    _, weight = inputs(convolution, 2)
    outputs, channels, kernel = static_dims(weight)[:3]
    need(opset(convolution, "") >= PADS_ARE_AN_INPUT_FROM["Pad"], "pads are no input in this opset", convolution)
    conv = ops.Conv(convolution)
    need(conv.group == 1, "it has groups", convolution)
    pads = conv.pads
    fits = outputs % BLOCK == 0 and (channels == 1 or channels % BLOCK == 0)
    need(fits, "the channels fill no blocks", weight)
    check_faster(convolution, FORM, channels=channels, kernel=kernel)
    length = dims(convolution.outputs[0])[2]
    count = _count(length) if isinstance(length, int) else 1
    if not isinstance(length, int) or count == 1:
        raise Refusal("its kernel would run on one thread, and the result is in no equal pieces", convolution)
    padding = (pads[0], pads[len(pads) // 2])
    need(min(padding) >= 0, "its padding crops the signal", convolution)
    stride, dilation = conv.strides[0], conv.dilations[0]
    need(not any(padding) or bool(np.isfinite(array_of(weight)).all()), "a weight is no finite number", weight)
    positions = length // count
    return Pieces(count, positions, stride, (positions - 1) * stride + dilation * (kernel - 1) + 1, padding)


def _count(length: int) -> int:
    """Into how many equal pieces of some length a result is cut; 1 if there are none."""
    return next((count for count, least in COUNTS if length % count == 0 and length // count >= least), 1)


__all__ = ["Pieces", "pieces_of"]
