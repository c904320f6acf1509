"""Sizes that follow from shapes: known ones are constants, equal ones are computed once, of what is there earlier."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial

import numpy as np
import onnx_ir as ir

from ortopt import ops, semantics
from ortopt.cancellation import CancellationToken
from ortopt.graph import facts, scope, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import inputs, is_op, is_used, need, producer, shape_of, users
from ortopt.graph.nested_walk import NestedWalk
from ortopt.onnx_ir_internals import is_needed
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.op_traits import SHAPE_OF_FIRST_INPUT, SHAPE_QUERIES
from ortopt.transformer import Context, GraphTransformer

KEEPERS = tuple(sorted(SHAPE_OF_FIRST_INPUT))


class PreShapeNodeElimination(RewriteRule[Match]):
    """``Shape(f(x))``, ``Size(f(x))`` → ``Shape(x)``, ``Size(x)`` for a Cast or another f that keeps the shape."""

    roots = tuple(sorted(SHAPE_QUERIES))
    lookback = 1
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """A result that only Shape and Size read."""
        (result,) = inputs(root, 1)
        node = producer(result, *KEEPERS)
        need(result is node.outputs[0], "it is another output", result)
        (x,) = inputs(node, 1)
        need(x.type is None or isinstance(x.type, ir.TensorType), "it is no tensor", x)
        private = not result.is_graph_output() and all(is_op(user, *SHAPE_QUERIES) for user in users(result))
        need(private, f"{node.op_type}'s result is used elsewhere", result)
        return Match((root,), lambda: ops.copied(root, [x]))


class ShapeFolding(GraphTransformer):
    """``Shape``, ``Size`` and integer arithmetic with a known result → constant."""

    needs = tuple(sorted(SHAPE_QUERIES))
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Replace the known integers that something unknown needs."""
        known: dict[ir.Node, dict[ir.Value, np.ndarray]] = {}
        for node in context.cancellation.checked(tuple(context.cancellation.checked(graph))):
            outputs = _known_outputs(node)
            if outputs:
                known[node] = outputs
            elif node.op_type in SHAPE_QUERIES and not node.domain:
                context.refuse(node, "not all of the dimensions are known")
        changed = False
        for node in context.cancellation.checked(known):
            needed = _needed(node, known, graph)
            if needed:
                changed |= _replace(node, needed, context)
        return changed


def _known_outputs(node: ir.Node) -> dict[ir.Value, np.ndarray]:
    """The outputs of a node of which every element is known."""
    if node.op_type == "Constant" and not node.domain:
        return {}
    known: dict[ir.Value, np.ndarray] = {}
    for value in node.outputs:
        if value.dtype not in facts.INTEGERS:
            continue
        array = _array(value)
        if array is not None:
            known[value] = array
    return known


def _array(value: ir.Value) -> np.ndarray | None:
    """All elements of an integer tensor; None where one is unknown."""
    dims = shape_of(value)
    contents = () if dims is not None and 0 in dims else facts.all_contents(value)
    if dims is None or contents is None or value.dtype is None:
        return None
    shape = [dim for dim in dims if isinstance(dim, int)]
    elements = [dim for dim in contents if isinstance(dim, int)]
    if len(elements) != len(contents) or len(shape) != len(dims):
        return None
    return np.array(elements, dtype=value.dtype.numpy()).reshape(shape)


def _needed(
    node: ir.Node, known: dict[ir.Node, dict[ir.Value, np.ndarray]], graph: ir.Graph
) -> dict[ir.Value, np.ndarray]:
    """The known outputs of a node that are needed by nodes with unknown results."""
    if node.graph is None:
        return {}

    def is_needed(value: ir.Value) -> bool:
        if value.is_graph_output():
            return True
        for use in value.uses():
            above = scope.ancestor_in(graph, use.node)
            outputs = known.get(above) if above is not None else None
            if outputs is None or above is not use.node or any(o not in outputs and is_used(o) for o in above.outputs):
                return True
        return False

    return {value: array for value, array in known[node].items() if is_needed(value)}


def _replace(node: ir.Node, needed: dict[ir.Value, np.ndarray], context: Context) -> bool:
    replacements = {value: constant(ir.Tensor(array, dtype=value.dtype)) for value, array in needed.items()}
    return context.substitute(replacements, before=node, origin=(node,))


class ShapeSharing(GraphTransformer):
    """Integer tensors with provably the same elements → the first of them.

    Exporters compute the same sizes, as ``(batch, 12, past + seq, 64)``, in every layer; one computation is enough.
    """

    after = ("common_subexpression_elimination", "reshape_fusion", "shape_folding")
    needs = tuple(sorted(SHAPE_QUERIES))
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Share the sizes of a graph and of those nested in it, where the values before them are visible."""
        if scope.of(graph).parent is not None:
            return False  # the outermost graph's turn did it
        changed = False
        nodes: NestedWalk[ir.Node, ir.Value] = NestedWalk(graph, partial(_items, token=context.cancellation))
        for node in nodes:
            for value in node.outputs:
                key = _key(value)
                if key is None:
                    continue
                first = nodes.visible.get(key)
                producer = None if first is None else first.producer()
                if first is None or producer is None or producer.graph is None:
                    nodes.enter(key, value)
                elif is_needed(value):
                    changed |= _share(value, first, node, context)
        return changed


def _items(graph: ir.Graph, token: CancellationToken) -> Iterator[ir.Node | ir.Graph]:
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
