"""Convolutions of signals in forms for which ONNX Runtime has its blocked kernels: those of images, along a row.

Where a kernel would run on one thread, its signal is cut into pieces, which are rows of an image: a piece of the result
depends on a piece of the signal that is longer by the kernel. So nothing is computed twice, the rows are the result as
they lie in memory, and what it costs is to copy the signal once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK
from ortopt.analysis.blocked_values import is_divided
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster, is_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOAT, Refusal, array_of, dims, inputs, need, opset, static_dims
from ortopt.options import Numerics
from ortopt.patterns.convolutions import convolution_of_images
from ortopt.patterns.quantization import is_unit
from ortopt.rule import Match
from ortopt.semantics.opset_changes import PADS_ARE_AN_INPUT_FROM
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import ConvRule, convolution

COUNTS: Final = (8, 4, 2)
"""Into how many pieces a result is cut: the first that pays."""

PIECES: Final = Form("", "Conv", "of pieces of signals")

SHORT_PIECES: Final = Form("", "Conv", "of so many pieces of a signal")


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
        convolution: A Conv or FusedConv with a constant kernel along the first axis behind the channels, which fill
            blocks; along others the kernel and the images have one element, and are not padded.

    Raises:
        Refusal: If it does not pay, or the pieces would not be equal.
    """
    _, weight = inputs(convolution, 2)
    _, channels, kernel = static_dims(weight)[:3]
    need(opset(convolution, "") >= PADS_ARE_AN_INPUT_FROM["Pad"], "pads are no input in this opset", convolution)
    conv = ops.Conv(convolution)
    need(conv.group == 1, "it has groups", convolution)
    pads = conv.pads
    check_faster(convolution, PIECES, channels=channels, kernel=kernel)
    length = dims(convolution.outputs[0])[2]
    count = _count(convolution, length) if isinstance(length, int) else 1
    if not isinstance(length, int) or count == 1:
        raise Refusal("its kernel would run on one thread, and the result is in no equal pieces", convolution)
    padding = (pads[0], pads[len(pads) // 2])
    need(min(padding) >= 0, "its padding crops the signal", convolution)
    stride, dilation = conv.strides[0], conv.dilations[0]
    need(not any(padding) or bool(np.isfinite(array_of(weight)).all()), "a weight is no finite number", weight)
    positions = length // count
    return Pieces(count, positions, stride, (positions - 1) * stride + dilation * (kernel - 1) + 1, padding)


def _count(convolution: ir.Node, length: int) -> int:
    """Into how many equal pieces of some length a result is cut; 1 if there are none."""
    counts = (count for count in COUNTS if length % count == 0)
    sizes = ((count, length // count) for count in counts)
    return next((n for n, each in sizes if is_faster(convolution, SHORT_PIECES, pieces=n, positions=each)), 1)


HEIGHT = 2
"""The axis that comes."""

IMAGES = Form("", "Conv", "of signals as images")
ON_ONE_THREAD = Form("", "Conv", "of signals as images, on one thread")


class Conv1dConversion(ConvRule[Match]):
    """``Conv(x, w)`` of signals → ``Squeeze(Conv(Unsqueeze(x), Unsqueeze(w)))`` of images, where that is faster.

    ONNX Runtime has its blocked convolution kernels for images only: a signal is an image of height 1.

    That is for channels that fill whole blocks, with kernels for which a product of matrices is not as fast, and for
    depthwise convolutions. Of short signals of few channels, the layout changes cost what the kernel gains.
    `squeeze_reordering` handles chains of convolutions.
    """

    after = ("signal_rows_conversion",)
    weighs = (IMAGES, ON_ONE_THREAD, PIECES, SHORT_PIECES)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A convolution along one axis in single precision, with constant weights in whole blocks."""
        x, weight, (outputs, channels, kernel) = convolution(root, 3)
        size = dims(x, 3)[-1]
        length = size if isinstance(size, int) else None
        need(not is_unit(root, root.outputs[0]), "a quantized kernel can do all of it", root)
        array_of(weight)
        _check_pays(root, length)
        read = kernel if length is None else min(kernel, length)  # the blocked kernel skips padding
        pieces = None if _is_divided(root, outputs * channels * read) else pieces_of(root)
        return Match((root,), lambda: _as_images(root, pieces))


def _as_images(root: ir.Node, pieces: Pieces | None) -> ir.Node:
    """Build the convolution of an image of height 1, or of one that has a piece of the signal in each row."""
    version = opset(root, "")
    row = ops.unsqueezed(inputs(root, 1)[0], [HEIGHT], version)
    if pieces is None:
        return ops.node_along("Squeeze", convolution_of_images(root, row).outputs[0], [HEIGHT], version)
    node = convolution_of_images(root, pieces.image(row), pads=(0, 0, 0, 0))
    return pieces.joined(node.outputs[0], ())


def _is_divided(root: ir.Node, each: int) -> bool:
    """Whether threads divide the convolution of images of height 1 as they divide that of signals.

    Args:
        root: The convolution.
        each: How many multiplications there are for each position of the result.
    """
    batch, outputs, length = dims(root.outputs[0], rank=3)
    if ops.Conv(root).group > 1 or (isinstance(batch, int) and batch > 1):
        return True
    if not isinstance(outputs, int):
        return False
    little = isinstance(length, int) and is_faster(root, ON_ONE_THREAD, multiplications=each * length, outputs=outputs)
    return is_divided(root, outputs, is_little=little)


def _check_pays(root: ir.Node, length: int | None) -> None:
    """Refuse where the channels fill no blocks, or the blocked kernels are not faster.

    Args:
        root: The convolution.
        length: Of its signals; None if that is not known.
    """
    outputs, channels, kernel = static_dims(inputs(root, 2)[1], rank=3)
    groups = ops.Conv(root).group
    need(groups > 0 and outputs % groups == 0, "the groups do not fit")
    each = outputs // groups
    if channels == 1 and groups in (1, outputs):
        need(outputs % BLOCK == 0, "the channels fill no blocks")
    else:
        need(channels % BLOCK == 0 == each % BLOCK and channels > 0, "the channels fill no blocks")
    fits = length is None or kernel <= 2 * length
    check_faster(
        root,
        IMAGES,
        channels=channels,
        groups=groups,
        group=each,
        results=outputs,
        kernel=kernel,
        length=length,
        fitting=kernel if fits else 0,
    )


RANK: Final = 4
TALL: Final = Form("", "Conv", "of columns as rows")
TALL_ON_ONE_THREAD: Final = Form("", "Conv", "of columns as rows, on one thread")

LISTS: Final = ("kernel_shape", "strides", "dilations", "pads")
ROWS, COLUMNS = 2, 3


class TallConvConversion(ConvRule[Match]):
    """``Conv(x, w)`` of images of width 1 → the same of images of height 1, with the kernel's rows as columns.

    ONNX Runtime's blocked convolutions compute many columns at a time, and rows one by one: a column becomes a row.

    Detectors of pitch (CREPE) convolve signals in this way.
    """

    weighs = (TALL, TALL_ON_ONE_THREAD, PIECES, SHORT_PIECES)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A kernel of one column, images of one column, and no padding beside it."""
        x, weight, (outputs, channels, rows, columns) = convolution(root)
        positions, width = dims(x, RANK)[ROWS:]
        need(width == 1 == columns, "the image has several columns, or the kernel has", root)
        pads = ops.Conv(root).pads
        need(pads[1] == 0 == pads[3], "columns are padded", root)
        need(ops.Conv(root).group == 1, "it has groups", root)
        blocks = outputs % BLOCK == 0 and (channels % BLOCK == 0 or channels == 1)
        need(blocks and channels > 0, "the channels fill no blocks", weight)
        batch, _, size, _ = dims(root.outputs[0], RANK)
        length = size if isinstance(size, int) else None
        check_faster(root, TALL, channels=channels, kernel=rows, length=length)
        read = min(rows, positions) if isinstance(positions, int) else rows  # the blocked kernel skips padding
        work = None if length is None else outputs * channels * read * length
        little = work is not None and is_faster(root, TALL_ON_ONE_THREAD, multiplications=work)
        several = isinstance(batch, int) and batch > 1
        array_of(weight)
        pieces = None if several or is_divided(root, outputs, is_little=little) else pieces_of(root)
        return Match((root,), lambda: _as_rows(root, pieces))


def _as_rows(root: ir.Node, pieces: Pieces | None) -> ir.Node:
    """Build the convolution, with the axis of one element in front of the other one."""
    x, weight = inputs(root, 2)
    wide = constant(array_of(weight).swapaxes(ROWS, COLUMNS), FLOAT)
    version = opset(root, "")
    image = ops.unsqueezed(ops.squeezed(x, [COLUMNS], version), [ROWS], version)
    lists = {
        name: np.reshape(entry.as_ints(), (-1, 2))[:, ::-1].reshape(-1).tolist()
        for name, entry in root.attributes.items()
        if name in LISTS
    }
    if pieces is not None:
        node = ops.copied(root, [pieces.image(image), wide, *root.inputs[2:3]], **lists | {"pads": [0, 0, 0, 0]})
        return pieces.joined(node.outputs[0], [1])
    rows = ops.copied(root, [image, wide, *root.inputs[2:3]], **lists).outputs[0]
    return ops.node_along("Unsqueeze", ops.squeezed(rows, [ROWS], version), [COLUMNS], version)
