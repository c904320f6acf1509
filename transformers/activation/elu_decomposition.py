"""The CPU's kernels for Elu and its kin take few elements at a time; those for Exp and arithmetic, many."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOAT, Code, inputs, is_op, need, need_float32, plain_attributes
from ortopt.options import Fusions, Numerics, Target, TransformerLevel
from ortopt.patterns.clamp import zeros_have_no_sign
from ortopt.patterns.image_sizes import elements_of_an_image
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.transformers.activation._elu import elu

MAXIMUM, SUM = (Form("", "Exp", variant) for variant in ("in place of Elu", "in place of one of two sides"))

DEFAULTS = {
    "Celu": {"alpha": 1.0},
    "Elu": {"alpha": 1.0},
    "Selu": {"alpha": 1.67326319217681884, "gamma": 1.05070102214813232},
}
ROUNDING = 1e-6
"""By how much a product of two numbers of single precision, each the other's reciprocal, may be above 1."""

LARGEST = 2.0**24
"""The largest factor, and one over the least."""


class Found(Struct, frozen=True):
    """``scale · x`` where x is positive, ``low · (exp(rate · x) - 1)`` elsewhere.

    Attributes:
        nodes: The nodes that compute it.
        x: The value that it is computed from.
        y: The result.
        scale: What x is multiplied with where it is positive.
        low: What it falls to.
        rate: What x is multiplied with in the exponent.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    y: ir.Value
    scale: float
    low: float
    rate: float

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result."""
        return (self.y,)

    @property
    def is_maximum(self) -> bool:
        """Whether the exponential lies above x where x is negative."""
        return self.scale == 1 and self.low * self.rate <= 1 + ROUNDING


class EluDecomposition(RewriteRule[Found]):
    """``Elu(x)`` → ``Max(x, a · (Exp(Min(x, 0)) - 1))``, Celu likewise; Selu → the sum of its two sides.

    The tangent at 0 is x, and the exponential is above its tangent: so the maximum is right for a up to 1. With a
    larger one, Relu and the exponential are added up. For few elements, more kernels cost more than they save.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Celu", "Elu", "Selu", "Where")
    opsets = (8, NEWEST_OPSET)  # before, Min and Max did not broadcast
    lookback = 5
    targets = (Target.ORT,)
    weighs = (MAXIMUM, SUM)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """One of them, of enough elements and with positive parameters."""
        options = scope.of(scope.graph_of(root)).options
        need(options.providers[0] == CPU, "other providers have other kernels", root)
        need(options.fusions is not Fusions.ALL, "--fusions all keeps what is one op", root, code=Code.COST)
        found = _spelled(root) if is_op(root, "Where") else _one_op(root)
        need_float32(found.x)
        keeps_signs = is_op(root, "Selu") or zeros_have_no_sign(found.x)  # a Selu of -0.0 is 0.0
        need(keeps_signs, "a zero would have the other sign", found.x)
        numbers = (found.scale, found.low, found.rate)
        need(
            all(1 / LARGEST <= number <= LARGEST for number in numbers),
            "a parameter is not positive, or far from 1",
            root,
        )
        check_faster(root, MAXIMUM if found.is_maximum else SUM, image=elements_of_an_image(found.x))
        return found

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the maximum, or the sum of both sides."""
        x = found.x
        negative = ir.node("Min", [x, constant(0.0, FLOAT)]).outputs[0]
        power = ir.node("Exp", [_scaled(negative, found.rate)]).outputs[0]
        lower = _scaled(ir.node("Sub", [power, constant(1.0, FLOAT)]).outputs[0], found.low)
        if found.is_maximum:
            return {found.y: ir.node("Max", [x, lower]).outputs[0]}
        upper = _scaled(ir.node("Relu", [x]).outputs[0], found.scale)
        return {found.y: ir.node("Add", [upper, lower]).outputs[0]}


def _one_op(root: ir.Node) -> Found:
    """What an Elu, Celu or Selu computes."""
    (x,) = inputs(root, 1)
    attributes = plain_attributes(root)
    given = {
        name: attributes[name].as_float() if name in attributes else default
        for name, default in DEFAULTS[root.op_type].items()
    }
    alpha, gamma = given["alpha"], given.get("gamma", 1.0)
    rate = 1 / alpha if root.op_type == "Celu" and alpha > 0 else 1.0
    return Found((root,), x, root.outputs[0], gamma, gamma * alpha, rate)


def _spelled(root: ir.Node) -> Found:
    """What a Where of a condition, x and an exponential computes."""
    spelled = elu(root)
    return Found(spelled.nodes, spelled.x, spelled.y, 1.0, spelled.alpha, spelled.rate)


def _scaled(value: ir.Value, factor: float) -> ir.Value:
    return value if factor == 1 else ir.node("Mul", [value, constant(factor, FLOAT)]).outputs[0]
