"""Constants that are added to the keys or values of an attention, by the axes along which they differ."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import Refusal, array_of, broadcasts_to, dims, need, need_float32
from ortopt.views.axes import Axis, Group, View

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def check_alike(added: ir.Value, to: ir.Value, view: View, positions: Group) -> None:
    """Refuse a constant that is not the same at each position.

    Args:
        added: A constant.
        to: What it is added to.
        view: The sum.
        positions: The axes of positions.

    Raises:
        Refusal: If it is not, or if it enlarges the sum, or is not finite.
    """
    _, own = _axes(added, to, view)
    need(not set(own) & set(positions), "what is added is not the same at each position", added)


def as_row(added: ir.Value, to: ir.Value, view: View, row: Group) -> Array:
    """A constant that is added, repeated as the axes of a row ask for.

    Args:
        added: A constant.
        to: What it is added to.
        view: The sum.
        row: The axes of a row: of all heads and their elements.

    Returns:
        As many numbers as a row has.

    Raises:
        Refusal: If it is not the same for each row, or if it enlarges the sum, or is not finite.
    """
    content, own = _axes(added, to, view)
    need(set(own) <= set(row), "what is added is not the same at each position", added)
    order = sorted(range(len(own)), key=lambda place: row.index(own[place]))
    shape = [_size(one) if one in own else 1 for one in row]
    return np.broadcast_to(content.transpose(order).reshape(shape), [_size(one) for one in row]).reshape(-1)


def _axes(added: ir.Value, to: ir.Value, view: View) -> tuple[Array, Group]:
    """A constant's content, in as many dimensions as there are axes along which it may differ; and these."""
    need_float32(to)
    need(broadcasts_to(added, dims(to)), "what is added enlarges the sum", added)
    content = array_of(added).astype(np.float64)
    need(bool(np.isfinite(content).all()), "what is added is not finite", added)
    shape = [1] * (len(view.parts) - content.ndim) + list(content.shape)
    own = tuple(one for dim, group in zip(shape, view.groups, strict=True) if dim != 1 for one in group)
    sizes = [_size(one) for one in own]
    need(int(np.prod(sizes)) == content.size, "what is added is not followed into the heads", added)
    return content.reshape(sizes), own


def _size(one: Axis) -> int:
    if not isinstance(one.size, int):
        raise Refusal("what is added differs along an axis of unknown size", None)
    return one.size


__all__ = ["as_row", "check_alike"]
