"""``x / (1 + |x|)`` is one kernel."""

import onnx_ir as ir

from ortopt.graph.match import inputs, is_op, need, only_user, operand_scalar
from ortopt.options import Numerics
from ortopt.patterns.affine import need_single
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.transformers.activation._spelled import other_operand

NOT_SOFTSIGN = "it is not x / (1 + |x|)"


class SoftsignFusion(RewriteRule[Match]):
    """``x / (1 + Abs(x))`` → ``Softsign(x)``; infinities make NaN in both."""

    after = ("constant_folding",)
    roots = ("Abs",)
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A quotient, or a product with the reciprocal."""
        (x,) = inputs(root, 1)
        shifted = only_user(root.outputs[0], "Add")
        operand_scalar(shifted, 1.0)
        nodes = [root, shifted]
        last = only_user(shifted.outputs[0], "Div", "Reciprocal")
        if is_op(last, "Reciprocal"):
            nodes.append(last)
            last = only_user(last.outputs[0], "Mul")
        below = nodes[-1].outputs[0]
        divides = inputs(last, 2)[1] is below or is_op(last, "Mul")
        need(other_operand(last, below) is x and divides, NOT_SOFTSIGN, last)
        need_single(x)
        return Match.ending_in(last.outputs[0], (*nodes, last), lambda: ir.node("Softsign", [x]))
