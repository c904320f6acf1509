"""A Slice or Split of a Concat may only give back its operands."""

import onnx_ir as ir

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.match import (
    Dim,
    Refusal,
    dims,
    inputs,
    need,
    producer,
    rank,
    same_dim,
)
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule


class ConcatSliceElimination(RewriteRule[Match]):
    """``Slice``, ``Split`` of ``Concat(a, b)`` into what was joined → ``a``, ``b``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Slice", "Split")
    opsets = (4, NEWEST_OPSET)  # before, a Concat's axis could be left out
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
