"""``log(1 + eˣ)`` is one op; the CPU's kernel for it is slower than what it replaces."""

import onnx_ir as ir

from ortopt.graph.match import choose, is_op, is_used_once, need, users
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.transformers.activation._softplus import softplus


class SoftplusFusion(RewriteRule[Match]):
    """``Where(x > 20, x, Log(Exp(x) + 1))`` → ``Softplus(x)``; without the guard where x is never large.

    ``Log(Exp(x) + 1)`` without a guard stays as it is: from x = 89 on it is infinite, and a Softplus is not.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding",)
    roots = ("Log",)
    looks_downstream = True
    opsets = (9, NEWEST_OPSET)
    lookback = 5
    fuses = (("", "Softplus"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A form that does not overflow where a Softplus does not."""
        value = root.outputs[0]
        below = [node for node in users(value) if is_op(node, "Add", "Where") and is_used_once(value)]
        last = choose([*below, root])
        spelled = softplus(last)
        need_single(spelled.x)
        need(not spelled.overflows, "exp(x) may overflow, and the result be infinite", spelled.x)
        y = last.outputs[0]
        return Match(spelled.nodes, lambda: {y: ir.node("Softplus", [spelled.x]).outputs[0]}, (y,))
