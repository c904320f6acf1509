"""Dimensions where there is a batch: a Reshape that infers one beside a batch of 0 leaves it open, and nobody reads it.

``Reshape(x, [heads · batch, -1, size])`` has as many positions as x wherever there is a batch. Where there is none, the
result has no elements, nor has anything that is computed from it for the batch, whatever the dimension is.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt.graph import match, symbolic
from ortopt.graph.match import Dim, is_op
from ortopt.graph.walk import Answers, Question, each, walk

_BROADCASTING = ("Add", "Div", "Max", "Mul", "Sub", "Where")

Dims = tuple[Dim, ...]


class NonemptyBatch:
    """Dimensions of values as they are where a product has a batch.

    Args:
        product: The product: its operands are [batch, …, rows, columns].
    """

    def __init__(self, product: ir.Node) -> None:
        shapes = (match.shape_of(value) for value in (*product.inputs, *product.outputs) if value is not None)
        outer = [symbolic.canonical(dim) for shape in shapes if shape is not None for dim in tuple(shape)[:-2]]
        self._symbols = frozenset(name for dim in outer for name in symbolic.factors(dim))
        self._found: dict[str, Dim] = {}
        self._known: Answers[ir.Value, Dims | None] = Answers()

    def shape_of(self, value: ir.Value) -> Dims | None:
        """The dimensions of a value, or None where even the rank is unknown."""
        own = match.shape_of(value)
        if own is None or not any(map(symbolic.is_invented, own)):
            return own
        return walk(self._settled, value, unknown=None, answers=self._known) or own

    def dims(self, value: ir.Value) -> Dims:
        """The dimensions of a value.

        Raises:
            Refusal: If they are not known.
        """
        return self.shape_of(value) or match.dims(value)

    def resolved(self, dim: Dim) -> Dim:
        """A dimension, of a value that was asked for: what it turned out to be."""
        return dim if isinstance(dim, int) else symbolic.substitute(dim, self._found)

    def _settled(self, value: ir.Value) -> Question[ir.Value, Dims | None]:
        own = match.shape_of(value)
        if own is None or not any(map(symbolic.is_invented, own)):
            return own
        node = value.producer()
        read = [] if node is None else [operand for operand in node.inputs if operand is not None]
        known: list[Dims | None] = yield from each(read)
        operands = [found or match.shape_of(operand) for operand, found in zip(read, known, strict=True)]
        result = own
        if self._found:
            result = tuple(dim if isinstance(dim, int) else symbolic.substitute(dim, self._found) for dim in own)
        if is_op(node, "Reshape"):
            result = _inferred(result, operands[0], self._symbols)
        elif is_op(node, *_BROADCASTING):
            result = _broadcast(result, operands)
        elif is_op(node, "MatMul"):
            rows = [None if operand is None else operand[:-2] for operand in operands]
            result = (*_broadcast(result[:-2], rows), *result[-2:])
        self._note(own, result)
        return result

    def _note(self, own: Dims, result: Dims) -> None:
        """Keep what invented symbols have turned out to be."""
        for before, after in zip(own, result, strict=True):
            if before is after:
                continue
            names = symbolic.symbols(before)
            name = next(iter(names)) if len(names) == 1 else ""
            single = bool(name) and symbolic.is_invented(before) and symbolic.equal(before, symbolic.symbol(name))
            if single and not symbolic.equal(before, after):
                self._found[name] = after


def _broadcast(result: Dims, operands: Sequence[Dims | None]) -> Dims:
    """The result of an elementwise op, where operands have the same size along a dimension, or 1."""
    sizes: list[Dim] = []
    for place, dim in enumerate(result, -len(result)):
        found = [None if own is None else own[place] for own in operands if own is None or len(own) >= -place]
        wide = [one for one in found if one != 1]
        known = symbolic.is_invented(dim) and bool(wide) and all(one is not None for one in wide)
        alike = known and all(one is not None and symbolic.equal(one, wide[0] or 0) for one in wide)
        sizes.append(wide[0] if alike and wide[0] is not None else dim)
    return tuple(sizes)


def _inferred(result: Dims, source: Dims | None, positive: frozenset[str]) -> Dims:
    """The result of a Reshape, of which one dimension is unknown, if the others and the elements tell it."""
    unknown = [place for place, dim in enumerate(result) if symbolic.is_invented(dim)]
    if source is None or len(unknown) != 1:
        return result
    others = symbolic.product(dim for place, dim in enumerate(result) if place != unknown[0])
    if not symbolic.symbols(others) <= positive or not symbolic.is_known(others):
        return result
    if isinstance(others, int) and not others:
        return result
    size = symbolic.quotient_exact(symbolic.product(source), others)
    if size is None or symbolic.is_invented(size):
        return result
    return (*result[: unknown[0]], size, *result[unknown[0] + 1 :])
