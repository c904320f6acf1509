"""A Resize to the size that a value already has only copies, in most modes."""

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    Refusal,
    attribute,
    dims,
    inputs,
    is_op,
    need,
    opset,
    optional,
    same_dim,
    small_array,
    tensor_of,
)
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Forwarded, RewriteRule
from ortopt.semantics.opset_changes import REGION_IS_AN_INPUT_FROM, SCALES_ARE_AN_INPUT_FROM

KEEPING = ("align_corners", "asymmetric", "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
"""Coordinate modes that read from x itself at scale 1; tf_crop_and_resize reads what the region says."""


class ResizeElimination(RewriteRule[Forwarded]):
    """``Resize``, ``Upsample`` to the size of x → ``x``.

    At scale 1 each element is read at its own place: linear weights are then 1 and 0, cubic ones 0, 1, 0, 0, with
    exclude_outside and with antialias too. tf_half_pixel_for_nn reads half an element further, which only rounding
    downwards undoes.
    """

    levels = (TransformerLevel.LEVEL1,)
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

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let its users read what it copies."""
        return found.value


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
    if known is None:
        raise Refusal("the sizes are not known", sizes)
    axes = ops.Resize(root).axes
    need(len(axes) == len(known), "the axes do not fit", root)
    same = all(same_dim(size, shape[axis]) for size, axis in zip(known, axes, strict=True))
    need(same, "a size may differ from the dimension", sizes)
