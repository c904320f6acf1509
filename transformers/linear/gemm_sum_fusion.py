"""Gemm adds a matrix to its product for nothing."""

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import broadcasts_to, dims, inputs, need, operand_from, optional, plain_attributes, same_type
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """The nodes that are replaced, the Gemm first, and the other summand."""

    nodes: tuple[ir.Node, ...]
    c: ir.Value


class GemmSumFusion(RewriteRule[Found]):
    """``Sum(Gemm(a, b), c)`` or ``Add`` → ``Gemm(a, b, c)``."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Add", "Sum")
    needs = ("Gemm",)
    opsets = (8, NEWEST_OPSET)  # before, Sum did not broadcast
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A Gemm without a C, and one other summand that broadcasts to its product."""
        need(len(root.inputs) == 2, "there are not two summands", root)
        gemm, c = operand_from(root, "Gemm")
        need(optional(gemm, 2) is None, "the Gemm has a C", gemm)
        product = gemm.outputs[0]
        need(c is not product, "the product is added to itself", gemm)
        need(same_type(c, product), "the types differ", c)
        need(broadcasts_to(c, dims(product, rank=2)), "Gemm broadcasts C one way only", c)
        plain_attributes(gemm)
        return Found((gemm, root), c)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Gemm; the old beta scaled nothing."""
        gemm = found.nodes[0]
        return ops.copied(gemm, [*inputs(gemm, 2), found.c], beta=None)
