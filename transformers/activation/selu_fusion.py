"""A scaled Elu is one kernel."""

import onnx_ir as ir

from ortopt.graph.match import attribute, inputs, need, need_float
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import LARGEST, SMALLEST, need_single, scaled_below
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule


class SeluFusion(RewriteRule[Match]):
    """``g · Elu<alpha = a>(x)`` → ``Selu<alpha = a, gamma = g>(x)``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("constant_folding", "constant_reassociation", "elu_fusion")
    roots = ("Elu",)
    looks_downstream = True
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """One number, by which an Elu's result is multiplied or divided."""
        scaled = scaled_below(root.outputs[0])
        need(scaled is not None, "it is not multiplied by one number", root)
        assert scaled is not None
        (x,) = inputs(root, 1)
        need_float(x)
        need(SMALLEST <= scaled.factor <= LARGEST, "the factor is out of range", root)
        alpha = attribute(root, "alpha", 1.0)
        need_single(x)
        attributes = {"alpha": alpha, "gamma": scaled.factor}
        y = scaled.value
        return Match((root, *scaled.nodes), lambda: {y: ir.node("Selu", [x], attributes).outputs[0]}, (y,))
