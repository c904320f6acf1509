"""Masks: numbers that stand for minus infinity, as 16 bits have them.

A mask of -3.4e38 is -inf in float16; where a whole row is masked, Softmax then gives NaN. So such numbers become the
largest ones that can still be added to a score. That concerns constants that are of 16 bits themselves, and those from
which something is computed in float32 that is cast to 16 bits afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import onnx_ir as ir

from ortopt import semantics
from ortopt.half_precision.constants import Fit
from ortopt.half_precision.division import Division
from ortopt.half_precision.units import Use
from ortopt.semantics.op_traits import MOVING

_CARRIES: Final = MOVING | {"Add", "Concat", "ConstantOfShape", "Mul", "Neg", "Pad", "Sub", "Trilu", "Where"}
"""Ops whose results have large numbers where an operand has: masks are made of them."""


def masks_above(values: Iterable[ir.Value], division: Division) -> Iterator[Use | ir.Node]:
    """Where masks are read, or made by a ConstantOfShape, in float32, that arrive in 16 bits.

    Args:
        values: Values of float32 that are cast to 16 bits.
        division: The division.
    """
    pending = [value for value in values if not division.producer[value].is_constant]
    seen: set[ir.Node] = set()
    while pending:
        node = pending.pop().producer()
        if node is None or node in seen or node.domain or node.op_type not in _CARRIES:
            continue
        seen.add(node)
        if node.op_type == "ConstantOfShape":
            yield node
        for at, value in enumerate(node.inputs):
            if value is None or value not in division.producer or division.is_half(value):
                continue
            if semantics.constant_tensor(value) is None:
                pending.append(value)
            elif division.units.magnitudes.fit(value, node) is Fit.MASK:
                yield Use(node, at)


__all__ = ["masks_above"]
