"""A sequence that is put together, or cut, only to take one element of it needs not be."""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.graph import facts
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, attribute, dims, inputs, is_op, need, opset, optional, producer, rank
from ortopt.rule import Match, RewriteRule


class SequenceElimination(RewriteRule[Match]):
    """``SequenceAt(SequenceConstruct(a, b), 1)`` → ``b``; of ``SplitToSequence(x)`` → ``Slice(x)``, ``Gather(x)``.

    ``ConcatFromSequence(SequenceConstruct(a, b))`` → ``Concat(a, b)``. Exporters write split and chunk in this way.
    """

    roots = ("ConcatFromSequence", "SequenceAt")
    lookback = 1

    def match(self, root: ir.Node) -> Match:
        """An element of known position, of a sequence whose elements are known."""
        sequence = producer(inputs(root, 1)[0], "SequenceConstruct", "SplitToSequence")
        if is_op(root, "ConcatFromSequence"):
            return _joined(root, sequence)
        position = facts.contents(inputs(root, 2)[1])
        if position is None or len(position) != 1 or not isinstance(position[0], int):
            raise Refusal("the position is not known", root)
        if is_op(sequence, "SplitToSequence"):
            return _part(root, sequence, position[0])
        elements = inputs(sequence, len(sequence.inputs))
        need(-len(elements) <= position[0] < len(elements), "there is no such element", root)
        element = elements[position[0]]
        return Match((root,), lambda: element)


def _joined(root: ir.Node, sequence: ir.Node) -> Match:
    need(is_op(sequence, "SequenceConstruct"), "the parts of a tensor are joined in another order, or axis", root)
    need(attribute(root, "new_axis", 0) == 0, "the elements are stacked", root)
    elements = inputs(sequence, len(sequence.inputs))
    place = ops.Concat(root).axis_of(rank(elements[0]))
    return Match((root,), lambda: ir.node("Concat", elements, {"axis": place}))


def _part(root: ir.Node, split: ir.Node, position: int) -> Match:
    """The part of a tensor at a position of the sequence of all parts."""
    (x,) = inputs(split, 1)
    shape = dims(x)
    place = ops.SplitToSequence(split).axis
    size, sizes = shape[place], optional(split, 1)
    if sizes is None:
        fixed = isinstance(size, int) and -size <= position < size
        need(fixed, "the dimension is not fixed, or has no such part", x)
        assert isinstance(size, int)
        start = position % size
        if not ops.SplitToSequence(split).keeps_axis:
            return Match((root,), lambda: ir.node("Gather", [x, constant(start)], {"axis": place}))
        return _slice(root, x, place, start, start + 1)
    known = facts.contents(sizes)
    numbers = [] if known is None else [number for number in known if isinstance(number, int)]
    need(bool(numbers) and known is not None and len(numbers) == len(known), "the sizes are not known", sizes)
    if rank(sizes) == 0:
        need(ops.SplitToSequence(split).keeps_axis, "parts of size 1 may lose their axis", split)
        numbers = _equal_parts(numbers[0], size, x)
    need(-len(numbers) <= position < len(numbers), "there is no such part", root)
    start = sum(numbers[: position % len(numbers)])
    return _slice(root, x, place, start, start + numbers[position])


def _slice(root: ir.Node, x: ir.Value, place: int, start: int, end: int) -> Match:
    return Match((root,), lambda: ops.slice_node(x, [(place, start, end, 1)], opset(root)))


def _equal_parts(part: int, size: object, x: ir.Value) -> list[int]:
    """The sizes of parts of one size, of which the last may be smaller."""
    need(isinstance(size, int) and part > 0, "the dimension is not fixed", x)
    assert isinstance(size, int)
    return [min(part, size - start) for start in range(0, size, part)]
