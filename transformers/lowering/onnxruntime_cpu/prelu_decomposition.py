"""The CPU's kernel for a PRelu takes its elements one by one; a product and a maximum take many at a time."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph import scope
from ortopt.graph.match import Code, array_of, inputs, need, need_float32
from ortopt.options import Fusions, Target, TransformerLevel
from ortopt.patterns.image_sizes import elements_of_an_image
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule

FORM = Form("", "Max", "in place of PRelu")


class PreluDecomposition(RewriteRule[Match]):
    """``PRelu(x, A)`` → ``Max(x, A · x)`` for constants A between 0 and 1, on the CPU.

    The bits are the same for every x, also for NaN, infinities and zeros of both signs. For few elements, two kernels
    cost more than they save.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("PRelu",)
    opsets = (9, NEWEST_OPSET)
    providers = (CPU,)
    weighs = (FORM,)

    def match(self, root: ir.Node) -> Match:
        """Slopes above 0, as 0 times an infinity is NaN, and up to 1; and enough elements."""
        options = scope.of(scope.graph_of(root)).options
        need(options.target is Target.ORT, "other runtimes have other kernels", root)
        need(options.fusions is not Fusions.ALL, "--fusions all keeps what is one op", root, code=Code.COST)
        x, slope = inputs(root, 2)
        need_float32(x)
        content = array_of(slope)
        need(bool(((content > 0) & (content <= 1)).all()), "a slope is not between 0 and 1", slope)
        check_faster(root, FORM, image=elements_of_an_image(x))
        return Match((root,), lambda: ir.node("Max", [x, ir.node("Mul", [x, slope]).outputs[0]]))
