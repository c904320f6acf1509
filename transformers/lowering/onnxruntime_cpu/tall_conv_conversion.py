"""ONNX Runtime's blocked convolutions compute many columns at a time, and rows one by one: a column becomes a row."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK
from ortopt.analysis.blocked_values import is_divided
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster, is_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
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
from ortopt.transformers.lowering.onnxruntime_cpu._signal_pieces import FORM as PIECES
from ortopt.transformers.lowering.onnxruntime_cpu._signal_pieces import Pieces, pieces_of

RANK: Final = 4
FORM: Final = Form("", "Conv", "of columns as rows")
ON_ONE_THREAD: Final = Form("", "Conv", "of columns as rows, on one thread")

LISTS: Final = ("kernel_shape", "strides", "dilations", "pads")
ROWS, COLUMNS = 2, 3


class Found(Struct, frozen=True):
    """The convolution, and how its columns are cut; None if each becomes one row."""

    nodes: tuple[ir.Node, ...]
    pieces: Pieces | None


class TallConvConversion(RewriteRule[Found]):
    """``Conv(x, w)`` of images of width 1 → the same of images of height 1, with the kernel's rows as columns.

    Detectors of pitch (CREPE) convolve signals in this way.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Conv", f"{MICROSOFT}::FusedConv")
    providers = (CPU,)
    targets = (Target.ORT,)
    produces = ((MICROSOFT, "FusedConv"),)
    fuses = ()
    weighs = (FORM, ON_ONE_THREAD, PIECES)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A kernel of one column, images of one column, and no padding beside it."""
        x, weight = inputs(root, 2)
        need_float32(x, "the blocked kernels are")
        need(optional(root, 3) is None, "it adds another value", root)
        plain_attributes(root)
        outputs, channels, rows, columns = static_dims(weight, RANK)
        need(dims(x, RANK)[COLUMNS] == 1 == columns, "the image has several columns, or the kernel has", root)
        pads = ops.Conv(root).pads
        need(pads[1] == 0 == pads[3], "columns are padded", root)
        need(ops.Conv(root).group == 1, "it has groups", root)
        blocks = outputs % BLOCK == 0 and (channels % BLOCK == 0 or channels == 1)
        need(blocks and channels > 0, "the channels fill no blocks", weight)
        batch, _, size, _ = dims(root.outputs[0], RANK)
        length = size if isinstance(size, int) else None
        check_faster(root, FORM, channels=channels, kernel=rows, length=length)
        positions = dims(x)[ROWS]
        read = min(rows, positions) if isinstance(positions, int) else rows  # the blocked kernel skips padding
        work = None if length is None else outputs * channels * read * length
        little = work is not None and is_faster(root, ON_ONE_THREAD, multiplications=work)
        several = isinstance(batch, int) and batch > 1
        array_of(weight)
        pieces = None if several or is_divided(root, outputs, is_little=little) else pieces_of(root)
        return Found((root,), pieces)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the convolution, with the axis of one element in front of the other one."""
        (old,) = found.nodes
        x, weight = inputs(old, 2)
        wide = constant(array_of(weight).swapaxes(ROWS, COLUMNS), FLOAT)
        version = opset(old, "")
        image = ops.unsqueezed(ops.squeezed(x, [COLUMNS], version), [ROWS], version)
        if found.pieces is not None:
            image = found.pieces.image(image)
        lists = {
            name: np.reshape(entry.as_ints(), (-1, 2))[:, ::-1].reshape(-1).tolist()
            for name, entry in old.attributes.items()
            if name in LISTS
        }
        if found.pieces is not None:
            lists["pads"] = [0, 0, 0, 0]
        node = ops.copied(old, [image, wide, *old.inputs[2:3]], **lists)
        if found.pieces is not None:
            return found.pieces.joined(node.outputs[0], [1])
        return ops.node_along("Unsqueeze", ops.squeezed(node.outputs[0], [ROWS], version), [COLUMNS], version)
