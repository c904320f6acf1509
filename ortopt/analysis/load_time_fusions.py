"""What ONNX Runtime fuses when it loads a model, where that makes the model slower."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.graph.facts import dims_of
from ortopt.graph.symbolic import is_invented, is_known

_JOINED = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})


def slow_residuals(model: ir.Model, token: CancellationToken = NEVER) -> Iterator[ir.Node]:
    """The LayerNormalization nodes that ONNX Runtime joins with the Add before them, where it knows the shapes.

    On the CPU its kernel of SkipLayerNormalization is two to six times as slow as the two nodes.

    Args:
        model: A model whose values have been inferred, and whose file states what is known of them.
        token: Cancellation token.
    """
    for graph in scope.graphs(model, token):
        for node in token.checked(graph):
            total = node.inputs[0] if node.op_type == "LayerNormalization" and not node.domain else None
            added = None if total is None else total.producer()
            if added is not None and added.op_type == "Add" and not added.domain and _is_joined(added):
                yield node


def _is_joined(added: ir.Node) -> bool:
    """Whether a sum is one of two tensors of three dimensions that are known to be the same, and used once."""
    total = added.outputs[0]
    if total.dtype not in _JOINED or len(total.uses()) != 1 or total.is_graph_output():
        return False
    shapes = [None if value is None else dims_of(value) for value in added.inputs]
    first, second = shapes
    if first is None or first != second or len(first) != 3:
        return False
    return all(is_known(dim) and not is_invented(dim) for dim in first)
