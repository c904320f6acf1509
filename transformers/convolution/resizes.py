"""A Resize to the same size only copies; of the spellings of others, one has the fast kernels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    Dim,
    Refusal,
    attribute,
    dims,
    inputs,
    is_constant,
    is_op,
    need,
    need_known,
    opset,
    optional,
    plain_attributes,
    same_dim,
    small_array,
    tensor_of,
)
from ortopt.patterns.interpolation import COORDINATES
from ortopt.rule import NEWEST_OPSET, Elimination, Forwarded, Match, RewriteRule
from ortopt.semantics.opset_changes import REGION_IS_AN_INPUT_FROM, SCALES_ARE_AN_INPUT_FROM

CANONICAL = ("asymmetric", "floor")

REPEATING = {
    CANONICAL,
    *((mode, nearest) for mode in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
      for nearest in ("round_prefer_ceil", "round_prefer_floor")),
    ("tf_half_pixel_for_nn", "floor"),
}  # fmt: skip
"""Coordinate and rounding modes in which element k · i + r of an axis that becomes k times as long is element i.

Half-pixel modes read from i + (r + 1/2)/k - 1/2, which is less than 1/2 away from i; tf_half_pixel_for_nn half an
element further, and rounds down.
"""

KEEPING = ("align_corners", "asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
"""Coordinate modes that read from x itself at scale 1; tf_crop_and_resize reads what the region says."""


class ResizeElimination(Elimination):
    """``Resize``, ``Upsample`` to the size of x → ``x``.

    At scale 1 each element is read at its own place: linear weights are then 1 and 0, cubic ones 0, 1, 0, 0, with
    exclude_outside and with antialias too. tf_half_pixel_for_nn reads half an element further, which only rounding
    downwards undoes.
    """

    roots = ("Resize", "Upsample")
    opsets = (7, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Forwarded:
        """Scales of 1, or sizes that are the dimensions, in a mode that keeps the places."""
        (x,) = inputs(root, 1)
        version = opset(root)
        if is_op(root, "Resize") and version >= REGION_IS_AN_INPUT_FROM["Resize"]:
            _check_coordinates(root)
            scales, sizes = optional(root, 2), optional(root, 3)
        else:
            scales, sizes = optional(root, 1), None
        if sizes is not None and not (scales is not None and _is_not_empty(scales)):
            _check_sizes(root, x, sizes)
        elif version < SCALES_ARE_AN_INPUT_FROM["Upsample"]:
            empty: tuple[float, ...] = ()
            listed = attribute(root, "scales", empty)
            need(len(listed) > 0 and all(scale == 1.0 for scale in listed), "a scale is not 1", root)
        else:
            array = small_array(scales)
            need(array.size > 0 and bool(np.all(array == 1.0)), "a scale is not 1", scales)
        return Forwarded((root,), x)


def _is_not_empty(scales: ir.Value) -> bool:
    """Whether there are scales: empty ones are left out where there are sizes."""
    return tensor_of(scales).size > 0


def _check_coordinates(root: ir.Node) -> None:
    mode = attribute(root, "coordinate_transformation_mode", "half_pixel")
    if mode in KEEPING:
        return
    down = attribute(root, "nearest_mode", "round_prefer_floor") in ("floor", "round_prefer_floor")
    nearest = attribute(root, "mode", "nearest") == "nearest"
    need(mode == "tf_half_pixel_for_nn" and nearest and down, f"{mode} may read from other places", root)


def _check_sizes(root: ir.Node, x: ir.Value, sizes: ir.Value) -> None:
    shape, known = dims(x), contents(sizes)
    known = need_known(known, "the sizes are not known", sizes)
    axes = ops.Resize(root).axes
    need(len(axes) == len(known), "the axes do not fit", root)
    same = all(same_dim(size, shape[axis]) for size, axis in zip(known, axes, strict=True))
    need(same, "a size may differ from the dimension", sizes)


class NearestResizeCanonicalization(RewriteRule[Match]):
    """``Resize`` by whole numbers that repeats elements → ``Resize(x, scales)``, asymmetric and rounding down.

    ONNX Runtime has a fast kernel for this spelling, and one on blocked layouts.
    """

    after = ("resize_elimination",)
    roots = ("Resize",)
    opsets = (11, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Match:
        """Modes that repeat, and scales that are whole."""
        (x,) = inputs(root, 1)
        need(attribute(root, "mode", "nearest") == "nearest", "it interpolates", root)
        modes = (
            attribute(root, "coordinate_transformation_mode", "half_pixel"),
            attribute(root, "nearest_mode", "round_prefer_floor"),
        )
        need(modes in REPEATING, f"{modes[0]} with {modes[1]} may read from other places", root)
        need(attribute(root, "keep_aspect_ratio_policy", "stretch") == "stretch", "the sizes are only bounds", root)
        plain_attributes(root)
        scales = _whole_scales(root, x)
        written = modes == CANONICAL and not ops.Resize(root).names_axes and optional(root, 3) is None
        need(not written, "it is written so", root)
        attributes = {"mode": "nearest", "coordinate_transformation_mode": CANONICAL[0], "nearest_mode": CANONICAL[1]}
        return Match((root,), lambda: ir.node("Resize", _operands(root, scales), attributes))


class LinearResizeCanonicalization(RewriteRule[Match]):
    """``Resize(x, sizes)`` that interpolates → ``Resize(x, scales)``, where computed sizes are whole multiples."""

    after = ("resize_elimination",)
    roots = ("Resize",)
    opsets = (11, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Match:
        """Sizes that are no constant, but known to be multiples of the dimensions."""
        (x,) = inputs(root, 1)
        need(attribute(root, "mode", "nearest") in ("linear", "cubic"), "it repeats elements", root)
        mode = attribute(root, "coordinate_transformation_mode", "half_pixel")
        need(mode in COORDINATES, f"{mode} depends on more than sizes", root)
        need(attribute(root, "keep_aspect_ratio_policy", "stretch") == "stretch", "the sizes are only bounds", root)
        plain_attributes(root)
        sizes = optional(root, 3)
        need(sizes is not None and not is_constant(sizes), "no sizes are computed for it", root)
        scales = _whole_scales(root, x)
        changed = {"axes": None, "keep_aspect_ratio_policy": None}
        return Match((root,), lambda: ops.copied(root, _operands(root, scales), **changed))


def _operands(root: ir.Node, scales: tuple[int, ...]) -> list[ir.Value | None]:
    """The operands of a Resize by scales; before opset 13, the region must be there, though nothing reads it."""
    return [*root.inputs[:2], constant(np.array(scales, np.float32))]


def _whole_scales(root: ir.Node, x: ir.Value) -> tuple[int, ...]:
    """How many times as long each axis of what a Resize enlarges becomes.

    Args:
        root: A Resize that takes sizes literally, from opset 11 on.
        x: What it enlarges.

    Raises:
        Refusal: If that is not known, or is no whole number.
    """
    shape = dims(x)
    axes = ops.Resize(root).axes
    scales, sizes = optional(root, 2), optional(root, 3)
    if scales is not None and tensor_of(scales).size > 0:
        listed = small_array(scales).astype(np.float64).reshape(-1)
        need(bool(np.all((listed >= 1) & (listed == np.floor(listed)))), "a scale is not whole", scales)
        numbers = [int(scale) for scale in listed]
    else:
        known = None if sizes is None else contents(sizes)
        known = need_known(known, "the sizes are not known", root)
        need(len(known) == len(axes), "the axes do not fit", root)
        numbers = [_times(shape[axis], size, root) for axis, size in zip(axes, known, strict=True)]
    need(len(numbers) == len(axes), "the axes do not fit", root)
    result = [1] * len(shape)
    for axis, number in zip(axes, numbers, strict=True):
        result[axis] = number
    return tuple(result)


def _times(dim: Dim, size: Dim, root: ir.Node) -> int:
    """How many times a dimension is contained in a size; of one without elements the kernel makes none either way."""
    if same_dim(dim, size):
        return 1
    if isinstance(dim, int) and isinstance(size, int):
        times: Dim | None = size // dim if dim > 0 and size % dim == 0 else None
    else:
        times = symbolic.quotient_exact(size, dim)
    if not isinstance(times, int) or times < 1:
        raise Refusal("a size is not known to be a multiple of the dimension", root)
    return times
