"""Mish, spelled out, is three to five ops; the standard has one."""

from typing import NamedTuple

import onnx_ir as ir

from ortopt.graph.match import inputs, need, only_user, producer
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.patterns.softplus import softplus
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(NamedTuple):
    """The nodes, x and the result."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The product, which stands below the root."""
        return (self.y,)


class MishFusion(RewriteRule[Found]):
    """``x · Tanh(Softplus(x))`` → ``Mish(x)``, the softplus in any spelling.

    Where ``Exp(x)`` overflows, the Tanh is 1 in any case.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding", "opset_conversion", "softplus_fusion")
    roots = ("Tanh",)
    opsets = (18, NEWEST_OPSET)
    lookback = 6
    looks_downstream = True
    fuses = (("", "Mish"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """The softplus above the Tanh, and the product with the same x below it."""
        spelled = softplus(producer(inputs(root, 1)[0], "Softplus", "Log", "Where", "Add"))
        need_single(spelled.x)
        product = only_user(root.outputs[0], "Mul")
        a, b = inputs(product, 2)
        other = b if a is root.outputs[0] else a
        need(other is spelled.x, "the product is of something else", product)
        return Found((*spelled.nodes, root, product), spelled.x, product.outputs[0])

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the Mish in place of the product."""
        return {found.y: ir.node("Mish", [found.x]).outputs[0]}
