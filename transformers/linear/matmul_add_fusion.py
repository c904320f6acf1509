"""One Gemm kernel costs less than a MatMul kernel and an Add kernel."""

import onnx_ir as ir

from ortopt.graph.match import FLOATS, broadcasts_to, dims, inputs, is_op, need, operand_from, opset
from ortopt.options import Numerics
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule

SUM_BROADCASTS_FROM = 8


class MatMulAddFusion(RewriteRule[Match]):
    """``Add(MatMul(a, b), c)`` → ``Gemm(a, b, c)``, also of a ``Sum``."""

    after = ("constant_folding",)
    roots = ("Add", "Sum")
    opsets = (7, NEWEST_OPSET)  # before, Gemm and Add broadcast by attributes
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Two matrices of floats, and a C that broadcasts to their product."""
        need(len(root.inputs) == 2, "there are not two summands", root)
        need(is_op(root, "Add") or opset(root) >= SUM_BROADCASTS_FROM, "the opset's Sum does not broadcast", root)
        matmul, c = operand_from(root, "MatMul")
        a, b = inputs(matmul, 2)
        need(a.dtype in FLOATS, "only float Gemm kernels are fast", a)
        rows, _ = dims(a, rank=2)
        _, columns = dims(b, rank=2)
        need(broadcasts_to(c, (rows, columns)), "Gemm broadcasts C one way only", c)
        return Match((matmul, root), lambda: ir.node("Gemm", [a, b, c]))
