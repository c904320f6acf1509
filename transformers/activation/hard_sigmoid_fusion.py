"""A piecewise linear sigmoid is one kernel, and part of the convolution before it."""

import onnx_ir as ir

from ortopt.graph.match import dtype, need
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import is_near, need_single, scaled_below
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.transformers.activation._hard_sigmoid import gates


class HardSigmoidFusion(RewriteRule[Match]):
    """``Clip(x + 3, 0, 6) / 6`` → ``HardSigmoid<alpha = 1/6, beta = 1/2>(x)``; any ``Clip(a·x + b, 0, c) / c``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("clip_fusion", "constant_folding", "constant_reassociation", "hard_swish_fusion", "relu_clip_fusion")
    roots = ("Clip",)
    opsets = (6, NEWEST_OPSET)
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A sum or a product above the Clip; the upper bound divides below it, if it is not 1."""
        gate = gates(root)[-1]
        need(len(gate.nodes) > 1 or gate.height != 1, "nothing scales or shifts what is clamped", root)
        nodes, y = gate.nodes, root.outputs[0]
        if gate.height != 1:
            below = scaled_below(y)
            need(below is not None, "the upper bound is not 1", root)
            assert below is not None
            need(is_near(gate.height * below.factor, 1.0, dtype(y)), "the upper bound is not 1", root)
            nodes, y = (*nodes, *below.nodes), below.value
        need_single(gate.x)
        attributes = {"alpha": gate.alpha, "beta": gate.beta}
        return Match(nodes, lambda: {y: ir.node("HardSigmoid", [gate.x], attributes).outputs[0]}, (y,))
