"""How far a value that disappears may be from one that stays: what overflows there, or vanishes, would come back.

``x * 1e30 * 1e-30`` is infinite for x = 1e9, and ``x * 1`` is not. Magnitudes are measured on constants, for an x of
magnitude 1: what is within a factor of a value that stays overflows only where that one is within this factor of
the limits of its type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortopt.graph import scope
from ortopt.graph.match import FLOAT16, need

Magnitudes = np.ndarray[Any, Any]

WIDE, NARROW = 2.0**24, 2.0**4

MIN_HALF = 2.0**-14
"""The smallest number of full precision in float16."""


def furthest(kind: ir.DataType) -> float:
    """The factor that may lie between a value that disappears and one that stays: 2^24, in float16 2^4."""
    return NARROW if kind == FLOAT16 else WIDE


def need_digits(weights: Magnitudes, before: Magnitudes, kind: ir.DataType, about: ir.Node) -> None:
    """Refuse where folded weights would vanish in float16, in which they are or will be: a scale of its own would not.

    Args:
        weights: The folded weights.
        before: The weights before.
        kind: Their element type.
        about: The node that reads them.

    Raises:
        Refusal: If they would.
    """
    graph = about.graph
    is_half = kind == FLOAT16 or (isinstance(graph, ir.Graph) and scope.of(graph).options.float16)
    if is_half:
        largest, was = (float(np.abs(array).max(initial=0.0)) for array in (weights, before))
        vanishes = 0 < largest < MIN_HALF <= was
        need(not vanishes, "the weights would vanish in float16", about)


def need_near(
    disappears: Magnitudes | float, stays: Iterable[Magnitudes | float], kind: ir.DataType, *about: object
) -> None:
    """Refuse where a value that disappears may overflow, or vanish, long before those that stay.

    Args:
        disappears: Magnitudes of the value; 0 is near everything.
        stays: Magnitudes of values that stay, which broadcast with it; one of them must be near, element by element.
        kind: The element type.
        about: The values or nodes that it is about.

    Raises:
        Refusal: If one is not.
    """
    near = _are_near(disappears, stays, furthest(kind))
    need(bool(near.all()), _reason("larger or smaller", kind), *about)


def need_no_larger(
    disappears: Magnitudes,
    stays: Iterable[Magnitudes | float | Callable[[], Magnitudes]],
    kind: ir.DataType,
    *about: object,
) -> None:
    """Refuse where a summand that disappears may overflow long before all values that stay.

    Args:
        disappears: Magnitudes of the summand.
        stays: Magnitudes of values that stay; what costs something is asked for only where it matters.
        kind: The element type.
        about: The values or nodes that it is about.

    Raises:
        Refusal: If one is larger.
    """
    fine = np.zeros(disappears.shape, bool)
    for one in stays:
        if fine.all():
            break
        fine = fine | (disappears <= furthest(kind) * np.abs(one() if callable(one) else one))
    need(bool(fine.all()), _reason("larger", kind), *about)


def need_scaled_near(gain: Callable[[], Magnitudes], scale: Magnitudes, kind: ir.DataType, *about: object) -> None:
    """Refuse where the scale of a layer's result can not be in its weights.

    The result before the scaling disappears; what goes into the layer stays, and the scaled result.

    Args:
        gain: The magnitudes of the layer's results for inputs of magnitude 1; asked for only where it matters.
        scale: What they are scaled with.
        kind: The element type.
        about: The values or nodes that it is about.

    Raises:
        Refusal: If neither is near.
    """
    if not _are_near(1.0, (scale,), furthest(kind)).all():
        before = gain()
        need_near(before, (1.0, before * np.abs(scale)), kind, *about)


def _are_near(disappears: Magnitudes | float, stays: Iterable[Magnitudes | float], factor: float) -> Magnitudes:
    before = np.abs(np.asarray(disappears, np.float64))
    near: Magnitudes = before == 0
    for one in stays:
        after = np.abs(np.asarray(one, np.float64))
        near = near | ((before <= factor * after) & (after <= factor * before))
    return near


def _reason(how: str, kind: ir.DataType) -> str:
    return f"a value that disappears may be more than 2^{int(math.log2(furthest(kind)))} times {how} than all that stay"
