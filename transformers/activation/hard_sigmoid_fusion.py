"""A piecewise linear sigmoid is one kernel, and part of the convolution before it."""

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import dtype, need
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import is_near, need_single, scaled_below
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.transformers.activation._hard_sigmoid import Gate, gates


class Found(Struct, frozen=True):
    """The nodes from the scaling of x to that of the clamped value, the parameters and the result."""

    nodes: tuple[ir.Node, ...]
    gate: Gate
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result, which may stand below the root."""
        return (self.y,)


class HardSigmoidFusion(RewriteRule[Found]):
    """``Clip(x + 3, 0, 6) / 6`` → ``HardSigmoid<alpha = 1/6, beta = 1/2>(x)``; any ``Clip(a·x + b, 0, c) / c``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("clip_fusion", "constant_folding", "constant_reassociation", "hard_swish_fusion", "relu_clip_fusion")
    roots = ("Clip",)
    opsets = (6, NEWEST_OPSET)
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
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
        return Found(nodes, gate, y)

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the HardSigmoid in place of the result."""
        attributes = {"alpha": found.gate.alpha, "beta": found.gate.beta}
        return {found.y: ir.node("HardSigmoid", [found.gate.x], attributes).outputs[0]}
