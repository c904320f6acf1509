"""ONNX Runtime has its blocked convolution kernels for images only: a signal is an image of height 1."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK
from ortopt.analysis.blocked_threads import is_divided
from ortopt.analysis.kernels import CPU
from ortopt.graph import scope
from ortopt.graph.match import (
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
from ortopt.patterns.convolution import convolution_of_images
from ortopt.patterns.quantization import is_unit
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.lowering.onnxruntime_cpu._signal_pieces import Pieces, pieces_of

HEIGHT = 2
"""The axis that comes."""

SHORT, WIDE = 100, 64
"""Signals of fixed length below, with fewer channels, are as fast as they are: the layout changes cost what the kernel
gains, 0.90 to 1.07. With as many channels it is 1.02 to 4.8 times as fast from 4 positions on, and depthwise 1.07 to
6.5."""

LONG_KERNEL = 16
"""From so many places on, short signals with few channels gain too, where at least half of the kernel fits in: 1.4 to
1.6 times as fast with the padding that `conv_pad_decomposition` writes out."""

LONG_KERNEL_OF_ONE = 64
"""From so many places on, a signal of one channel gains 1.03 to 1.8 times: spectrograms, detectors of pitch."""

DIVIDED = 1_000_000
"""Multiplications that two threads divide with profit. Kernels in blocks that run on one thread were 0.62 to 0.81 times
as fast with two, for 32 to 64 channels and 300 to 2,000 positions; with less to do they were 1.2 to 1.4 times as fast
with one thread and with two."""

DIVIDED_OF_ONE_BLOCK = 3_000_000
"""The same where the result is one block, with which the blocked kernel gains most: with 1.2 to 2.7 million it was 1.5
to 1.6 times as fast with one thread and 1.1 to 1.3 times with two, with 4.6 million 0.79 times with two."""


class Found(Struct, frozen=True):
    """The convolution, and how its signals are cut; None if they become images of height 1."""

    nodes: tuple[ir.Node, ...]
    pieces: Pieces | None


class Conv1dConversion(RewriteRule[Found]):
    """``Conv(x, w)`` of signals → ``Squeeze(Conv(Unsqueeze(x), Unsqueeze(w)))`` of images, where that is faster.

    With ONNX Runtime's CPU kernels this is faster for kernel sizes from 3 with channels that fill whole blocks (1.05 to
    1.4 times as fast), and for depthwise convolutions (1.7 to 3.7 times). `squeeze_reordering` handles chains of
    convolutions.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("signal_rows_conversion",)
    roots = ("Conv", f"{MICROSOFT}::FusedConv")
    providers = (CPU,)
    produces = ((MICROSOFT, "FusedConv"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A convolution along one axis in single precision, with constant weights in whole blocks."""
        x, weight = inputs(root, 2)
        shape = dims(x, rank=3)
        need_float32(x, "the blocked kernels are")
        options = scope.of(scope.graph_of(root)).options
        need(options.target is Target.ORT, "it is a form for ONNX Runtime", root)
        need(optional(root, 3) is None, "it adds another value", root)
        need(not is_unit(root, root.outputs[0]), "a quantized kernel can do all of it", root)
        plain_attributes(root)
        outputs, channels, kernel = static_dims(weight, rank=3)
        array_of(weight)
        _check_pays(outputs, channels, kernel, ops.Conv(root).group)
        read = min(kernel, shape[-1]) if isinstance(shape[-1], int) else kernel  # the blocked kernel skips padding
        pieces = None if _is_divided(root, outputs * channels * read) else pieces_of(root)
        length = shape[-1]
        lasting = not isinstance(length, int) or length >= SHORT or LONG_KERNEL <= kernel <= 2 * length
        need(lasting or outputs >= WIDE or channels == 1, "the signals are short, and of few channels", x)
        return Found((root,), pieces)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the convolution of an image of height 1, or of one that has a piece of the signal in each row."""
        (old,) = found.nodes
        version = opset(old, "")
        row = ops.unsqueezed(inputs(old, 1)[0], [HEIGHT], version)
        if found.pieces is None:
            return ops.node_along("Squeeze", convolution_of_images(old, row).outputs[0], [HEIGHT], version)
        node = convolution_of_images(old, found.pieces.image(row), pads=(0, 0, 0, 0))
        return found.pieces.joined(node.outputs[0], ())


def _is_divided(root: ir.Node, each: int) -> bool:
    """Whether threads divide the convolution of images of height 1 as they divide that of signals.

    Args:
        root: The convolution.
        each: How many multiplications there are for each position of the result.
    """
    batch, outputs, length = dims(root.outputs[0], rank=3)
    if ops.Conv(root).group > 1 or (isinstance(batch, int) and batch > 1):
        return True
    work = each * length if isinstance(length, int) else None
    least = DIVIDED_OF_ONE_BLOCK if outputs == BLOCK else DIVIDED
    return isinstance(outputs, int) and is_divided(root, outputs, work, least)


def _check_pays(outputs: int, channels: int, kernel: int, groups: int) -> None:
    """Refuse where the blocked kernels are not faster.

    Args:
        outputs: How many channels come.
        channels: How many channels each of them reads.
        kernel: How many places of a channel each of them reads.
        groups: How many groups of channels there are.
    """
    need(groups > 0 and outputs % groups == 0, "the groups do not fit")
    if groups == outputs and channels == 1:
        need(outputs % BLOCK == 0 and kernel > 1, "the channels fill no blocks")
        return
    each = outputs // groups
    if channels == 1 == groups and kernel >= LONG_KERNEL_OF_ONE:
        need(outputs % BLOCK == 0, "the channels fill no blocks")
        return
    need(channels % BLOCK == 0 and each % BLOCK == 0 and channels > 0, "the channels fill no blocks")
    need(kernel >= 3, "with so small a kernel a matrix product is as fast")
    need(channels >= min(each, 2 * BLOCK), "the input has too few channels")
