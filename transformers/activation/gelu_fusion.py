"""GELU as PyTorch's exporters spell it takes five kernels and five passes over memory; one kernel does it."""

import math

import onnx_ir as ir

from ortopt.graph.match import DOUBLE, dtype, inputs, is_op, is_scalar, keeps_rank, need, opset, producer
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.activation._gelu import activation, half_of_one_plus

FEW_DIGITS = 1e-5
"""What people write for √2, as a relative error: 1.41421, 0.7071. ONNX Runtime's own tolerance."""


class GeluFusion(RewriteRule[Match]):
    """``x · ½ · (1 + Erf(x / √2))`` → ``Gelu(x)``.

    Level 1 emits the standard op where the opset has it, level 2 ONNX Runtime's own elsewhere.
    """

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2)
    after = ("constant_folding",)
    roots = ("Erf",)
    looks_downstream = True
    produces = ((MICROSOFT, "Gelu"),)
    fuses = (("", "Gelu"), *produces)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A division by √2 above the Erf and the product below it; ½ may be anywhere in the product."""
        scaling, x = _argument(root)
        nodes = [scaling, root]
        _, y = half_of_one_plus(root, x, nodes)
        domain = "" if opset(root) >= 20 else MICROSOFT
        nodes = list(dict.fromkeys(nodes))
        return Match(tuple(nodes), lambda: {y: activation(nodes[-1], x, "Gelu", domain)}, (y,))


def _argument(erf: ir.Node) -> tuple[ir.Node, ir.Value]:
    """The node that divides by √2, and what it divides."""
    (argument,) = inputs(erf, 1)
    scaling = producer(argument, "Div", "Mul")
    a, b = inputs(scaling, 2)
    within = 0.0 if dtype(argument) == DOUBLE else FEW_DIGITS
    if is_op(scaling, "Div"):
        pairs = [(b, a)] if is_scalar(b, math.sqrt(2), within) else []
    else:
        pairs = [pair for pair in ((b, a), (a, b)) if is_scalar(pair[0], math.sqrt(0.5), within)]
    need(bool(pairs), "the argument of Erf is not x / √2", scaling)
    number, x = pairs[0]
    need(keeps_rank(number, x), "the constant would raise the rank", number)
    return scaling, x
