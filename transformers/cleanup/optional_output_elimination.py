"""An optional output that nobody uses costs time where it is computed: it is left out."""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from ortopt import semantics
from ortopt.graph.edit import Editor
from ortopt.graph.match import Refusal, attribute, need, opset
from ortopt.onnx_ir_internals import is_needed
from ortopt.options import TransformerLevel
from ortopt.transformer import Context, GraphTransformer

ROOTS = tuple(f"{domain}::{op}" if domain else op for domain, op in sorted(semantics.OPTIONAL_OUTPUTS))


class OptionalOutputElimination(GraphTransformer):
    """Optional outputs that nobody uses (of Dropout, LayerNormalization, LSTM …) → left out."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("common_subexpression_elimination", "dead_node_elimination")
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Leave out what nobody uses of a graph's nodes."""
        changed = False
        for root in ROOTS:
            for node in context.edit.index.nodes(graph, root):
                unused = _unused(node)
                if not unused:
                    continue
                try:
                    _need_same_mode(node)
                except Refusal as refusal:
                    context.refuse(node, refusal)
                    continue
                changed |= context.attempt((node,), partial(_leave_out, node, unused, context.edit))
        return changed


def _unused(node: ir.Node) -> list[ir.Value]:
    """The optional outputs that nothing uses; the last ones may be there without a name."""
    optional = semantics.OPTIONAL_OUTPUTS[semantics.key(node)]
    named = [
        value
        for position, value in enumerate(node.outputs)
        if position in optional and value.name and not is_needed(value)
    ]
    return [] if len(named) == sum(bool(value.name) for value in node.outputs) else named


def _need_same_mode(node: ir.Node) -> None:
    """Refuse where the node computes something else when the outputs are left out."""
    if node.op_type == "BatchNormalization":
        need(opset(node) >= 14, "before opset 14 the number of outputs says whether it trains", node)
        need(attribute(node, "training_mode", 0) == 0, "it trains", node)
    if node.op_type == "Dropout":
        need(opset(node) >= 7, "before opset 7 Dropout has a mode of its own", node)


def _leave_out(node: ir.Node, unused: list[ir.Value], edit: Editor) -> list[ir.Node]:
    """Remove the unused outputs at the end, and the names of those before other outputs."""
    gone = set(unused)
    kept = list(node.outputs)
    while kept and (kept[-1] in gone or not kept[-1].name):
        kept.pop()
    for value in kept:
        if value in gone:
            edit.rename(value, "")
    if len(kept) < len(node.outputs):
        edit.set_outputs(node, kept)
    return [node]
