"""The edits of what holds nodes: the outputs of graphs, local functions, opset imports, metadata, the IR version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import facts, scope
from ortopt.graph.node_edits import NodeEdits, constant_bytes, other_versions, replace_back
from ortopt.onnx_ir_internals import (
    attributes_of,
    output_count,
    previous_node,
    replace_input,
    unlink,
    use_count,
)


class ModelEdits(NodeEdits):
    """The single changes of graphs, functions and the model that an `Editor` can make.

    Args:
        model: The model; `scope.attach` has seen it.
        infer: Called with each new node after its insertion; sets the types and shapes of its outputs.
        token: Cancellation token of the construction.
    """

    def __init__(self, model: ir.Model, infer: Callable[[ir.Node], None], token: CancellationToken = NEVER) -> None:
        super().__init__(model, infer, token)
        self._position: dict[ir.Value, int] = {}

    # -- graphs and the model -----------------------------------------------------------------------------------------

    def set_output(self, graph: ir.Graph, position: int, value: ir.Value) -> None:
        """Make a value an output of a graph, in place of another; the caller keeps the name (see `replace`)."""
        old = graph.outputs[position]
        graph.outputs[position] = value
        self._position[value] = position
        self._log.record(graph.outputs.__setitem__, position, old)
        if (producer := value.producer()) is not None:
            self.touched.append(producer)  # its result has another use

    def output_positions(self, graph: ir.Graph, value: ir.Value) -> list[int]:
        """The positions of a value among the outputs of a graph, of which there may be thousands."""
        count, outputs = output_count(graph, value), graph.outputs
        if count > 1:
            return [position for position, output in enumerate(outputs) if output is value]
        if not count:
            return []
        place = self._position.get(value, len(outputs))
        if place >= len(outputs) or outputs[place] is not value:
            self._position.update((output, position) for position, output in enumerate(outputs))
        return [self._position[value]]

    def clear_outputs(self, graph: ir.Graph) -> None:
        """Let a graph that is about to go forget its outputs, so that they can be used elsewhere."""
        old = tuple(graph.outputs)
        graph.outputs.clear()
        self._log.record(graph.outputs.extend, old)

    def set_opset(self, imports: dict[str, int], domain: str, version: int) -> None:
        """Import a domain at a version into a model or a function.

        Args:
            imports: The `opset_imports` to change.
            domain: The domain; the empty string is ai.onnx.
            version: The opset version.
        """
        if imports.get(domain) != version:
            self._log.put(imports, domain, version)

    def remove_opset(self, imports: dict[str, int], domain: str) -> None:
        """Drop the import of a domain that nothing uses."""
        self._log.take(imports, domain)

    def set_metadata(self, function: ir.Function, key: str, text: str) -> None:
        """Set an entry of a function's metadata."""
        if function.metadata_props.get(key) != text:
            self._log.put(function.metadata_props, key, text)

    def set_ir_version(self, version: int) -> None:
        """Set the IR version of the model."""
        if version == self.model.ir_version:
            return
        self._log.record(_set_ir_version, self.model, self.model.ir_version)
        self.model.ir_version = version

    # -- local functions ----------------------------------------------------------------------------------------------

    def outline(
        self,
        nodes: Sequence[ir.Node],
        function: ir.Function,
        call: ir.Node,
        renamed: Mapping[ir.Value, ir.Value],
        outputs: Sequence[ir.Value],
        token: CancellationToken,
    ) -> None:
        """Move nodes of a graph into a new function, and put a call in front of where the first of them stood.

        The call, and what is in the function already, get their names here. The caller restores the order of the graph
        (see `reorder`).

        Args:
            nodes: Nodes of one graph, in topological order.
            function: A function that the model does not have yet, with its inputs and perhaps constants.
            call: A new node that calls it, with an output for each of `outputs`.
            renamed: What each value of the outside that the nodes, or graphs below them, use is in the function.
            outputs: The results of the nodes that the outside needs.
            token: Cancellation token; a caller that is stopped rolls back what has been done.

        Raises:
            Conflict: If what is new, or another op there, is not accepted; nothing is changed then.
        """
        start, clock = self.version, self.clock
        graph, body, own = scope.graph_of(nodes[0]), function.graph, tuple(function.graph)
        self._inherit((call, *token.checked(own)), nodes)
        self._log.put(self.model.functions, function.identifier(), function)
        scope.attach_function(function, self.model, scope.of(graph).options, token)
        body.meta[facts.OPSETS] = function.opset_imports
        self.index.build(body, token)
        self._log.record(self.index.drop, body)
        self._count(sum(map(constant_bytes, token.checked(body))))
        graph.insert_before(nodes[0], call)
        self.index.add(graph, call)
        self.touched.append(call)
        self._log.record(self._undo_insert, graph, call)
        for node in token.checked(nodes):
            self._move_into(body, node)
            self._rename_operands(node, renamed)
        for inner, outer in token.checked(zip(outputs, call.outputs, strict=True)):
            self._expose(graph, function, inner, outer)
        self._check_accepted([call, *own, *other_versions(nodes, graph, body)], (), start, clock)

    def _move_into(self, body: ir.Graph, node: ir.Node) -> None:
        source, before = scope.graph_of(node), previous_node(node)
        self.index.discard(source, node)
        unlink(node)
        body.append(node)
        self.index.add(body, node)
        if attributes_of(node):
            scope.attach_below(node)
        self.touched.append(node)
        self._log.record(self._undo_move, node, source, body, before)

    def _rename_operands(self, node: ir.Node, renamed: Mapping[ir.Value, ir.Value]) -> None:
        for user in scope.with_nested(node):
            old = [(position, value) for position, value in enumerate(user.inputs) if value in renamed]
            for position, value in old:
                assert value is not None
                replace_input(user, position, renamed[value])
            if old:
                self._log.record(_restore_inputs, user, old)
            for value in dict.fromkeys(value for _, value in old):
                if value is not None and not use_count(value):
                    self._freed(value)

    def _expose(self, graph: ir.Graph, function: ir.Function, inner: ir.Value, outer: ir.Value) -> None:
        """Let the outside use the result of a call where it used a value that is now in the function."""
        outer.name, outer.type, outer.shape, outer.doc_string = inner.name, inner.type, inner.shape, inner.doc_string
        outer.metadata_props.update(inner.metadata_props)
        outer.meta.update(inner.meta)
        uses = [use for use in inner.uses() if scope.of_node(use.node).function is not function]
        for user, position in uses:
            replace_input(user, position, outer)
            self.touched.append(user)
        self._log.record(replace_back, inner, uses)
        declared, known = inner.is_graph_output(), facts.shape_of(inner)
        for position in self.output_positions(graph, inner):
            self.set_output(graph, position, outer)
        function.outputs.append(inner)
        self._log.record(_remove_last, function.outputs)
        if declared:  # what the graph declares says nothing about the function
            self.set_type(inner, inner.type, None)
            producer = inner.producer()
            assert producer is not None
            if producer.op_identifier() not in self.model.functions:  # a call is not inferred by itself
                self._infer(producer)
                known = facts.shape_of(inner)
            self.set_type(inner, inner.type, known)

    def keep_arguments(self, function: ir.Function, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Let a function have only some of its inputs and outputs; the caller adapts its calls.

        Args:
            function: A function of the model; the inputs that go are not used.
            inputs: The indices of the inputs that stay.
            outputs: The indices of the outputs that stay.
        """
        for values, kept in ((function.inputs, inputs), (function.outputs, outputs)):
            old = tuple(values)
            if len(kept) < len(old):
                values[:] = [old[place] for place in kept]
                self._log.record(values.__setitem__, slice(None), old)
        self.touched.extend(node for node in function.graph if not any(map(use_count, node.outputs)))

    def remove_function(self, function: ir.Function) -> None:
        """Drop a local function that nothing calls."""
        self._log.take(self.model.functions, function.identifier())
        for graph in scope.below(function.graph):
            self._count(-sum(constant_bytes(node) for node in graph))
            self.index.drop(graph)
            self._log.record(self.index.build, graph)


def _set_ir_version(model: ir.Model, version: int) -> None:
    model.ir_version = version


def _restore_inputs(node: ir.Node, inputs: Iterable[tuple[int, ir.Value | None]]) -> None:
    for position, value in inputs:
        replace_input(node, position, value)


def _remove_last(values: MutableSequence[ir.Value]) -> None:
    values.pop()  # onnx-ir does not see a ``del``
