"""Concats that join what another Concat or a Split gives, and Slices and Splits of Concats: they copy for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.match import (
    Dim,
    Refusal,
    dims,
    inputs,
    is_op,
    is_used_once,
    need,
    plain_attributes,
    producer,
    rank,
    same_dim,
    shape_of,
)
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule

MAX_OPERANDS = 256
"""More are not joined at once: a chain of thousands would be copied again with each link."""

AXIS_IS_REQUIRED_FROM = 4


class ConcatMerging(RewriteRule[Match]):
    """``Concat(Concat(a, b), c)`` along one axis → ``Concat(a, b, c)``."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL3)
    roots = ("Concat",)
    opsets = (AXIS_IS_REQUIRED_FROM, NEWEST_OPSET)
    lookback = 1

    def match(self, root: ir.Node) -> Match:
        """An operand that is a Concat along the same axis, and that no other node uses."""
        operands: list[ir.Value] = []
        inner: list[ir.Node] = []
        for value in inputs(root, len(root.inputs)):
            node = value.producer()
            if (
                node is None
                or not is_op(node, "Concat")
                or node.graph is not root.graph
                or not is_used_once(value)
                or not ops.Concat(node).is_along(ops.Concat(root), value)
            ):
                operands.append(value)
            else:
                operands.extend(inputs(node, len(node.inputs)))
                inner.append(node)
        need(bool(inner), "no operand is a Concat along this axis for it alone", root)
        need(len(operands) <= MAX_OPERANDS, "there are many operands", root)
        return Match((*inner, root), lambda: ops.copied(root, operands))


class ConcatElimination(RewriteRule[Match]):
    """``Concat(x)``, ``Concat(Split(x))`` → ``x``; operands that are empty along the axis are dropped."""

    after = ("concat_merging",)  # the parts of a Split may be joined in several Concats
    roots = ("Concat",)
    opsets = (AXIS_IS_REQUIRED_FROM, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Match:
        """Fewer operands that give the same."""
        operands = inputs(root, len(root.inputs))
        need(len(operands) > 0, "it has no operands", root)
        plain_attributes(root)
        left = _joined(operands, root)
        left = [value for value in left if not _is_empty(value, root)] or [left[0]]
        need(len(left) == 1 or len(left) < len(operands), "each operand is needed", root)
        return Match((root,), lambda: left[0] if len(left) == 1 else ops.copied(root, left))


def _joined(operands: Sequence[ir.Value], root: ir.Node) -> list[ir.Value]:
    """The operands, where all parts of a Split in their order are replaced by its input."""
    result: list[ir.Value] = []
    position = 0
    while position < len(operands):
        split = operands[position].producer()
        if is_op(split, "Split"):
            parts = split.outputs
            run = operands[position : position + len(parts)]
            whole = len(run) == len(parts) and all(a is b for a, b in zip(run, parts, strict=True))
            source = split.inputs[0]
            if whole and source is not None and ops.Split(split).is_along(ops.Concat(root), source):
                result.append(source)
                position += len(parts)
                continue
        result.append(operands[position])
        position += 1
    return result


def _is_empty(value: ir.Value, root: ir.Node) -> bool:
    """Whether a value adds nothing; one of another rank, which ONNX Runtime takes if it is empty, is left alone."""
    shape, whole = shape_of(value), shape_of(root.outputs[0])
    if shape is None or (whole is not None and len(whole) != len(shape)):
        return False
    return same_dim(shape[ops.Concat(root).axis_of(len(shape))], 0)


class ConcatSliceElimination(RewriteRule[Match]):
    """``Slice``, ``Split`` of ``Concat(a, b)`` into what was joined → ``a``, ``b``."""

    roots = ("Slice", "Split")
    opsets = (AXIS_IS_REQUIRED_FROM, NEWEST_OPSET)
    lookback = 1

    def match(self, root: ir.Node) -> Match:
        """Bounds that are those of operands, also as symbols; the Concat may have other users."""
        (joined,) = inputs(root, 1)
        concat = producer(joined, "Concat")
        place = ops.Concat(concat).axis_of(rank(joined))
        operands = inputs(concat, len(concat.inputs))
        sizes = [dims(operand, rank(joined))[place] for operand in operands]
        if root.op_type == "Slice":
            whole = operands[_position(root, place, sizes)]
            return Match((root,), lambda: whole)
        need(ops.Split(root).axis == place, "it is along another axis", root)
        parts = ops.Split(root).sizes_of(dims(joined)[place])
        need(symbolic.same_shape(parts, sizes), "it makes other parts", root)
        return Match((root,), lambda: dict(zip(root.outputs, operands, strict=True)))


def _position(root: ir.Node, place: int, sizes: list[Dim]) -> int:
    """Which operand a Slice takes."""
    along, start, end = ops.Slice(root).block
    need(along == place, "it is along another axis", root)
    before: Dim = 0
    for position, size in enumerate(sizes):
        after = symbolic.add(before, size)
        if same_dim(start, before) and same_dim(end, after):
            return position
        before = after
    raise Refusal("it takes no operand whole", root)
