"""To divide by a number costs less than to multiply by its reciprocal."""

import onnx_ir as ir

from ortopt.graph.match import FLOATS, dtype, inputs, keeps_rank, need, operand_from, scalar
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule


class DivMulFusion(RewriteRule[Match]):
    """``(1 / a) * b``, ``Reciprocal(a) * b`` → ``b / a``.

    This is for floats only: for integers, 1 / a is 0 for nearly every a. (ONNX Runtime fuses integers as well.)
    """

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Mul",)
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A division of a constant 1 that does not enlarge the rank, or a Reciprocal."""
        division, above = operand_from(root, "Div", "Reciprocal")
        need(above is not division.outputs[0], "the quotient is multiplied by itself", root)
        if division.op_type == "Reciprocal":
            (below,) = inputs(division, 1)
        else:
            numerator, below = inputs(division, 2)
            need(scalar(numerator) == 1.0, "it does not divide 1", numerator)
            need(keeps_rank(numerator, below), "the 1 would enlarge the rank", numerator)
        need(dtype(below) in FLOATS, "only floats divide without a remainder", below)
        return Match((division, root), lambda: ir.node("Div", [above, below]))
