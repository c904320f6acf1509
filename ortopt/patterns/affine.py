"""Scalars that are multiplied and added around an activation: ``a · x + b`` above it, ``c · y`` below it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import (
    DOUBLE,
    EPSILONS,
    FLOATS,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    keeps_rank,
    need,
    tensor_of,
    users,
)

SMALLEST, LARGEST = 2.0**-60, 2.0**60


class Affine(NamedTuple):
    """A value as ``factor · x + shift``.

    Attributes:
        nodes: The nodes that compute it, the last one first.
        x: The value that it is computed from.
        factor: What x is multiplied with.
        shift: What is added to the product.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    factor: float
    shift: float


class Scaled(Struct, frozen=True):
    """``factor · value``, some nodes below a value."""

    nodes: tuple[ir.Node, ...]
    value: ir.Value
    factor: float


def affine_forms(value: ir.Value) -> list[Affine]:
    """The ways to read a value as ``factor · x + shift``, from ``1 · value + 0`` to the longest.

    At most one node multiplies and one adds: two that add with different signs may be there to round x.

    Args:
        value: A value.
    """
    forms = [Affine((), value, 1.0, 0.0)]
    seen: set[bool] = set()
    while True:
        nodes, at, factor, shift = forms[-1]
        node = at.producer()
        if node is None or node.graph is not value.graph or not is_used_once(at):
            return forms
        step = _step(node)
        if step is None or is_op(node, "Add", "Sub") in seen:
            return forms
        seen.add(is_op(node, "Add", "Sub"))
        x, times, plus = step
        factor, shift = factor * times, shift + factor * plus
        if not SMALLEST <= abs(factor) <= LARGEST or not math.isfinite(shift):
            return forms
        forms.append(Affine((*nodes, node), x, factor, shift))


def _step(node: ir.Node) -> tuple[ir.Value, float, float] | None:
    """The operand x of ``times · x + plus``, times and plus; None where a node is not that."""
    if not is_op(node, "Add", "Sub", "Mul", "Div") or len(node.inputs) != 2:
        return None
    a, b = inputs(node, 2)
    number, x = (b, a) if is_constant(b) else (a, b)
    constant = number_beside(number, x)
    if constant is None:
        return None
    match node.op_type:
        case "Add":
            return x, 1.0, constant
        case "Sub":
            return (x, 1.0, -constant) if number is b else (x, -1.0, constant)
        case "Mul":
            return x, constant, 0.0
    return (x, 1.0 / constant, 0.0) if number is b and constant != 0 else None


def number_beside(number: ir.Value, x: ir.Value) -> float | None:
    """The one finite number that a constant is, if it leaves the shape of the value that it is combined with."""
    if not is_constant(number) or is_constant(x) or tensor_of(number).size != 1 or not keeps_rank(number, x):
        return None
    content = float(np.asarray(tensor_of(number).numpy()).reshape(-1)[0])
    return content if math.isfinite(content) else None


def scaled_below(value: ir.Value) -> Scaled | None:
    """The one user of a value, if it multiplies it by a number, or divides it by one."""
    if not is_used_once(value):
        return None
    (user,) = users(value)
    if user.graph is not value.graph or not is_op(user, "Mul", "Div"):
        return None
    a, b = inputs(user, 2)
    number, x = (b, a) if a is value else (a, b)
    factor = number_beside(number, x) if number is not x else None
    if factor is None or factor == 0 or (is_op(user, "Div") and number is not b):
        return None
    return Scaled((user,), user.outputs[0], 1 / factor if is_op(user, "Div") else factor)


def is_near(number: float, expected: float, kind: ir.DataType) -> bool:
    """Whether a number is another one, but for two units in the last place of an element type."""
    return abs(number - expected) <= 2 * EPSILONS.get(kind, 0.0) * abs(expected)


def need_single(x: ir.Value) -> None:
    """Refuse an operand in double precision of an op whose kernels, and attributes, are of single precision.

    Raises:
        Refusal: If it is one, or no float.
    """
    kind = dtype(x)
    need(kind in FLOATS, "it is no float", x)
    need(kind != DOUBLE, "the kernels are for single precision", x)


def check_no_half_of_gelu(value: ir.Value) -> None:
    """Refuse to fold a factor into what follows where it makes a GELU that has no op here of what is scaled.

    Args:
        value: What is scaled.

    Raises:
        Refusal: If it is ``x · (1 + Erf(…))`` or ``x · (1 + Tanh(…))``, of which runtimes recognise all or nothing.
    """
    product = value.producer()
    factors = [factor.producer() for factor in inputs(product, 2)] if is_op(product, "Mul") else []
    sums = [node for node in factors if is_op(node, "Add")]
    found = any(is_op(term.producer(), "Erf", "Tanh") for node in sums for term in inputs(node, 2))
    need(not found, "runtimes recognise GELU by the factor", value)
