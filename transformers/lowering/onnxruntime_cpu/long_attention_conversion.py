"""Over long sequences ONNX Runtime's MultiHeadAttention never holds all scores: it works block by block, in cache."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.match import Dim, attribute, dims, inputs, need, need_float32, same_dim
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT

INSTEAD = Form(MICROSOFT, "MultiHeadAttention", "instead of Attention")
QKV = 3


class LongAttentionConversion(RewriteRule[Match]):
    """``Attention(q, k, v)`` without a mask, over a long sequence → ``com.microsoft.MultiHeadAttention(q, k, v)``.

    Its kernel computes the softmax as it goes where nothing is added to the scores: faster over a long
    sequence, and slower than Attention's over short sequences.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Attention",)
    opsets = (23, NEWEST_OPSET)
    providers = (CPU,)
    targets = (Target.ORT,)
    produces = ((MICROSOFT, "MultiHeadAttention"),)
    weighs = (INSTEAD,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Queries, keys and values of one length, with heads side by side, and nothing else."""
        operands = inputs(root, QKV)
        need(all(value is None for value in root.inputs[QKV:]), "it has a mask, or a past", root)
        need(
            not any(output.uses() or output.is_graph_output() for output in root.outputs[1:]),
            "more is asked of it",
            root,
        )
        for name in ("is_causal", "softcap", "qk_matmul_output_mode", "softmax_precision"):
            need(not attribute(root, name, 0), f"MultiHeadAttention has no {name}", root)
        heads = attribute(root, "q_num_heads", 0)
        need(heads > 0, "heads come first", root)
        need(heads == attribute(root, "kv_num_heads", 0), "query heads share keys", root)
        scale = attribute(root, "scale", None)
        need(scale is None or scale > 0, "MultiHeadAttention takes such a scale for none", root)
        for value in operands:
            need_float32(value)
        check_faster(root, INSTEAD, length=_length(operands, root))
        attributes = {"num_heads": heads} | ({} if scale is None else {"scale": scale})
        return Match((root,), lambda: ir.node("MultiHeadAttention", operands, attributes, domain=MICROSOFT))


def _length(operands: tuple[ir.Value, ...], root: ir.Node) -> Dim:
    """How many positions there are."""
    shapes = [dims(value, 3) for value in operands]
    for axis, what in ((1, "lengths"), (2, "sizes")):
        first, *others = (shape[axis] for shape in shapes)
        need(all(same_dim(first, other) for other in others), f"the {what} are not known to be equal", root)
    return shapes[0][1]
