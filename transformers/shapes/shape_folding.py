"""Known elements of a shape need not be computed in every run, even where other elements are not known."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.graph import facts, scope
from ortopt.graph.edit import constant
from ortopt.graph.match import is_used, shape_of
from ortopt.options import TransformerLevel
from ortopt.semantics.op_traits import SHAPE_QUERIES
from ortopt.transformer import Context, GraphTransformer

"""Where integers come from that follow from shapes alone; those of constants are constant_folding's."""


class ShapeFolding(GraphTransformer):
    """``Shape``, ``Size`` and integer arithmetic with a known result → constant."""

    levels = (TransformerLevel.LEVEL1,)
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Replace the known integers that something unknown needs."""
        if not context.edit.index.has_any_anywhere(SHAPE_QUERIES):
            return False
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
