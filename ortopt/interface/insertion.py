"""New nodes between an input of a model and what reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from ortopt.cancellation import CancellationToken
from ortopt.graph.index import OpIndex
from ortopt.graph.names import NameRegistry


class Insertion:
    """New nodes between an input and what reads it.

    Args:
        model: The model.
        value: The input, which keeps its name.
        token: Cancellation token.
    """

    def __init__(self, model: ir.Model, value: ir.Value, token: CancellationToken) -> None:
        self._graph = model.graph
        self._value = value
        self._names = NameRegistry(OpIndex(model, token).graphs)
        self._nodes: list[ir.Node] = []

    def constant(self, tensor: ir.TensorProtocol, hint: str) -> ir.Value:
        """A constant as a node of its own."""
        return self.node("Constant", [], {"value": ir.AttrTensor("value", tensor)}, hint)

    def node(self, op: str, inputs: Sequence[ir.Value], attributes: Mapping[str, Any], hint: str = "") -> ir.Value:
        """The result of a new node of the standard ops, named after the input."""
        name = self._names.fresh(f"{self._value.name}/{hint or op}")
        node = ir.node(op, list(inputs), dict(attributes), name=name)
        node.outputs[0].name = self._names.fresh(f"{name}_output")
        self._nodes.append(node)
        return node.outputs[0]

    def finish(self, readers: Sequence[tuple[ir.Node, int]], result: ir.Value, before: ir.Node | None = None) -> None:
        """Put the nodes into the graph, and let what has read the input read their result.

        Args:
            readers: The uses of the input before there were new nodes: nodes, and which of their inputs.
            result: The result of the last node.
            before: The node before which they stand; the first one if None.
        """
        for node, index in readers:
            node.replace_input_with(index, result)
        first = before or next(iter(self._graph), None)
        if first is None:
            self._graph.extend(self._nodes)
        else:
            self._graph.insert_before(first, self._nodes)
        self._nodes = []
