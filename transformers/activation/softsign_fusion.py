"""``x / (1 + |x|)`` is one kernel."""

import onnx_ir as ir

from ortopt.graph.match import inputs, is_op, need, only_user, operand_scalar
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule

NOT_SOFTSIGN = "it is not x / (1 + |x|)"


class SoftsignFusion(RewriteRule[Match]):
    """``x / (1 + Abs(x))`` → ``Softsign(x)``; infinities make NaN in both."""

    levels = (TransformerLevel.LEVEL1,)
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
        a, b = inputs(last, 2)
        below = nodes[-1].outputs[0]
        other = a if b is below else b
        need(other is x and (b is below or is_op(last, "Mul")), NOT_SOFTSIGN, last)
        need_single(x)
        y = last.outputs[0]
        return Match((*nodes, last), lambda: {y: ir.node("Softsign", [x]).outputs[0]}, (y,))
