"""GELU in its tanh form is a polynomial and three more kernels; there is one kernel for it."""

import math

import onnx_ir as ir

from ortopt.graph.constants import EPSILONS
from ortopt.graph.match import DOUBLE, FLOAT16, dtype, inputs, need, opset
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.activation._gelu import activation, half_of_one_plus, polynomial

LINEAR = math.sqrt(2 / math.pi)
COEFFICIENTS = {1: LINEAR, 3: LINEAR * 0.044715}
FEW_DIGITS = 1e-5
"""What people write for the coefficients, as a relative error: 0.79788. ONNX Runtime's own tolerance."""

WITHIN = {DOUBLE: 1e-12, FLOAT16: 2 * EPSILONS[FLOAT16]}
"""What is allowed in other types: of halves, the product of two coefficients is off by as much as both together."""


class FastGeluFusion(RewriteRule[Match]):
    """``x · ½ · (1 + Tanh(√(2/π) · (x + 0.044715 · x³)))`` → ``Gelu<approximate="tanh">(x)`` or ``FastGelu(x)``.

    Level 1 emits the standard op where the opset has it, level 2 ONNX Runtime's own elsewhere.
    """

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2)
    after = ("constant_folding",)
    roots = ("Tanh",)
    lookback = 7
    looks_downstream = True
    produces = ((MICROSOFT, "FastGelu"),)
    fuses = (("", "Gelu"), *produces)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """The product below the Tanh has x as a factor; the argument of the Tanh is a polynomial of x, in any form."""
        below: list[ir.Node] = []
        x, y = half_of_one_plus(root, None, below)
        above: list[ir.Node] = []
        coefficients = polynomial(inputs(root, 1)[0], x, above)
        within = WITHIN.get(dtype(x), FEW_DIGITS)
        fitting = all(
            math.isclose(coefficients.get(degree, 0.0), COEFFICIENTS.get(degree, 0.0), rel_tol=within)
            for degree in coefficients.keys() | COEFFICIENTS.keys()
        )
        need(fitting, "the argument of Tanh is not √(2/π) · (x + 0.044715 · x³)", root)
        nodes = tuple(dict.fromkeys((*above, root, *below)))
        if opset(root) >= 20:
            return Match(nodes, lambda: {y: activation(nodes[-1], x, "Gelu", approximate="tanh")}, (y,))
        return Match(nodes, lambda: {y: activation(nodes[-1], x, "FastGelu", MICROSOFT)}, (y,))
