"""ONNX Runtime's blocked convolutions compute columns that read padding one by one, the others many at a time.

With a wide kernel that is a large part of the image. Where the zeros are written beside the image first, all columns
are computed many at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
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
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.opset_changes import PADS_ARE_AN_INPUT_FROM

RANK: Final = 4
LEFT, RIGHT = 1, 3
"""Where the attribute has the columns of zeros."""

FORM, FORM_OF_ANY_WIDTH = (Form("", "Conv", variant) for variant in ("behind a Pad", "behind a Pad, of any width"))

BESIDE: Final = 0
"""The axis around a Pad. ONNX Runtime makes the Pad of an image a convolution's padding when it loads a model."""


class Found(Struct, frozen=True):
    """The convolution, and the columns of zeros."""

    nodes: tuple[ir.Node, ...]
    left: int
    right: int


class ConvPadDecomposition(RewriteRule[Found]):
    """``Conv(x, w)`` with a wide kernel and padded columns → ``Conv(Pad(x), w)``.

    With few columns of zeros, or few products of each element, the copy costs what is saved; with many, the columns
    that are computed one by one read little but zeros, which they leave out. Convolutions of single channels have
    another kernel, in which padding costs nothing.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Conv", f"{MICROSOFT}::FusedConv")
    after = ("conv1d_conversion", "few_output_conv_unrolling", "tall_conv_conversion")
    providers = (CPU,)
    targets = (Target.ORT,)
    produces = ((MICROSOFT, "FusedConv"),)
    fuses = ()
    weighs = (FORM, FORM_OF_ANY_WIDTH)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A dense kernel of constant finite weights."""
        x, weight = inputs(root, 2)
        need_float32(x, "the blocked kernels are")
        need(optional(root, 3) is None, "it adds another value", root)
        need(opset(root, "") >= PADS_ARE_AN_INPUT_FROM["Pad"], "pads are no input in this opset", root)
        plain_attributes(root)
        kernel = static_dims(weight, RANK)
        left, right = _padded_columns(root)
        _check_pays(root, kernel, left + right)
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


def _check_pays(root: ir.Node, kernel: Sequence[int], padded: int) -> None:
    """Refuse where so many columns of zeros are not known to be written out faster."""
    outputs, _, rows, columns = kernel
    groups = ops.Conv(root).group
    need(groups > 0, "it has no groups", root)
    of_group = outputs // groups
    products = of_group * rows * columns
    width = dims(root.outputs[0], RANK)[3]
    if not isinstance(width, int):
        check_faster(root, FORM_OF_ANY_WIDTH, kernel=columns, products=products, outputs=of_group)
        return
    need(width > 0, "the result is empty", root)
    shares = {"zeros": 100 * padded // width, "results": 100 * width // padded}
    check_faster(root, FORM, kernel=columns, products=products, outputs=of_group, **shares)


def _padded_columns(root: ir.Node) -> tuple[int, int]:
    """The columns of zeros on the left and on the right."""
    pads = ops.Conv(root).pads
    need(set(ops.Conv(root).dilations) == {1}, "its kernel has gaps", root)
    need(min(pads) >= 0, "its padding crops the image", root)
    need(pads[LEFT] + pads[RIGHT] > 0, "no columns are padded", root)
    return pads[LEFT], pads[RIGHT]
