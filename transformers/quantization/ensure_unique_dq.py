"""A quantized kernel replaces its DequantizeLinear too, which no other node may read."""

from __future__ import annotations

import itertools
from functools import partial

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import Editor
from ortopt.onnx_ir_internals import use_count
from ortopt.options import TransformerLevel
from ortopt.patterns.quantization import is_dequantizer
from ortopt.transformer import Context, GraphTransformer


class EnsureUniqueDq(GraphTransformer):
    """``a(DequantizeLinear(q))``, ``b(the same)`` → ``a(DequantizeLinear(q))``, ``b(DequantizeLinear(q))``.

    It is off by default, because it adds nodes, and because ONNX Runtime does the same when it loads a model. Integers,
    scales and zero points stay shared. An output of the graph keeps its DequantizeLinear. Level 1 joins the copies
    again, so another run gives the same file.
    """

    levels = (TransformerLevel.LEVEL3,)
    apply_once = True
    enabled = False
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Give each use but the first a DequantizeLinear of its own; each use, if there is a graph output."""
        if graph is context.model.graph:
            context.edit.forget_names()  # level 1 has joined those of an earlier run: these get the same names
        changed = False
        for node, behind in itertools.pairwise(
            context.cancellation.checked(tuple(context.cancellation.checked(graph)))
        ):  # the last one has no user
            if not is_dequantizer(node):
                continue
            result = node.outputs[0]
            if use_count(result) + result.is_graph_output() < 2:
                context.refuse(node, "it has one user")
                continue
            changed |= context.attempt([node], partial(_multiply, node, behind, context.edit))
        return changed


def _multiply(node: ir.Node, behind: ir.Node, edit: Editor) -> list[ir.Node]:
    """Give uses of a node copies of their own, in front of the node that follows; returns the copies."""
    result = node.outputs[0]
    uses = tuple(result.uses())
    copies = []
    for number, use in enumerate(uses if result.is_graph_output() else uses[1:], 1):
        own = ops.copied(node, node.inputs)
        own.outputs[0].name = own.name = edit.fresh_name(f"{result.name}/{number}")
        edit.insert([own], before=behind, origin=[node])
        edit.set_input(use.node, use.idx, own.outputs[0])
        copies.append(own)
    return copies
