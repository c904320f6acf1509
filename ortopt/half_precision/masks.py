"""Masks: numbers that stand for minus infinity, as 16 bits have them.

A mask of -3.4e38 is -inf in float16; where a whole row is masked, Softmax then gives NaN. So such numbers become the
largest ones that can still be added to a score. That concerns constants that are of 16 bits themselves, and those from
which something is computed in float32 that is cast to 16 bits afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.graph import scope
from ortopt.half_precision.constants import Fit, Magnitudes
from ortopt.half_precision.division import Division
from ortopt.half_precision.units import Use
from ortopt.semantics.op_traits import MOVING

_FEW: Final = 1 << 16

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


def masked_values(model: ir.Model, magnitudes: Magnitudes) -> frozenset[ir.Value]:
    """The values that are large in float32 because a mask is in them: in 16 bits the mask is smaller, and they fit.

    Args:
        model: The model in float32.
        magnitudes: The magnitudes of its constants.
    """
    found: set[ir.Value] = set()
    for graph in scope.graphs(model):
        for node in graph:
            if node.domain or node.op_type not in _CARRIES:
                continue
            fill = node.attributes.get("value") if node.op_type == "ConstantOfShape" else None
            is_filled = fill is not None and not fill.is_ref() and magnitudes.fit_of(fill.as_tensor()) is Fit.MASK
            operands = [value for value in node.inputs if value is not None]
            if is_filled or any(
                value in found or magnitudes.fit(value, node) is Fit.MASK or _is_infinite(value) for value in operands
            ):
                found.update(node.outputs)
    return frozenset(found)


def _is_infinite(value: ir.Value) -> bool:
    """Whether a value is a constant with infinities: in 16 bits they are the same."""
    tensor = semantics.constant_tensor(value)
    is_small = tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.size <= _FEW
    return tensor is not None and is_small and bool(np.isinf(tensor.numpy()).any())


__all__ = ["masked_values", "masks_above"]
