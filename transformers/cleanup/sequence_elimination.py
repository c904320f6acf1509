"""A sequence that is put together, or cut, only to take one element of it needs not be."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import facts
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, attribute, dims, inputs, is_op, need, optional, producer, rank
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule


class Found(Struct, frozen=True):
    """The node, and what is computed instead: an element, a part of a tensor, or all elements joined.

    Attributes:
        nodes: The node that reads a sequence.
        sources: The element; the tensor that is cut; or the elements that are joined.
        place: The axis that is cut or joined.
        start: The first index of the part, or None where nothing is cut.
        end: The index behind its last one; None where the part has no such axis.
    """

    nodes: tuple[ir.Node, ...]
    sources: tuple[ir.Value, ...]
    place: int = 0
    start: int | None = None
    end: int | None = None


class SequenceElimination(RewriteRule[Found]):
    """``SequenceAt(SequenceConstruct(a, b), 1)`` → ``b``; of ``SplitToSequence(x)`` → ``Slice(x)``, ``Gather(x)``.

    ``ConcatFromSequence(SequenceConstruct(a, b))`` → ``Concat(a, b)``. Exporters write split and chunk in this way.
    """

    levels = (TransformerLevel.LEVEL1,)
    roots = ("ConcatFromSequence", "SequenceAt")
    lookback = 1

    def match(self, root: ir.Node) -> Found:
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
        return Found((root,), (elements[position[0]],))

    def rewrite(self, found: Found) -> ir.Node | ir.Value:
        """Build what takes the part, or joins the elements."""
        if is_op(found.nodes[0], "ConcatFromSequence"):
            return ir.node("Concat", list(found.sources), {"axis": found.place})
        (x,) = found.sources
        if found.start is None:
            return x
        if found.end is None:
            return ir.node("Gather", [x, constant(found.start)], {"axis": found.place})
        return ir.node("Slice", [x, constant([found.start]), constant([found.end]), constant([found.place])])


def _joined(root: ir.Node, sequence: ir.Node) -> Found:
    need(is_op(sequence, "SequenceConstruct"), "the parts of a tensor are joined in another order, or axis", root)
    need(attribute(root, "new_axis", 0) == 0, "the elements are stacked", root)
    elements = inputs(sequence, len(sequence.inputs))
    return Found((root,), elements, ops.Concat(root).axis_of(rank(elements[0])))


def _part(root: ir.Node, split: ir.Node, position: int) -> Found:
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
        return Found((root,), (x,), place, start, start + 1 if ops.SplitToSequence(split).keeps_axis else None)
    known = facts.contents(sizes)
    numbers = [] if known is None else [number for number in known if isinstance(number, int)]
    need(bool(numbers) and known is not None and len(numbers) == len(known), "the sizes are not known", sizes)
    if rank(sizes) == 0:
        need(ops.SplitToSequence(split).keeps_axis, "parts of size 1 may lose their axis", split)
        numbers = _equal_parts(numbers[0], size, x)
    need(-len(numbers) <= position < len(numbers), "there is no such part", root)
    start = sum(numbers[: position % len(numbers)])
    return Found((root,), (x,), place, start, start + numbers[position])


def _equal_parts(part: int, size: object, x: ir.Value) -> list[int]:
    """The sizes of parts of one size, of which the last may be smaller."""
    need(isinstance(size, int) and part > 0, "the dimension is not fixed", x)
    assert isinstance(size, int)
    return [min(part, size - start) for start in range(0, size, part)]
