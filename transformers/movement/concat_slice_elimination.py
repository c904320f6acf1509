"""A Slice or Split of a Concat may only give back its operands."""

from collections.abc import Mapping

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.facts import contents
from ortopt.graph.match import (
    Dim,
    Refusal,
    attribute,
    dims,
    inputs,
    need,
    opset,
    optional,
    producer,
    rank,
    same_dim,
)
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.semantics.opset_changes import SIZES_ARE_AN_INPUT_FROM


class Found(Struct, frozen=True):
    """The Slice or Split, and the operand that each of its outputs is."""

    nodes: tuple[ir.Node, ...]
    parts: Mapping[ir.Value, ir.Value]


class ConcatSliceElimination(RewriteRule[Found]):
    """``Slice``, ``Split`` of ``Concat(a, b)`` into what was joined → ``a``, ``b``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Slice", "Split")
    opsets = (4, NEWEST_OPSET)  # before, a Concat's axis could be left out
    lookback = 1

    def match(self, root: ir.Node) -> Found:
        """Bounds that are those of operands, also as symbols; the Concat may have other users."""
        (joined,) = inputs(root, 1)
        concat = producer(joined, "Concat")
        place = ops.Concat(concat).axis_of(rank(joined))
        operands = inputs(concat, len(concat.inputs))
        sizes = [dims(operand, rank(joined))[place] for operand in operands]
        if root.op_type == "Slice":
            return Found((root,), {root.outputs[0]: operands[_position(root, place, sizes)]})
        need(ops.Split(root).axis == place, "it is along another axis", root)
        parts = _sizes(root)
        need(len(parts) == len(sizes) == len(root.outputs), "it makes other parts", root)
        need(all(map(same_dim, parts, sizes)), "it makes other parts", root)
        return Found((root,), dict(zip(root.outputs, operands, strict=True)))

    def rewrite(self, found: Found) -> Mapping[ir.Value, ir.Value]:
        """Let users read the operands."""
        return found.parts


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


def _sizes(root: ir.Node) -> tuple[Dim, ...]:
    """The sizes of a Split's parts, where they are given."""
    if opset(root) < SIZES_ARE_AN_INPUT_FROM["Split"]:
        empty: tuple[int, ...] = ()
        return attribute(root, "split", empty)
    split = optional(root, 1)
    known = None if split is None else contents(split)
    if known is None:
        raise Refusal("the sizes of the parts are not known", root)
    return known
