"""ONNX Runtime joins a bias with the Gelu behind it when it loads a model, which is slower on one kind of processor.

Its kernel of BiasGelu takes longer than Add and Gelu on a Xeon, and as long on an EPYC. It knows the bias by its Add
alone: a Sum computes the same, at the same speed.
"""

from __future__ import annotations

import onnx_ir as ir

from ortopt.analysis.kernels import CPU
from ortopt.graph.match import (
    dims,
    is_op,
    need,
    need_float32,
    need_present,
    only_user,
    operand_constant,
    rank,
)
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT


class BiasSumConversion(RewriteRule[Match]):
    """``Gelu(Add(x, bias))`` → ``Gelu(Sum(x, bias))``, which ONNX Runtime does not join."""

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Add",)
    opsets = (8, NEWEST_OPSET)  # before, Sum did not broadcast
    looks_downstream = True
    providers = (CPU,)
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Match:
        """A bias, before a Gelu that nothing else shares it with."""
        total = root.outputs[0]
        user = only_user(total)
        need_present(is_op(user, "Gelu") or is_op(user, "Gelu", domain=MICROSOFT), "no Gelu comes after", user)
        bias, x = operand_constant(root)
        need_float32(total)
        need(rank(x) > 1 and dims(bias) == dims(x)[-1:], "it is no bias of the last dimension", bias)
        return Match((root,), lambda: ir.node("Sum", [x, bias]))
