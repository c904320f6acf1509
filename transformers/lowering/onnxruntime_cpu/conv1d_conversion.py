"""ONNX Runtime has its blocked convolution kernels for images only: a signal is an image of height 1."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK
from ortopt.analysis.blocked_values import is_divided
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster, is_faster
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
from ortopt.transformers.lowering.onnxruntime_cpu._signal_pieces import FORM as PIECES
from ortopt.transformers.lowering.onnxruntime_cpu._signal_pieces import Pieces, pieces_of

HEIGHT = 2
"""The axis that comes."""

FORM = Form("", "Conv", "of signals as images")
ON_ONE_THREAD = Form("", "Conv", "of signals as images, on one thread")


class Found(Struct, frozen=True):
    """The convolution, and how its signals are cut; None if they become images of height 1."""

    nodes: tuple[ir.Node, ...]
    pieces: Pieces | None


class Conv1dConversion(RewriteRule[Found]):
    """``Conv(x, w)`` of signals → ``Squeeze(Conv(Unsqueeze(x), Unsqueeze(w)))`` of images, where that is faster.

    That is for channels that fill whole blocks, with kernels for which a product of matrices is not as fast, and for
    depthwise convolutions. Of short signals of few channels, the layout changes cost what the kernel gains.
    `squeeze_reordering` handles chains of convolutions.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("signal_rows_conversion",)
    roots = ("Conv", f"{MICROSOFT}::FusedConv")
    providers = (CPU,)
    produces = ((MICROSOFT, "FusedConv"),)
    weighs = (FORM, ON_ONE_THREAD, PIECES)
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
        length = shape[-1] if isinstance(shape[-1], int) else None
        _check_pays(root, length)
        read = kernel if length is None else min(kernel, length)  # the blocked kernel skips padding
        pieces = None if _is_divided(root, outputs * channels * read) else pieces_of(root)
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
        FORM,
        channels=channels,
        groups=groups,
        group=each,
        results=outputs,
        kernel=kernel,
        length=length,
        fitting=kernel if fits else 0,
    )
