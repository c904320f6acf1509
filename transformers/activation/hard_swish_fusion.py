"""HardSwish, spelled out, is four kernels that take a convolution's result out of its blocked layout."""

from __future__ import annotations

import math

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, choose, dtype, inputs, is_op, is_used_once, need, opset, users
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import LARGEST, SMALLEST, affine_forms, is_near, need_single, scaled_below
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.transformers.activation._hard_sigmoid import Gate, gates

HARD_SWISH_FROM = 14
MOST_NODES = 4


class Found(Struct, frozen=True):
    """The nodes, the gate of x, the factor that is left over, whether there is an op for the rest, and the result."""

    nodes: tuple[ir.Node, ...]
    gate: Gate
    factor: float
    has_op: bool
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The product, which stands below the root."""
        return (self.y,)


class Product(Struct, frozen=True):
    """``x · gate · factor`` below a gate: its nodes, which reading of the gate fits, its result and the factor."""

    nodes: tuple[ir.Node, ...]
    gate: Gate
    y: ir.Value
    factor: float


class HardSwishFusion(RewriteRule[Found]):
    """``x · Clip(x + 3, 0, 6) / 6`` → ``HardSwish(x)``; another factor than 1/6 stays as a product.

    Before opset 14 it is ``x · HardSigmoid(x)``, which is what ONNX Runtime makes of a HardSwish, too: both become part
    of a convolution before them.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = ("clip_fusion", "constant_folding", "constant_reassociation", "relu_clip_fusion")
    roots = ("Clip", "HardSigmoid")
    opsets = (6, NEWEST_OPSET)
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """The product of x with the gate, below; scalars may be multiplied anywhere."""
        product = _product(root.outputs[0], gates(root))
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
        return Found((*gate.nodes, *product.nodes), gate, factor, has_op, product.y)

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the activation, and the product with what the factors leave over."""
        x = found.gate.x
        if found.has_op:
            node = ir.node("HardSwish", [x])
        else:
            gate = ir.node("HardSigmoid", [x], {"alpha": found.gate.alpha, "beta": found.gate.beta})
            node = ir.node("Mul", [x, gate.outputs[0]])
        if found.factor != 1:
            node = ir.node("Mul", [node.outputs[0], constant(found.factor, dtype(x))])
        return {found.y: node.outputs[0]}


def _product(value: ir.Value, readings: list[Gate]) -> Product:
    """The product of x with a gate, and with all scalars around it."""
    nodes: list[ir.Node] = []
    factor, gate = 1.0, None
    for _ in range(MOST_NODES):
        below = scaled_below(value)
        if below is not None:
            nodes += below.nodes
            factor, value = factor * below.factor, below.value
            continue
        user = _sole_user(value) if gate is None else None
        if user is None:
            break
        a, b = inputs(user, 2)
        gate, scale, scaling = _x_of(b if a is value else a, readings)
        nodes += [*scaling, user]
        factor, value = factor * scale, user.outputs[0]
    if gate is None:
        raise Refusal("it is not multiplied by what it is computed from", value)
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
