"""What no output needs costs time and bytes, and hides the rest; ONNX Runtime keeps most of it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import onnx_ir as ir

from ortopt import semantics
from ortopt.graph import scope
from ortopt.graph.edit import Editor
from ortopt.graph.match import attribute, need, opset
from ortopt.onnx_ir_internals import initializers_of, is_needed, use_count
from ortopt.options import Target, TransformerLevel
from ortopt.transformer import Context, GraphTransformer

ROOTS = tuple(f"{domain}::{op}" if domain else op for domain, op in sorted(semantics.OPTIONAL_OUTPUTS))

_RECURRENCES = ("GRU", "LSTM", "RNN")


class DeadNodeElimination(GraphTransformer):
    """Nodes, initializers, functions and opset imports that nothing needs → nothing."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL4)
    after = ("group_fusion",)
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Remove what is dead in a graph; in the main graph also what is dead in the model."""
        changed = _remove_nodes(graph, context)
        changed |= _remove_initializers(graph, context)
        if graph is context.model.graph:
            changed |= _remove_functions(context)
            changed |= _remove_imports(
                context.model.opset_imports, scope.graphs(context.model, context.cancellation), context
            )
        elif (function := scope.of(graph).function) is not None and function.graph is graph:
            changed |= _remove_imports(function.opset_imports, scope.below(graph, context.cancellation), context)
        return changed


def _remove_nodes(graph: ir.Graph, context: Context) -> bool:
    edit, functions = context.edit, context.model.functions
    clock = edit.clock
    for node in context.cancellation.checked(reversed(tuple(context.cancellation.checked(graph)))):
        if any(map(is_needed, node.outputs)) or node.graph is None:
            continue
        if not semantics.is_removable(node, functions):
            context.refuse(node, "its op is of an unknown domain, it may have effects")
        else:
            context.attempt((node,), partial(edit.sweep, (node,)))
    return edit.clock != clock


def _remove_initializers(graph: ir.Graph, context: Context) -> bool:
    unused = [
        value
        for value in context.cancellation.checked(initializers_of(graph).values())
        if not use_count(value) and not value.is_graph_input() and not value.is_graph_output()
    ]
    if not unused:
        return False
    annotated = semantics.quantization_parameters(graph, context.cancellation)
    unused = [value for value in unused if value.name not in annotated]
    return bool(unused) and context.attempt(
        (),
        lambda: context.edit.remove_initializers(graph, unused, context.cancellation),
        f"{len(unused)} unused initializers",
    )


def _remove_functions(context: Context) -> bool:
    functions = context.model.functions
    if not functions:
        return False
    called = scope.called_functions(context.model.graph, context.model.functions, context.cancellation)
    changed = False
    for identifier, function in tuple(functions.items()):
        if identifier not in called:
            remove = partial(context.edit.remove_function, function)
            changed |= context.attempt((), remove, f"nothing calls {function.domain}.{function.name}")
    return changed


def _remove_imports(imports: dict[str, int], graphs: Iterable[ir.Graph], context: Context) -> bool:
    """Drop the imports of domains that no node of some graphs belongs to; ai.onnx always stays, or else one of them."""
    candidates = {domain for domain in imports if domain}
    if not candidates:
        return False
    for graph in graphs:
        for op in context.edit.index.counts(graph):
            candidates.discard(op.partition("::")[0] if "::" in op else "")
        if not candidates:
            return False
    if len(candidates) == len(imports):  # a model without any import is none
        candidates.discard(min(candidates))
    if not candidates:
        return False
    domains = sorted(candidates)

    def remove() -> None:
        for domain in domains:
            context.edit.remove_opset(imports, domain)

    return context.attempt((), remove, f"no node is of {', '.join(domains)}")


class OptionalOutputElimination(GraphTransformer):
    """Optional outputs that nobody uses (of Dropout, LayerNormalization, LSTM …) → left out.

    For runtimes other than ONNX Runtime those of a recurrence stay: MNN ends its process where there are fewer.
    """

    after = ("common_subexpression_elimination", "dead_node_elimination")
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Leave out what nobody uses of a graph's nodes."""
        changed = False
        for root in ROOTS:
            nodes = [node for node in context.edit.index.nodes(graph, root) if _unused(node)]
            for node, _ in context.answered(nodes, partial(_need_optional, target=context.options.target)):
                changed |= context.attempt((node,), partial(_leave_out, node, _unused(node), context.edit))
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


def _need_optional(node: ir.Node, target: Target) -> None:
    """Refuse where outputs that are left out change what a node computes, or what a runtime makes of it."""
    stays = target.keeps_to_onnx and node.op_type in _RECURRENCES
    need(not stays, "other runtimes read all outputs of a recurrence", node)
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
