"""The CPU's kernel for a PRelu takes its elements one by one; products, sums and maxima take many at a time."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import Code, array_of, inputs, need, need_float32
from ortopt.options import Fusions, Numerics, Target, TransformerLevel
from ortopt.patterns.image_sizes import elements_of_an_image
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule

FORM = Form("", "Max", "in place of PRelu")
ANY_SLOPE = Form("", "Min", "in place of PRelu")


class PreluDecomposition(RewriteRule[Match]):
    """``PRelu(x, A)`` → ``Max(x, A · x)`` for constants A of 0 to 1, else ``Relu(x) + A · Min(x, 0)``, on the CPU.

    The bits of the first are the same for every x, also for NaN, infinities and zeros of both signs; those of the
    second but for the signs of zeros. For few elements, several kernels cost more than they save.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("PRelu",)
    opsets = (9, NEWEST_OPSET)
    providers = (CPU,)
    weighs = (FORM, ANY_SLOPE)

    def match(self, root: ir.Node) -> Match:
        """Constant slopes, and enough elements. For a Max slopes are above 0, as 0 times an infinity is NaN."""
        options = scope.of(scope.graph_of(root)).options
        need(options.target is Target.ORT, "other runtimes have other kernels", root)
        need(options.fusions is not Fusions.ALL, "--fusions all keeps what is one op", root, code=Code.COST)
        x, slope = inputs(root, 2)
        need_float32(x)
        content = array_of(slope)
        need(bool(np.isfinite(content).all()), "a slope is not finite", slope)
        image = elements_of_an_image(x)
        if _is_maximum(content):
            check_faster(root, FORM, image=image)
            return Match((root,), lambda: ir.node("Max", [x, ir.node("Mul", [x, slope]).outputs[0]]))
        check_faster(root, ANY_SLOPE, image=image)
        return Match((root,), lambda: _parts(x, slope))

    def numerics_of(self, found: Match) -> Numerics:
        """Whether the signs of zeros may be others."""
        return Numerics.EXACT if _is_maximum(array_of(inputs(found.nodes[0], 2)[1])) else Numerics.REORDERED


def _is_maximum(slopes: np.ndarray) -> bool:
    return bool(((slopes > 0) & (slopes <= 1)).all())


def _parts(x: ir.Value, slope: ir.Value) -> ir.Node:
    """What is above 0, and what is below it, with its slope."""
    below = ir.node("Min", [x, constant(np.array(0, np.float32))])
    return ir.node("Add", [ir.node("Relu", [x]).outputs[0], ir.node("Mul", [below.outputs[0], slope]).outputs[0]])
