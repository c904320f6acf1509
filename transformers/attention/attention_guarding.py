"""MultiHeadAttention of no sequence, or of no query, ends the process on some releases: an If asks before."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.analysis.kernels import CPU
from ortopt.framework.placement import provider_of
from ortopt.graph import scope
from ortopt.graph.match import attribute, dims, inputs, is_never_zero, need, need_fixed, plain_attributes
from ortopt.graph.provenance import record_of
from ortopt.options import TransformerLevel
from ortopt.patterns.attention.emptiness import Sizes, expects_none, guarded
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT


class AttentionGuarding(RewriteRule[Match]):
    """``com.microsoft.MultiHeadAttention(q, …)`` → ``If(Size(q) > 0, MultiHeadAttention(q, …), nothing)``.

    Only for releases whose kernel does not expect to be given nothing (`ortopt.analysis.kernel_history`), and only
    where another pass has made the op: what it stands for gives a result without elements there. Last, as no other
    pass looks into the If for an attention.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("attention_fusion", "packed_attention_fusion", "query_selection_reordering")
    roots = (f"{MICROSOFT}::MultiHeadAttention",)

    def match(self, root: ir.Node) -> Match:
        """An op that a pass has made, of a batch or a length that may be 0."""
        need(not expects_none(root), "ONNX Runtime's kernel expects it", root)
        need(provider_of(root, scope.of_node(root).options.providers) == CPU, "another provider runs it", root)
        record = record_of(root)
        need(record is not None and record.transformer != self.name, "it is the model's own, or guarded", root)
        query, key, value = inputs(root, 3)
        batch, length, width = dims(query, 3)
        need(not all(is_never_zero(dim, root) for dim in (batch, length)), "there is a query", root)
        heads: int = attribute(root, "num_heads", 0)
        of_keys, given = (_width(operand, heads) for operand in (key, value))
        sizes = Sizes(batch, length, heads, of_keys // heads, None if given == width else given)
        keys_first = len(dims(key)) > len(dims(query))
        return Match((root,), lambda: guarded(_copied(root), sizes, root, keys_first=keys_first))


def _width(operand: ir.Value, heads: int) -> int:
    """The size of all heads of keys or values, side by side or first."""
    shape = dims(operand)
    (size,) = need_fixed(shape[-1:], "the size of heads is not known", operand)
    return size if len(shape) == 3 else size * heads


def _copied(node: ir.Node) -> ir.Node:
    attributes = plain_attributes(node).values()
    return ir.Node(node.domain, node.op_type, node.inputs, attributes, num_outputs=len(node.outputs))
