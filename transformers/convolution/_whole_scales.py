"""Resize by whole numbers: how many times as long each axis becomes, whichever operand says so."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.facts import contents
from ortopt.graph.match import Dim, Refusal, dims, need, optional, same_dim, small_array, tensor_of


def whole_scales(root: ir.Node, x: ir.Value) -> tuple[int, ...]:
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
        if known is None:
            raise Refusal("the sizes are not known", root)
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


__all__ = ["whole_scales"]
