"""ONNX Runtime joins a residual Add with the normalization behind it when it loads a model, which is slower.

On the CPU its kernel of SkipLayerNormalization takes longer than Add and LayerNormalization, which are
vectorized. It knows the residual connection by its Add alone: a Sum computes the same, at the same speed. Halves
it converts to single precision at load, and joins then.
"""

from __future__ import annotations

import onnx_ir as ir

from ortopt.analysis.kernels import CPU
from ortopt.graph.match import FLOAT, FLOAT16, dims, dtype, inputs, need, only_user, same_dim
from ortopt.options import Target, TransformerLevel
from ortopt.rule import Match, RewriteRule


class ResidualSumConversion(RewriteRule[Match]):
    """``LayerNormalization(Add(x, skip))`` → ``LayerNormalization(Sum(x, skip))``, in three dimensions.

    This is done only if ONNX Runtime would join the two: the shapes are equal, and nothing else uses the sum.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Add",)
    looks_downstream = True
    providers = (CPU,)
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Match:
        """A sum that ONNX Runtime would take for a residual connection."""
        total = root.outputs[0]
        terms = inputs(root, 2)
        normalization = only_user(total, "LayerNormalization")
        need(normalization.inputs[0] is total, "it is a parameter of the normalization", root)
        need(dtype(total) in (FLOAT, FLOAT16), "ONNX Runtime joins no others", root)
        shapes = [dims(term, 3) for term in terms]
        need(all(map(same_dim, *shapes)), "its operands differ in shape", root)
        return Match((root,), lambda: ir.node("Sum", list(terms)))
