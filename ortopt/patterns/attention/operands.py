"""Queries, keys and values of an attention: from the operands of its products back to what the heads were split from."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ortopt.graph.match import Refusal, dims, is_op, is_used_once
from ortopt.patterns.attention.axes import Group, View, above, unrepeated
from ortopt.patterns.attention.scores import factor

_LONGEST = 16


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a product.

    Attributes:
        views: Values that hold its elements, the operand itself first.
        single: Values that hold them before each was repeated for a group; those of `views` that nothing repeats, too.
        scale: What it was multiplied by.
    """

    views: tuple[View, ...]
    single: tuple[View, ...]
    scale: float


def operand(value: ir.Value, parts: tuple[Group, ...], *, scaled: bool) -> Operand:
    """Follow an operand of a product.

    Args:
        value: The operand.
        parts: The axes of its dimensions.
        scaled: Whether factors are taken out of it.
    """
    views, scale = _followed(View(value, parts), scaled=scaled)
    single = views
    while (before := unrepeated(single[-1])) is not None:
        single, _ = _followed(before, scaled=False)
    return Operand(tuple(views), tuple(single), scale)


def _followed(view: View, *, scaled: bool) -> tuple[list[View], float]:
    """The views from one upwards, and the product of the factors on the way."""
    views, scale = [view], 1.0
    while len(views) < _LONGEST:
        following = above(views[-1])
        if following is None and scaled:
            unscaled = _unscaled(views[-1])
            if unscaled is not None:
                following, number = unscaled
                scale *= number
                views = []  # what was read before is another number
        if following is None:
            break
        views.append(following)
    return views, scale


def _unscaled(view: View) -> tuple[View, float] | None:
    """A value before it was multiplied by a number, and the number."""
    node = view.value.producer()
    if node is None or not is_op(node, "Mul", "Div") or not is_used_once(view.value):
        return None
    try:
        source, number = factor(node)
        shape = dims(source, len(view.parts))
    except Refusal:
        return None
    return (View(source, view.parts), number) if len(shape) == len(view.parts) else None


__all__ = ["Operand", "operand"]
