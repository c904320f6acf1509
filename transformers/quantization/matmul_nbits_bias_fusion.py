"""The kernel that multiplies by a weight of few bits can add a bias as well."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import Refusal, need, optional, plain_attributes
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.quantization._integer_products import bias_behind

BIAS = 5


class Found(Struct, frozen=True):
    """The product, what adds the bias, and the bias."""

    nodes: tuple[ir.Node, ir.Node]
    bias: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The sum, which stands below the root."""
        return (self.nodes[-1].outputs[0],)


class MatmulNbitsBiasFusion(RewriteRule[Found]):
    """``com.microsoft.MatMulNBits(x, w) + c`` → ``com.microsoft.MatMulNBits(x, w, c)``."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("matmul_nbits_fusion",)
    roots = (f"{MICROSOFT}::MatMulNBits",)
    looks_downstream = True
    numerics = Numerics.REORDERED
    targets = (Target.ORT,)
    produces = ((MICROSOFT, "MatMulNBits"),)

    def match(self, root: ir.Node) -> Found:
        """A number for each column, added by the one user."""
        attributes = plain_attributes(root)
        need(optional(root, BIAS) is None, "it has a bias", root)
        addition, bias = bias_behind(root.outputs[0], attributes["N"].as_int())
        if addition is None or bias is None:
            raise Refusal("nothing adds a number for each column that is there before", root)
        return Found((root, addition), bias)

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the product with the bias."""
        root, addition = found.nodes
        operands = [optional(root, index) for index in range(BIAS)]
        node = ops.copied(root, [*operands, found.bias])
        return {addition.outputs[0]: node.outputs[0]}
