"""Sums that begin with 0, as ``score = 0`` and ``score = score + …`` in a program, need no zero."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.match import (
    FLOATS,
    array_of,
    broadcasts_to,
    dims,
    dtype,
    inputs,
    is_constant,
    is_used_once,
    need,
    operand_from,
    tensor_of,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Forwarded, RewriteRule

LARGEST = 1 << 16
"""Larger constants are not read: they are weights."""


class ZeroSummandElimination(RewriteRule[Forwarded]):
    """``(x + 0) + y`` → ``x + y``.

    Only where x and y are -0.0 is the result another zero: `noop_elimination`, which is exact, leaves the 0 there.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = ("constant_folding", "constant_reassociation", "noop_elimination")
    roots = ("Add",)
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Forwarded:
        """A sum of something and 0, that is added to something else."""
        inner, _ = operand_from(root, "Add")
        total = inner.outputs[0]
        need(dtype(total) in FLOATS, "integers are another pass's", root)
        need(is_used_once(total), "the sum with 0 is used elsewhere", total)
        a, b = inputs(inner, 2)
        zero, x = (a, b) if _is_zero(a) else (b, a)
        need(_is_zero(zero), "it is not 0", zero)
        need(broadcasts_to(zero, dims(x)), "the 0 would enlarge the sum", zero)
        return Forwarded((inner, root), x)

    def rewrite(self, found: Forwarded) -> ir.Node:
        """Build the sum without it."""
        inner, root = found.nodes
        return ir.node("Add", [found.value if value is inner.outputs[0] else value for value in root.inputs])


def _is_zero(value: ir.Value) -> bool:
    return is_constant(value) and tensor_of(value).size <= LARGEST and not array_of(value).any()
