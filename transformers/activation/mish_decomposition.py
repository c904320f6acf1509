"""The CPU's kernels for Mish and Softplus take elements one by one; those for Exp and arithmetic, many at a time."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOAT, Code, inputs, is_op, need, need_float32
from ortopt.options import Fusions, Numerics, Target, TransformerLevel
from ortopt.patterns.image_sizes import elements_of_an_image
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.transformers.activation._mish import Mish, mish

FORM = Form("", "Exp", "in place of Mish")

LARGEST = 20.0
"""From here on, the Tanh is 1: what is larger would overflow in Exp, sooner or later."""


class MishDecomposition(RewriteRule[Mish]):
    """``x · Tanh(Softplus(x))``, ``Mish(x)`` → ``x · n / (n + 2)`` with ``n = e · (e + 2)``, ``e = Exp(Min(x, 20))``.

    With ``e = Exp(x)``, the Tanh of ``Log(1 + e)`` is ``((1 + e)² - 1) / ((1 + e)² + 1)``; no digits are lost for small
    x. For few elements, more kernels cost more than they save.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Tanh", "Mish")
    opsets = (8, NEWEST_OPSET)  # before, Min did not broadcast
    lookback = 6
    looks_downstream = True
    numerics = Numerics.REORDERED
    targets = (Target.ORT,)
    weighs = (FORM,)

    def match(self, root: ir.Node) -> Mish:
        """A Mish of enough elements, in one op or spelled out."""
        options = scope.of(scope.graph_of(root)).options
        # Where a provider has no kernel of Mish, ONNX Runtime takes it apart when it loads the model: into a Softplus.
        need(options.providers[0] == CPU, "other providers have other kernels", root)
        need(options.fusions is not Fusions.ALL, "--fusions all keeps what is one op", root, code=Code.COST)
        found = Mish((root,), inputs(root, 1)[0], root.outputs[0]) if is_op(root, "Mish") else mish(root)
        need_float32(found.x)
        check_faster(root, FORM, image=elements_of_an_image(found.x))
        return found

    def rewrite(self, found: Mish) -> dict[ir.Value, ir.Value]:
        """Build the arithmetic."""
        x, two = found.x, constant(2.0, FLOAT)
        power = ir.node("Exp", [ir.node("Min", [x, constant(LARGEST, FLOAT)]).outputs[0]]).outputs[0]
        above = ir.node("Mul", [power, ir.node("Add", [power, two]).outputs[0]]).outputs[0]
        tanh = ir.node("Div", [above, ir.node("Add", [above, two]).outputs[0]]).outputs[0]
        return {found.y: ir.node("Mul", [x, tanh]).outputs[0]}
