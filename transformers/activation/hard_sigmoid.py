"""Piecewise linear sigmoids, ``a · x + b`` kept between 0 and 1, and x times one: HardSigmoid and HardSwish.

Spelled out, they are three or four kernels, which take a convolution's result out of its blocked layout; as one op,
each is part of the convolution before it.
"""

from __future__ import annotations

import math

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    choose,
    dtype,
    inputs,
    is_op,
    is_used_once,
    need,
    need_float,
    need_known,
    opset,
    users,
)
from ortopt.options import Numerics
from ortopt.patterns.affine import LARGEST, SMALLEST, Affine, affine_forms, is_near, need_single, scaled_below
from ortopt.patterns.clamp import bounds_of
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.transformers.activation._spelled import other_operand

HARD_SWISH_FROM = 14
MAX_NODES = 4
MAX_SHIFT = 16.0
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

    def node(self) -> ir.Node:
        """Build the HardSigmoid, without the height."""
        return ir.node("HardSigmoid", [self.x], {"alpha": self.alpha, "beta": self.beta})


class Product(Struct, frozen=True):
    """``x · gate · factor`` below a gate: its nodes, which reading of the gate fits, its result and the factor."""

    nodes: tuple[ir.Node, ...]
    gate: Gate
    y: ir.Value
    factor: float


class _GateFusion(RewriteRule[Match]):
    opsets = (6, NEWEST_OPSET)
    looks_downstream = True
    numerics = Numerics.REORDERED


class HardSigmoidFusion(_GateFusion):
    """``Clip(x + 3, 0, 6) / 6`` → ``HardSigmoid<alpha = 1/6, beta = 1/2>(x)``; any ``Clip(a·x + b, 0, c) / c``."""

    after = ("clip_fusion", "constant_folding", "constant_reassociation", "hard_swish_fusion", "relu_clip_fusion")
    roots = ("Clip",)

    def match(self, root: ir.Node) -> Match:
        """A sum or a product above the Clip; the upper bound divides below it, if it is not 1."""
        gate = _gates(root)[-1]
        need(len(gate.nodes) > 1 or gate.height != 1, "nothing scales or shifts what is clamped", root)
        nodes, y = gate.nodes, root.outputs[0]
        if gate.height != 1:
            below = need_known(scaled_below(y), "the upper bound is not 1", root)
            need(is_near(gate.height * below.factor, 1.0, dtype(y)), "the upper bound is not 1", root)
            nodes, y = (*nodes, *below.nodes), below.value
        need_single(gate.x)
        return Match.ending_in(y, nodes, gate.node)


class HardSwishFusion(_GateFusion):
    """``x · Clip(x + 3, 0, 6) / 6`` → ``HardSwish(x)``; another factor than 1/6 stays as a product.

    Before opset 14 it is ``x · HardSigmoid(x)``, which is what ONNX Runtime makes of a HardSwish, too: both become part
    of a convolution before them.
    """

    after = ("clip_fusion", "constant_folding", "constant_reassociation", "relu_clip_fusion")
    roots = ("Clip", "HardSigmoid")

    def match(self, root: ir.Node) -> Match:
        """The product of x with the gate, below; scalars may be multiplied anywhere."""
        product = _product(root.outputs[0], _gates(root))
        gate = product.gate
        kind = dtype(gate.x)
        has_op = (
            opset(root) >= HARD_SWISH_FROM and is_near(gate.alpha * 6, 1.0, kind) and is_near(gate.beta * 2, 1.0, kind)
        )
        need(has_op or len(gate.nodes) > 1, "there is no op for it", root)
        need_single(gate.x)
        factor = product.factor * gate.height
        need(SMALLEST <= abs(factor) <= LARGEST, "the factor is out of range", root)
        factor = 1.0 if is_near(factor, 1.0, kind) else factor
        nodes = (*gate.nodes, *product.nodes)
        return Match.ending_in(product.y, nodes, lambda: _swish(gate, factor, has_op=has_op))


def _swish(gate: Gate, factor: float, *, has_op: bool) -> ir.Node:
    """The activation, and the product with what the factors leave over."""
    x = gate.x
    node = ir.node("HardSwish", [x]) if has_op else ir.node("Mul", [x, gate.node().outputs[0]])
    return node if factor == 1 else ir.node("Mul", [node.outputs[0], constant(factor, dtype(x))])


def _product(value: ir.Value, readings: list[Gate]) -> Product:
    """The product of x with a gate, and with all scalars around it."""
    nodes: list[ir.Node] = []
    factor, gate = 1.0, None
    for _ in range(MAX_NODES):
        below = scaled_below(value)
        if below is not None:
            nodes += below.nodes
            factor, value = factor * below.factor, below.value
            continue
        user = _sole_user(value) if gate is None else None
        if user is None:
            break
        gate, scale, scaling = _x_of(other_operand(user, value), readings)
        nodes += [*scaling, user]
        factor, value = factor * scale, user.outputs[0]
    gate = need_known(gate, "it is not multiplied by what it is computed from", value)
    return Product(tuple(nodes), gate, value, factor)


def _sole_user(value: ir.Value) -> ir.Node | None:
    """The one Mul by another value that uses a value."""
    if not is_used_once(value):
        return None
    (user,) = users(value)
    return user if is_op(user, "Mul") and user.graph is value.graph else None


def _x_of(other: ir.Value, readings: list[Gate]) -> tuple[Gate, float, tuple[ir.Node, ...]]:
    """The reading of the gate whose x is the other factor of the product, perhaps scaled."""
    pairs = [
        (gate, form.factor, form.nodes)
        for form in affine_forms(other)
        for gate in readings
        if form.x is gate.x and form.shift == 0 and math.isfinite(form.factor)
    ]
    need(bool(pairs), "it is not multiplied by what it is computed from", other)
    return choose(pairs)


def _gates(clamp: ir.Node) -> list[Gate]:
    """The ways to read a node as a gate, from the shortest to the longest.

    Args:
        clamp: A Clip or a HardSigmoid.

    Raises:
        Refusal: If it is none.
    """
    (inner,) = inputs(clamp, 1)
    need_float(inner)
    if is_op(clamp, "HardSigmoid"):
        (alpha, beta), height = ops.Activation(clamp).parameters.values(), 1.0
        forms = [Affine((), inner, 1.0, 0.0)]
    else:
        low, height = bounds_of(clamp)
        need(low == 0 and SMALLEST <= height < math.inf, "the bounds are not 0 and a number", clamp)
        alpha, beta = 1 / height, 0.0
        forms = affine_forms(inner)
    found = [
        Gate((clamp, *form.nodes), form.x, alpha * form.factor, beta + alpha * form.shift, height) for form in forms
    ]
    near = [gate for gate in found if abs(gate.beta) <= MAX_SHIFT]
    if not near:
        raise Refusal("the shift is far larger than the range", clamp)
    return near
