"""A Where that chooses by a comparison with a number: what it takes above the number, and what below."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from ortopt.graph.match import inputs, is_constant, is_op, producer


class Threshold(NamedTuple):
    """``Where(tested > bound, above, below)``, the comparison in any form.

    Attributes:
        comparison: The comparison; equality may belong to either side.
        tested: What is compared.
        bound: What it is compared with: a constant, if one operand is.
        above: What is taken where it is above the bound.
        below: What is taken elsewhere: where it is NaN, too, if the comparison is written so.
    """

    comparison: ir.Node
    tested: ir.Value
    bound: ir.Value
    above: ir.Value
    below: ir.Value


def threshold(root: ir.Node) -> Threshold:
    """What a Where chooses by which comparison.

    Args:
        root: A Where.

    Raises:
        Refusal: If it chooses by no comparison.
    """
    condition, yes, no = inputs(root, 3)
    comparison = producer(condition, "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    tested, bound = inputs(comparison, 2)
    greater = is_op(comparison, "Greater", "GreaterOrEqual")
    if is_constant(tested):
        tested, bound, greater = bound, tested, not greater
    above, below = (yes, no) if greater else (no, yes)
    return Threshold(comparison, tested, bound, above, below)


__all__ = ["Threshold", "threshold"]
