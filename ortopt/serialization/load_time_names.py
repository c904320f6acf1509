"""Names that ONNX Runtime gives values of its own while it loads a model, though the model may have them.

Where it makes a Gemm between two Reshapes of a MatMul and an Add, it looks for free names of the two shapes among those
of nodes, not of values (1.31). So a model that it has saved itself, shapes and all, fails to load as soon as one more
pair is there to be fused: "Attempt to replace the existing tensor".
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Final

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.graph.names import set_name
from ortopt.onnx_ir_internals import initializers_of

_TAKEN_UNASKED: Final = re.compile(r"gemm_(input|output)_shape(_token_\d+)?")


def avoid(model: ir.Model, token: CancellationToken = NEVER) -> None:
    """Rename values that have such a name; inputs and outputs of graphs keep theirs.

    Args:
        model: A model that is not edited any more.
        token: Cancellation token; a model that is stopped here is valid, with some names left.
    """
    for top in (model.graph, *(function.graph for function in model.functions.values())):
        graphs = list(scope.below(top, token))
        clashing = [
            value
            for graph in graphs
            for value in token.checked(_inner_values(graph))
            if value.name is not None and _TAKEN_UNASKED.fullmatch(value.name)
        ]
        if not clashing:
            continue
        names = {
            value.name
            for graph in graphs
            for value in token.checked(itertools.chain(graph.inputs, graph.initializers.values(), _results(graph)))
        }
        for value in clashing:
            name = next(free for number in itertools.count(1) if (free := f"{value.name}_{number}") not in names)
            names.add(name)
            set_name(value, name)


def _inner_values(graph: ir.Graph) -> Iterator[ir.Value]:
    for value in itertools.chain(tuple(initializers_of(graph).values()), _results(graph)):
        if not (value.is_graph_input() or value.is_graph_output()):
            yield value


def _results(graph: ir.Graph) -> Iterator[ir.Value]:
    for node in graph:
        yield from node.outputs
