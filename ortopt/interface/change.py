"""One change of a model's inputs and outputs: what it made of the model, and the exact adapter between the two.

By the adapter, a result with the new inputs and outputs is run against the original with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir

from ortopt.cancellation import CancellationToken
from ortopt.graph.index import OpIndex
from ortopt.graph.names import NameRegistry

Arrays: TypeAlias = dict[str, Any]
"""Arrays by the names of inputs or outputs; lists of arrays for sequences."""


class InterfaceChange:
    """A change that has been made to a model; this one changes nothing.

    A subclass makes it when it is constructed with a model. All names are those of the original: new ones come last.
    """

    def calls(self, inputs: Arrays) -> Sequence[Arrays] | None:
        """The calls of the model before the change that stand for one call of it afterwards.

        Args:
            inputs: What is given after the change.

        Returns:
            The inputs of each; None where there are no such calls.
        """
        return [inputs]

    def outputs(self, results: Sequence[Arrays]) -> Arrays:
        """What the model gives after the change, from what those calls give."""
        return results[0]

    def variants(self, inputs: Arrays) -> list[Arrays]:
        """Inputs after the change, in the place of those that were drawn, that show whether it is right."""
        return [inputs]

    def given(self, inputs: Arrays) -> Arrays:
        """Inputs that a caller has for the model before the change, as it takes them afterwards.

        Raises:
            UsageError: If they have no such form.
        """
        return inputs


def adapted(changes: Sequence[InterfaceChange], run: Callable[[Arrays], Arrays], inputs: Arrays) -> Arrays | None:
    """What a model gives through the adapters of its changes.

    Args:
        changes: The changes, in the order in which they were made.
        run: Runs the model before them.
        inputs: As they are given after them.

    Returns:
        Its outputs; None where no calls of the model stand for these inputs.
    """
    if not changes:
        return run(inputs)
    *earlier, last = changes
    calls = last.calls(inputs)
    results = [adapted(earlier, run, call) for call in calls or ()]
    known = [result for result in results if result is not None]
    return last.outputs(known) if known and len(known) == len(results) else None


def variants(changes: Sequence[InterfaceChange], inputs: Arrays) -> list[Arrays]:
    """What is run to show that changes are right, in the place of inputs that were drawn.

    Args:
        changes: The changes.
        inputs: As they are given after them.
    """
    found = [inputs]
    for change in changes:
        found = [other for each in found for other in change.variants(each)]
    return found


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
