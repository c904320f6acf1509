"""A convolution of repeated pixels multiplies each of them several times; one convolution a phase does it once.

Decoders of autoencoders, superresolution and segmentation enlarge an image so before they convolve it.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.analysis.magnitudes import need_no_larger
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    array_of,
    attribute,
    dims,
    inputs,
    is_used_once,
    need,
    need_float32,
    optional,
    plain_attributes,
    producer,
    small_array,
    static_dims,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT

FORM, FORM_OF_ANY_SIZE = (Form("", "Conv", f"for each phase of a larger image{of}") for of in ("", " of any size"))
REPEATS = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
"""The form of a Resize that repeats elements (`nearest_resize_canonicalization`)."""


class Found(Struct, frozen=True):
    """The convolution, and what it convolves.

    Attributes:
        nodes: The convolution, and the Resize.
        scales: How often a row and a column are repeated.
        before: The padding above and on the left.
    """

    nodes: tuple[ir.Node, ...]
    scales: tuple[int, int]
    before: tuple[int, int]


class UpsampledConvDecomposition(RewriteRule[Found]):
    """``Conv(Resize(x))`` → ``DepthToSpace(Concat(Conv(x), Conv(x), …))`` for a Resize that repeats each pixel.

    What a pixel is multiplied with is added up in the weights of each phase of the result. Of small images and few
    channels, the phases cost more than they save.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Conv", f"{MICROSOFT}::FusedConv")
    providers = (CPU,)
    targets = (Target.ORT,)
    produces = ((MICROSOFT, "FusedConv"), ("", "DepthToSpace"))
    weighs = (FORM, FORM_OF_ANY_SIZE)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A dense kernel that keeps the size, of an image that is repeated along rows and columns alike."""
        image, weight = inputs(root, 2)
        need_float32(image, "the gain was measured")
        need(optional(root, 3) is None, "it adds another value", root)
        resize = producer(image, "Resize")
        need(is_used_once(image), "the larger image is used elsewhere", image)
        (scale, _) = scales = _scales(resize)
        need(scale > 1 and scales == (scale, scale), "it does not repeat rows and columns alike", resize)
        kernel = static_dims(weight, rank=4)[2:]
        need(min(kernel) > 1, "the kernel reads one row or column", root)
        before = _padding(root, kernel)
        need_no_larger(np.abs(array_of(weight)), (1.0,), FLOAT, weight)
        _check_pays(resize, weight, scale)
        return Found((root, resize), scales, before)

    def rewrite(self, found: Found) -> ir.Node:
        """Build a convolution for each phase, and bring their results together."""
        root, resize = found.nodes
        weight = array_of(root.inputs[1]).astype(np.float64)
        phases = [
            _phase(root, resize.inputs[0], weight, offsets, found)
            for offsets in itertools.product(*(range(scale) for scale in found.scales))
        ]
        channels = ir.node("Concat", phases, {"axis": 1})
        return ir.node("DepthToSpace", channels.outputs, {"blocksize": found.scales[0], "mode": "DCR"})


def _scales(resize: ir.Node) -> tuple[int, int]:
    """How often a Resize of an image repeats rows and columns."""
    (x,) = inputs(resize, 1)
    dims(x, rank=4)
    plain_attributes(resize)
    defaults = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor"}
    modes = {name: attribute(resize, name, default) for name, default in defaults.items()}
    need(modes == REPEATS, "it does not repeat pixels", resize)
    need(not ops.Resize(resize).names_axes and optional(resize, 3) is None, "its scales are not known", resize)
    numbers = small_array(optional(resize, 2)).astype(np.float64)
    need(numbers.shape == (4,), "its scales are not known", resize)
    need(bool((numbers == np.floor(numbers)).all() and (numbers >= 1).all()), "a scale is not whole", resize)
    need(numbers[0] == numbers[1] == 1, "it repeats images or channels", resize)
    return int(numbers[2]), int(numbers[3])


def _padding(root: ir.Node, kernel: tuple[int, ...]) -> tuple[int, int]:
    """The padding above and on the left of a convolution whose result is as large as its image."""
    plain_attributes(root)
    need(ops.Conv(root).moves_by_one, "it has strides or dilations", root)
    pads = ops.Conv(root).pads
    need(len(pads) == 4 and min(pads) >= 0, "its padding is no frame around the image", root)
    keeps = pads[0] + pads[2] == kernel[0] - 1 and pads[1] + pads[3] == kernel[1] - 1
    need(keeps, "its result is not as large as its image", root)
    return pads[0], pads[1]


def _check_pays(resize: ir.Node, weight: ir.Value, scale: int) -> None:
    """Refuse where the phases are not known to be faster."""
    (x,) = inputs(resize, 1)
    channels = static_dims(weight)[1]
    form = FORM if all(isinstance(size, int) for size in dims(x)[1:]) else FORM_OF_ANY_SIZE
    side = min((size for size in dims(x)[2:] if isinstance(size, int)), default=None)
    check_faster(resize, form, channels=channels, side=side, scale=scale)


def _phase(root: ir.Node, x: ir.Value | None, weight: np.ndarray, offsets: tuple[int, ...], found: Found) -> ir.Value:
    """The pixels of the result that are a number of rows and columns away from where a pixel of x is repeated."""
    first, last = [], []
    for axis, (offset, scale, before) in enumerate(zip(offsets, found.scales, found.before, strict=True), start=2):
        sources = [(offset + place - before) // scale for place in range(weight.shape[axis])]
        lengths = np.flatnonzero(np.diff(sources, prepend=sources[0] - 1))
        weight = np.add.reduceat(weight, lengths, axis=axis)
        first.append(-sources[0])
        last.append(sources[-1])
    own = constant(weight.astype(np.float32), FLOAT)
    operands = [x, own, *root.inputs[2:3]]
    return ops.copied(root, operands, kernel_shape=None, auto_pad=None, pads=(*first, *last)).outputs[0]
