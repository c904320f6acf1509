"""`CloneRun`: what edits onnx-ir directly works on a clone, which takes the model's place if it is whole."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ortopt.cancellation import CancellationToken
from ortopt.context import Context
from ortopt.framework.placement import CONTRIB_VERSION, NEWEST_OPSET, provider_of
from ortopt.framework.workspace import CloneWorkspace, Misuse, Workspace
from ortopt.graph import scope
from ortopt.graph.edit import Conflict
from ortopt.graph.index import op_key
from ortopt.instrumentation.check_each import invalidity
from ortopt.observers import InvalidGraph
from ortopt.onnx_ir_internals import attributes_of, clone
from ortopt.semantics.nodes import subgraphs
from ortopt.terminal_text import quoted
from ortopt.transformer import GraphTransformer


class CloneRun:
    """A run of a transformer that bypasses the editor.

    Args:
        workspace: The model.
        transformer: The transformer.
        token: Cancellation token.

    Attributes:
        workspace: The clone.
    """

    def __init__(self, workspace: Workspace, transformer: GraphTransformer, token: CancellationToken) -> None:
        copy = clone(workspace.model, token)
        scope.attach(copy, workspace.options, token)
        self.workspace = CloneWorkspace(copy, workspace)
        self._original = workspace
        self._transformer = transformer
        self._token = token
        self._known = {node: _form(node) for graph in scope.graphs(copy, token) for node in graph}
        self._interface = _interface(copy)

    def apply(self, context: Context) -> bool:
        """Let the transformer work on the clone.

        Args:
            context: Its context.

        Returns:
            Whether it says that it has changed something.

        Raises:
            Misuse: If it says nothing.
        """
        copy = self.workspace.model
        returned: object = self._transformer.apply(copy.graph, context)
        if not isinstance(returned, bool):
            raise Misuse(
                f"apply returned {returned!r}: it must return True if it changed anything, else False (a clone that it"
                " has changed takes the model's place only then)"
            )
        return returned

    def swap_in(self, context: Context) -> bool:
        """Let the clone take the model's place.

        Args:
            context: The context that offered the change.

        Returns:
            Whether it did; if not, a new node may not come in, and the reason has been reported.

        Raises:
            InvalidGraph: If the clone is broken, or has other inputs or outputs than the model.
            ValueError: If the transformer does not declare an op that it has brought in.
            OptimizationCancelled: If the run has been asked to stop; the model keeps its own content.
        """
        copy = self.workspace.model
        _check_nesting(copy)
        self._import_domains()
        if (invalid := invalidity(copy)) is not None:
            raise InvalidGraph(f"{invalid} (what edits a clone directly has to leave a whole graph)")
        if (missing := self._missing_function()) is not None:
            raise InvalidGraph(f"{missing} is called, and is no function of the model any more")
        if (interface := _interface(copy)) != self._interface:
            raise InvalidGraph(f"the model has {_told(interface)} instead of {_told(self._interface)}")
        newest = max(NEWEST_OPSET, self._original.model.opset_imports.get("", 0))
        if (opset := copy.opset_imports.get("", 0)) > newest:
            raise InvalidGraph(f"it is of opset {opset}, and the newest that is known here is {newest}")
        earlier = _EarlierNodes(self._original)
        try:
            self._original.swap_in(copy, self._token, lambda: self._accept(context, earlier))
        except Conflict:
            return False
        return True

    def _import_domains(self) -> None:
        """Import the domains of new nodes, as the editor does; whether they may come is asked later."""
        scope.attach(self.workspace.model, self.workspace.options, self._token)
        for graph, node in self._new_nodes(self.workspace.model):
            scope.of(graph).opset_imports.setdefault(node.domain, CONTRIB_VERSION)

    def _new_nodes(self, model: ir.Model) -> Iterator[tuple[ir.Graph, ir.Node]]:
        """The nodes that the clone did not have, and those that are of another op, opset or form now."""
        for graph in scope.graphs(model, self._token):
            for node in self._token.checked(graph):
                if self._known.get(node) != _form(node):
                    yield graph, node

    def _missing_function(self) -> str | None:
        """A function that the transformer has dropped, and that is still called."""
        functions = self.workspace.model.functions
        gone = self._original.model.functions.keys() - functions.keys()
        if not gone:
            return None
        nodes = (node for graph in scope.graphs(self.workspace.model, self._token) for node in graph)
        called = next((node for node in nodes if node.op_identifier() in gone), None)
        return None if called is None else f"{called.domain}.{called.op_type}"

    def _accept(self, context: Context, earlier: _EarlierNodes) -> None:
        """Refuse new nodes as those are refused that come in through the editor."""
        for _, node in self._new_nodes(self._original.model):
            try:
                context._accept_one(node, earlier.like(node), (), earlier.had)
            except Conflict as conflict:
                context.refuse(node, conflict)
                raise


def _form(node: ir.Node) -> tuple[object, ...]:
    """What decides whether a node is defined: its op, the opset of that, how many inputs it has, what attributes."""
    version = scope.of(scope.graph_of(node)).opset_imports.get(node.domain)
    return node.op_identifier(), version, len(node.inputs), tuple(attributes_of(node))


def _check_nesting(model: ir.Model) -> None:
    """Refuse a graph that stands at two places: all that walks through graphs relies on there being an end.

    Raises:
        InvalidGraph: If there is one.
    """
    pending: list[ir.Graph] = [model.graph, *(function.graph for function in model.functions.values())]
    seen: set[ir.Graph] = set()
    while pending:
        graph = pending.pop()
        if graph in seen:
            raise InvalidGraph(f"graph {quoted(graph.name or '')} stands at two places")
        seen.add(graph)
        for node in graph:
            pending += subgraphs(node)


class _EarlierNodes:
    """The nodes that a model had before its content was exchanged.

    Args:
        workspace: The model.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._index = workspace.edit.index
        self._providers = workspace.options.providers
        self._last: dict[str, tuple[ir.Node, ...]] = {}

    def had(self, node: ir.Node) -> bool:
        """Whether the model had a node of an op."""
        return self._index.has_any_anywhere([op_key(node.domain, node.op_type)])

    def like(self, node: ir.Node) -> tuple[ir.Node, ...]:
        """That node of the same op that ran on the least preferred provider, or nowhere; none where there was none."""
        key = op_key(node.domain, node.op_type)
        if key not in self._last:
            nodes = [one for graph in self._index.graphs() for one in self._index.nodes(graph, key)]
            self._last[key] = (max(nodes, key=self._place),) if nodes else ()
        return self._last[key]

    def _place(self, node: ir.Node) -> int:
        provider = provider_of(node, self._providers)
        return len(self._providers) if provider is None else self._providers.index(provider)


_Interface = tuple[tuple[tuple[str | None, str], ...], ...]


def _interface(model: ir.Model) -> _Interface:
    """A model's inputs, with their shapes, and its outputs, whose shapes may become better known."""
    graph = model.graph
    inputs = tuple((value.name, f"{value.type}{'' if value.shape is None else value.shape}") for value in graph.inputs)
    return inputs, tuple((value.name, str(value.type)) for value in graph.outputs)


def _told(interface: _Interface) -> str:
    inputs, outputs = ([f"{quoted(name or '')} {type_}" for name, type_ in values] for values in interface)
    return f"inputs {', '.join(inputs) or 'none'} and outputs {', '.join(outputs) or 'none'}"
