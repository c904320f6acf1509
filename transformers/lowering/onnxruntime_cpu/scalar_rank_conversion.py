"""ONNX Runtime's CPU kernels go element by element where a number broadcasts along a last dimension of 1.

They take the dimensions that operands share from the end on as one. A number of no rank, or of a lower one, has a last
dimension of 1 as the other operand does: that is the part they share, and all other elements are taken one at a time.
"""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import array_of, dims, is_constant, is_op, need
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.op_traits import BROADCASTING, BROADCASTING_ONE_WAY

LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")


class ScalarRankConversion(RewriteRule[Match]):
    """``Mul(x[…, n, 1], c)`` → ``Mul(x, c)`` with c of the rank of x, likewise other ops that broadcast."""

    levels = (TransformerLevel.LEVEL3,)
    after = ("constant_folding",)
    roots = tuple(sorted(BROADCASTING | BROADCASTING_ONE_WAY))
    opsets = (7, NEWEST_OPSET)  # before, an attribute said how the second operand broadcasts
    providers = (CPU,)

    def match(self, root: ir.Node) -> Match:
        """A constant of one element beside an operand of a higher rank whose last dimension is 1."""
        operands = [value for value in root.inputs if value is not None]
        shape = max((dims(value) for value in operands), key=len)
        need(shape[-1:] == (1,), "the last dimension is not 1", root)
        need(any(dim != 1 for dim in shape), "there is one element", root)
        producers = [value.producer() for value in operands]
        taken = is_op(root, "Add") and any(node is not None and is_op(node, *LINEAR) for node in producers)
        need(not taken, "it may become the bias of a product", root)
        low = [value for value in operands if len(dims(value)) < len(shape) and _is_number(value)]
        need(bool(low), "no constant of one element has a lower rank", root)
        return Match((root,), lambda: ops.copied(root, [_raised(value, len(shape), low) for value in root.inputs]))


def _is_number(value: ir.Value) -> bool:
    return is_constant(value) and array_of(value).size == 1


def _raised(value: ir.Value | None, rank: int, low: list[ir.Value]) -> ir.Value | None:
    return constant(array_of(value).reshape((1,) * rank)) if value is not None and value in low else value
