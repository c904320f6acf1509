"""How values come into the graphs that nodes run, and out of them: functions, branches, loops."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx_ir as ir

from ortopt import semantics
from ortopt.graph import scope
from ortopt.graph.index import OpIndex, op_key
from ortopt.onnx_ir_internals import attributes_of


class Crossings:
    """The calls of a model's functions, and what each call, branch or loop hands over.

    Args:
        functions: The functions of the model.
        index: Its nodes by op.
    """

    def __init__(self, functions: Mapping[ir.OperatorIdentifier, ir.Function], index: OpIndex) -> None:
        self._functions = functions
        self._calls: dict[ir.OperatorIdentifier, dict[ir.Node, None]] = {}
        names = {op_key(domain, name) for domain, name, _ in functions}
        for graph in index.graphs() if names else ():
            for op in names.intersection(index.counts(graph)):
                for call in index.nodes(graph, op):
                    self.take_up(call)

    def take_up(self, node: ir.Node) -> None:
        """Remember a node, if it is a call."""
        if self.is_call(node):
            self._calls.setdefault(node.op_identifier(), {})[node] = None

    def is_call(self, node: ir.Node) -> bool:
        """Whether a node is the call of a function of the model."""
        return bool(self._functions) and node.op_identifier() in self._functions

    def is_crossed(self, node: ir.Node) -> bool:
        """Whether values go through the graphs of a node, and not through itself."""
        return (node.op_type in semantics.CONTROL_FLOW and not node.domain) or self.is_call(node)

    def into(self, node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
        """What a call or a loop is given, and as what its graph knows it."""
        function = self._functions.get(node.op_identifier())
        if function is not None:
            yield from _pairs(node.inputs, function.inputs)
        elif node.op_type != "If":
            for body in semantics.subgraphs(node):
                lengths = 1 if len(node.inputs) > len(body.inputs) else 0  # of a Scan of opset 8 only
                yield from _pairs(node.inputs[lengths:], body.inputs)

    def out_of(self, node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
        """What the graphs of a call, loop or branch return, and as what it is known outside or in the next round."""
        function = self._functions.get(node.op_identifier())
        if function is not None:
            yield from _pairs(function.outputs, node.outputs)
        elif attributes_of(node) and self.is_crossed(node):
            for body in semantics.subgraphs(node):
                loops = node.op_type == "Loop"
                returned = body.outputs[1:] if loops else body.outputs  # a Loop's first is whether it goes on
                yield from _pairs(returned, node.outputs)
                if loops or node.op_type == "Scan":
                    scanned = 0 if loops else _number(node, "num_scan_inputs")
                    yield from _pairs(returned, body.inputs[2 if loops else 0 : len(body.inputs) - scanned])

    def owners(self, value: ir.Value) -> Collection[ir.Node]:
        """The nodes that run the graph of a value: the one that holds it, or the calls of the function that it is."""
        holder = holder_of(value)
        if holder is not None:
            return (holder,)
        function = scope.of(value.graph).function if isinstance(value.graph, ir.Graph) else None
        return () if function is None else self._calls.get(function.identifier(), ())

    def beyond(self, value: ir.Value) -> Iterator[ir.Value]:
        """As what the result of a graph is known outside, or in the next round."""
        if value.is_graph_output():
            for owner in self.owners(value):
                yield from (outer for inner, outer in self.out_of(owner) if inner is value)


def holder_of(value: ir.Value) -> ir.Node | None:
    """The node that holds the graph of a value."""
    return scope.of(value.graph).parent if isinstance(value.graph, ir.Graph) else None


def _pairs(some: Sequence[ir.Value | None], others: Sequence[ir.Value | None]) -> Iterator[tuple[ir.Value, ir.Value]]:
    for one, other in zip(some, others, strict=False):
        if one is not None and other is not None:
            yield one, other


def _number(node: ir.Node, name: str) -> int:
    attribute = attributes_of(node).get(name)
    return 0 if attribute is None or attribute.is_ref() else attribute.as_int()
