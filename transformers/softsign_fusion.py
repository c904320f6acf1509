"""``x / (1 + |x|)`` is one kernel."""

import onnx_ir as ir

from ortopt.graph.match import choose, inputs, is_op, need, operand_scalar, producer
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.rule import NEWEST_OPSET, Forwarded, RewriteRule

NOT_SOFTSIGN = "it is not x / (1 + |x|)"


class SoftsignFusion(RewriteRule[Forwarded]):
    """``x / (1 + Abs(x))`` → ``Softsign(x)``; infinities make NaN in both."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("constant_folding",)
    roots = ("Div", "Mul")
    opsets = (7, NEWEST_OPSET)
    lookback = 4
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Forwarded:
        """A quotient, or a product with the reciprocal."""
        a, b = inputs(root, 2)
        nodes = [root]
        x, total = (a, b) if is_op(root, "Div") else choose([(a, b), (b, a)])
        if is_op(root, "Mul"):
            inverse = producer(total, "Reciprocal")
            nodes.append(inverse)
            (total,) = inputs(inverse, 1)
        shifted = producer(total, "Add")
        magnitude = producer(operand_scalar(shifted, 1.0), "Abs")
        need(inputs(magnitude, 1)[0] is x, NOT_SOFTSIGN, root)
        need_single(x)
        return Forwarded((*nodes, shifted, magnitude), x)

    def rewrite(self, found: Forwarded) -> ir.Node:
        """Build the Softsign."""
        return ir.node("Softsign", [found.value])
