"""Piecewise linear sigmoids: ``a · x + b``, kept between 0 and 1, or between 0 and a number that scales it."""

from __future__ import annotations

import math

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import Refusal, attribute, inputs, is_op, need, need_float
from ortopt.patterns.affine import SMALLEST, Affine, affine_forms
from ortopt.patterns.clamp import bounds_of

MOST_SHIFT = 16.0
"""A larger shift, in terms of the range, would round away digits of x that an op with another scale keeps."""


class Gate(Struct, frozen=True):
    """``height · min(max(alpha · x + beta, 0), 1)``.

    Attributes:
        nodes: The nodes that compute it, the clamp among them.
        x: The value that it is computed from.
        alpha: The slope.
        beta: The value at 0.
        height: The upper bound.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    alpha: float
    beta: float
    height: float


def gates(clamp: ir.Node) -> list[Gate]:
    """The ways to read a node as a gate, from the shortest to the longest.

    Args:
        clamp: A Clip or a HardSigmoid.

    Raises:
        Refusal: If it is none.
    """
    (inner,) = inputs(clamp, 1)
    need_float(inner)
    if is_op(clamp, "HardSigmoid"):
        alpha, beta, height = attribute(clamp, "alpha", 0.2), attribute(clamp, "beta", 0.5), 1.0
        forms = [Affine((), inner, 1.0, 0.0)]
    else:
        low, height = bounds_of(clamp)
        need(low == 0 and SMALLEST <= height < math.inf, "the bounds are not 0 and a number", clamp)
        alpha, beta = 1 / height, 0.0
        forms = affine_forms(inner)
    found = [
        Gate((clamp, *form.nodes), form.x, alpha * form.factor, beta + alpha * form.shift, height) for form in forms
    ]
    near = [gate for gate in found if abs(gate.beta) <= MOST_SHIFT]
    if not near:
        raise Refusal("the shift is far larger than the range", clamp)
    return near


__all__ = ["Gate", "gates"]
