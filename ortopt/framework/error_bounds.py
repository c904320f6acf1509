"""Whether a run takes a form whose error is bounded: where the bound is below rounding, or where it is asked for."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph import scope
from ortopt.graph.match import Refusal

ROUNDING = 2.0**-24
"""The last place of a probability near 1, in single precision."""


def check_bound(root: ir.Node, bound: float, length: int | None) -> None:
    """Refuse a rewrite whose error may be more than rounding, unless the run allows it.

    Args:
        root: The root of the pattern; its graph says what the run allows.
        bound: The proven absolute error of one element, where elements are at most 1.
        length: How many such elements may be summed up; None where nobody knows.

    Raises:
        Refusal: If the error may show.
    """
    if scope.of_node(root).options.bounded_error:
        return
    insisting = "--bounded-error takes it anyway"
    if length is None:
        raise Refusal(f"an element may be off by {bound:.1g}, and how many are summed is not known; {insisting}", root)
    if length * bound > ROUNDING:
        raise Refusal(
            f"{length} elements may be off by {bound:.1g} each, which is more than rounding; {insisting}", root
        )
