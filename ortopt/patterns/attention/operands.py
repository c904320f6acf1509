"""Queries, keys and values of an attention: from the operands of its products to what the heads were split from."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph import symbolic
from ortopt.graph.match import Dim, Refusal, is_op, is_used_once
from ortopt.patterns.attention.scores import factor
from ortopt.patterns.attention.sizes import dims, shape_of
from ortopt.views.axes import Group, View, above, leaves, unrepeated

_LONGEST = 16


class Operand(Struct, frozen=True):
    """An operand of a product.

    Attributes:
        views: Values that hold its elements, the operand itself first.
        single: Values that hold them before each was repeated for a group; those of `views` that nothing repeats, too.
        scale: What it was multiplied by.
    """

    views: tuple[View, ...]
    single: tuple[View, ...]
    scale: float


def operand(value: ir.Value, parts: tuple[Group, ...], batch: Group, *, scaled: bool) -> Operand:
    """Follow an operand of a product.

    Args:
        value: The operand.
        parts: The axes of its dimensions.
        batch: The axes that all operands share: where one of them is 0, the block gives nothing.
        scaled: Whether factors are taken out of it.
    """
    views, scale = _followed(View(value, parts), batch, scaled=scaled)
    single = views
    while (before := unrepeated(single[-1], shape_of)) is not None:
        single, _ = _followed(before, batch, scaled=False)
    return Operand(tuple(views), tuple(single), scale)


def _followed(view: View, batch: Group, *, scaled: bool) -> tuple[list[View], float]:
    """The views from one upwards, and the product of the factors on the way."""
    views, scale = [view], 1.0
    _learn_if_any(view, batch)
    while len(views) < _LONGEST:
        following = above(views[-1], shape_of) or _above_if_any(views[-1], batch)
        if following is None and scaled:
            unscaled = _unscaled(views[-1])
            if unscaled is not None:
                following, number = unscaled
                scale *= number
                views = []  # what was read before is another number
        if following is None:
            break
        _learn_if_any(following, batch)
        views.append(following)
    return views, scale


def _learn_if_any(view: View, batch: Group) -> None:
    """Note what sizes are where no axis of the batch is 0: else the block gives nothing, whatever they are."""
    shared = leaves(batch)
    names = [name for one in shared for size in one.sizes if (name := _symbol(size)) is not None]
    forth = {name: symbolic.add(symbolic.symbol(name), 1) for name in names}
    back = {name: symbolic.sub(symbolic.symbol(name), 1) for name in names}
    for one in view.axes:
        for size in () if one in shared else tuple(one.sizes):
            if not isinstance(size, int) and symbolic.symbols(size).intersection(names):
                one.learn(symbolic.substitute(symbolic.substitute(size, forth), back))


def _symbol(size: Dim) -> str | None:
    """The name of a size that is a symbol."""
    names = symbolic.symbols(size)
    return next(iter(names)) if len(names) == 1 and symbolic.equal(size, symbolic.symbol(next(iter(names)))) else None


def _above_if_any(view: View, batch: Group) -> View | None:
    """As `above`, where one size is known only if there is something at all: a Reshape that cannot be followed else.

    With a batch that is not empty, the elements before and after tell the size; with an empty one, nobody reads it.
    """
    node = view.value.producer()
    if node is None or not is_op(node, "Reshape") or node.inputs[0] is None:
        return None
    shape = shape_of(node.inputs[0])
    shared = leaves(batch)
    strange = [one for one in view.axes if not isinstance(one.size, int) and one not in shared]
    others = [one for one in view.axes if one not in strange]
    if shape is None or len(strange) != 1:
        return None
    size = symbolic.quotient_exact(symbolic.product(shape), symbolic.product(one.size for one in others))
    if size is None or symbolic.is_invented(size):
        return None
    strange[0].learn(size)
    return above(view, shape_of)


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
