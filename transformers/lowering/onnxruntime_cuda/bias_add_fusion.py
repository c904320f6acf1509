"""A bias and a residual are added in one pass over memory."""

import onnx_ir as ir

from ortopt.analysis.kernels import CUDA
from ortopt.graph.match import (
    choose,
    dims,
    inputs,
    is_never_zero,
    is_vector_of,
    need,
    need_present,
    operand_from,
    same_dim,
    same_type,
    users,
)
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT

NORMALIZATIONS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")


class BiasAddFusion(RewriteRule[Match]):
    """``(x + bias) + residual`` → ``com.microsoft.BiasAdd(x, bias, residual)``."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("attention_fusion", "bias_gelu_fusion", "skip_layer_norm_fusion", "skip_rms_norm_fusion")
    roots = ("Add",)
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
    looks_downstream = True
    providers = (CUDA,)
    produces = ((MICROSOFT, "BiasAdd"),)

    def match(self, root: ir.Node) -> Match:
        """Three dimensions; a bias for the last one; and a residual of the same shape."""
        inner, skip = operand_from(root, "Add")
        a, b = inputs(inner, 2)
        x, bias = choose([(a, b), (b, a)])
        shape, other = dims(x), dims(skip)
        need_present(len(shape) == 3, "the rank is not 3", x)
        need(is_vector_of(bias, shape[-1]), "it is no bias of the last dimension", bias)
        need(len(other) == 3 and all(map(same_dim, shape, other)), "the residual has another shape", skip)
        need(same_type(x, skip) and same_type(x, bias), "the types differ", skip)
        need(all(is_never_zero(dim, root) for dim in shape), "a dimension may be 0", x)
        normalized = any(user.op_type in NORMALIZATIONS for user in users(root.outputs[0]))
        need(not normalized, "the normalization behind it takes all three", root)
        return Match((inner, root), lambda: ir.node("BiasAdd", [x, bias, skip], domain=MICROSOFT))
