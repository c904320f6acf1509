"""Exporters compute the same sizes, as ``(batch, 12, past + seq, 64)``, in every layer; one computation is enough."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import CancellationToken
from ortopt.graph import facts, scope, symbolic
from ortopt.graph.match import shape_of
from ortopt.onnx_ir_internals import use_count
from ortopt.options import TransformerLevel
from ortopt.semantics.op_traits import SHAPE_QUERIES
from ortopt.transformer import Context, GraphTransformer


class ShapeSharing(GraphTransformer):
    """Integer tensors with provably the same elements → the first of them."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("common_subexpression_elimination", "reshape_fusion", "shape_folding")
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Share the sizes of a graph and of those nested in it, where the values before them are visible."""
        if scope.of(graph).parent is not None:
            return False  # the outermost graph's turn did it
        if not context.edit.index.has_any_anywhere(SHAPE_QUERIES):
            return False
        changed = False
        seen: dict[Hashable, ir.Value] = {}
        stack: list[tuple[Iterator[ir.Node | ir.Graph], list[Hashable]]] = [(_walk(graph, context.cancellation), [])]
        while stack:
            walk, entered = stack[-1]
            item = next(walk, None)
            if item is None:
                for key in entered:
                    seen.pop(key, None)
                stack.pop()
            elif not isinstance(item, ir.Node):  # to ask a node whether it is a graph takes longer
                stack.append((_walk(item, context.cancellation), []))
            else:
                for value in item.outputs:
                    key = _key(value)
                    if key is None:
                        continue
                    first = seen.get(key)
                    producer = None if first is None else first.producer()
                    if first is None or producer is None or producer.graph is None:
                        seen[key] = value
                        entered.append(key)
                    elif use_count(value) or value.is_graph_output():
                        changed |= _share(value, first, item, context)
        return changed


def _walk(graph: ir.Graph, token: CancellationToken) -> Iterator[ir.Node | ir.Graph]:
    """The nodes of a graph that have not been removed meanwhile, and before each its nested graphs: they run first."""
    for node in token.checked(tuple(token.checked(graph))):
        if node.graph is None:
            continue
        if node.attributes:
            yield from semantics.subgraphs(node)
        yield node


def _key(value: ir.Value) -> Hashable:
    """A key that is equal for provably equal values; None where an element is not known, or all are numbers."""
    if value.dtype not in facts.INTEGERS:
        return None
    contents = facts.all_contents(value)
    if not contents or all(isinstance(dim, int) for dim in contents) or not all(map(symbolic.is_known, contents)):
        return None
    dims = shape_of(value)
    if dims is None or not all(isinstance(dim, int) for dim in dims):
        return None
    elements = tuple(dim if isinstance(dim, int) else symbolic.canonical(dim) for dim in contents)
    return value.dtype, dims, tuple(dim if isinstance(dim, int) else dim.value for dim in elements)


def _share(value: ir.Value, first: ir.Value, node: ir.Node, context: Context) -> bool:
    if value.is_graph_output():
        context.refuse(node, f"{value.name} is a graph output")
        return False
    return context.substitute({value: first}, before=node, why=f"{value.name} holds what {first.name} holds")
