"""A scaled Elu is one kernel."""

from typing import NamedTuple

import onnx_ir as ir

from ortopt.graph.match import FLOATS, attribute, dtype, inputs, is_op, need, producer
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import LARGEST, SMALLEST, need_single, scaled_below
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(NamedTuple):
    """The nodes, x, and the parameters of the Selu."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    alpha: float
    gamma: float


class SeluFusion(RewriteRule[Found]):
    """``g · Elu<alpha = a>(x)`` → ``Selu<alpha = a, gamma = g>(x)``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("constant_folding", "constant_reassociation", "elu_fusion")
    roots = ("Div", "Mul")
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """One number, by which an Elu's result is multiplied or divided."""
        a, b = inputs(root, 2)
        elu = producer(b if is_op(b.producer(), "Elu") else a, "Elu")
        scaled = scaled_below(elu.outputs[0])
        need(scaled is not None, "it is not multiplied by one number", root)
        assert scaled is not None
        (x,) = inputs(elu, 1)
        need(dtype(x) in FLOATS, "it is no float", x)
        need(SMALLEST <= scaled.factor <= LARGEST, "the factor is out of range", root)
        alpha = attribute(elu, "alpha", 1.0)
        need_single(x)
        return Found((elu, root), x, alpha, scaled.factor)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Selu."""
        return ir.node("Selu", [found.x], {"alpha": found.alpha, "gamma": found.gamma})
