"""Structural checks: what every reader of ONNX relies on, whatever the operators mean.

A file refers to values by name; in memory they are objects. `validate` reads the names as a reader of the file would,
and makes sure that each leads to the very object that is meant. Unknown domains and operators are fine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from graphlib import CycleError, TopologicalSorter
from typing import Final

import onnx
import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError
from ortopt.onnx_ir_internals import attributes_of, initializers_of
from ortopt.terminal_text import quoted

_CONTENTS: Final = {
    "value": ir.AttributeType.TENSOR,
    "sparse_value": ir.AttributeType.SPARSE_TENSOR,
    "value_int": ir.AttributeType.INT,
    "value_ints": ir.AttributeType.INTS,
    "value_float": ir.AttributeType.FLOAT,
    "value_floats": ir.AttributeType.FLOATS,
    "value_string": ir.AttributeType.STRING,
    "value_strings": ir.AttributeType.STRINGS,
}
"""The attributes of Constant."""


class NameClashError(InvalidModelError):
    """A name stands for another value than the one that is meant.

    Args:
        message: One line that says where.
        name: The name.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


_Hidden = list[tuple[str, ir.Value | None]]
"""Names that a graph made visible, and what they stood for outside of it."""


def validate(model: ir.Model, *, any_order: bool = False, token: CancellationToken = NEVER) -> bool:
    """Check a model's structure; linear in its nodes, of any depth.

    Args:
        model: The model; it is not changed.
        any_order: Whether nodes may stand before those that they depend on. Circles are then not looked for.
        token: Cancellation token.

    Returns:
        Whether the nodes are in topological order; always true unless ``any_order``.

    Raises:
        InvalidModelError: Something is wrong; one line that says what and where.
    """
    if not model.ir_version or model.ir_version < 0:
        raise InvalidModelError("it has no IR version")
    if model.ir_version > onnx.IR_VERSION:
        raise InvalidModelError(
            f"its IR version {model.ir_version} is newer than what onnx {onnx.__version__} knows ({onnx.IR_VERSION})"
        )
    check = _Check(any_order, token)
    check.run(model.graph, model.opset_imports)
    for function in model.functions.values():
        if function.graph.initializers:
            raise InvalidModelError(
                f"function {quoted(function.name)} has initializers, which ONNX does not have in functions"
            )
        check.run(function.graph, function.opset_imports)
    if model.functions:
        _refuse_recursion(model, token)
    return check.sorted


class _Check:
    def __init__(self, any_order: bool, token: CancellationToken) -> None:
        self._checked = token.checked
        self._any_order = any_order
        self._imports: dict[str, int] = {}
        self._visible: dict[str, ir.Value] = {}
        self._open: set[ir.Graph] = set()
        self.sorted = True

    def run(self, graph: ir.Graph, imports: dict[str, int]) -> None:
        """Check a graph and what is nested in it."""
        self._imports = imports
        visit(self._graph, graph)

    def _graph(self, graph: ir.Graph) -> Generator[ir.Graph]:
        visible = self._visible
        hidden: _Hidden = []
        self._open.add(graph)
        self._enter(graph, hidden)
        for node in self._checked(graph):
            for value in node.inputs:
                if value is not None and visible.get(value.name or "") is not value:
                    self._explain(value, node)
            if node.domain not in self._imports:
                raise InvalidModelError(
                    f"{label(node)} is of domain {quoted(node.domain or 'ai.onnx')}, of which no opset is imported"
                )
            attributes = attributes_of(node)
            if node.op_type == "Constant" and not node.domain:
                _check_constant(node)
            if attributes:
                yield from _below(node, attributes.values())
            for value in node.outputs:
                name = value.name
                if name:
                    self._declare(value, name, hidden)
                elif value.uses() or value.is_graph_output():
                    raise InvalidModelError(f"a result of {label(node)} is used and has no name")
        self._leave(graph, hidden)

    def _enter(self, graph: ir.Graph, hidden: _Hidden) -> None:
        """Make the names of inputs and initializers visible. These may hide outer names."""
        visible = self._visible
        inputs: set[str] = set()
        for value in graph.inputs:
            name = _name(value, "graph input")
            if name in inputs:
                raise NameClashError(f"two inputs of graph {quoted(graph.name)} are named {quoted(name)}", name)
            inputs.add(name)
            hidden.append((name, visible.get(name)))
            visible[name] = value
        for name, value in self._checked(initializers_of(graph).items()):
            if value.const_value is None:
                raise InvalidModelError(f"initializer {quoted(name)} has no data")
            if name != value.name:
                raise InvalidModelError(f"initializer {quoted(name)} is named {quoted(value.name)} too")
            if visible.get(name) is value:
                continue
            if name in inputs:
                raise NameClashError(f"an input and an initializer of one graph are named {quoted(name)}", name)
            hidden.append((name, visible.get(name)))
            visible[name] = value

    def _leave(self, graph: ir.Graph, hidden: _Hidden) -> None:
        """Check the outputs, and make what the graph's names hid visible again."""
        visible = self._visible
        for value in graph.outputs:
            name = _name(value, "graph output")
            producer = value.producer()
            if visible.get(name) is not value or (value.graph if producer is None else producer.graph) is not graph:
                raise NameClashError(f"no node produces {quoted(name)}, an output of graph {quoted(graph.name)}", name)
        for name, before in self._checked(reversed(hidden)):
            if before is None:
                del visible[name]
            else:
                visible[name] = before
        self._open.discard(graph)

    def _declare(self, value: ir.Value, name: str, hidden: _Hidden) -> None:
        """Make a name visible that must be new."""
        if name in self._visible:
            raise NameClashError(f"two values that can be seen from the same place are named {quoted(name)}", name)
        self._visible[name] = value
        hidden.append((name, None))

    def _explain(self, value: ir.Value, node: ir.Node) -> None:
        """Say why an input of a node is not what its name stands for; or that the nodes are out of order."""
        name = value.name
        producer = value.producer()
        if name and producer is not None and producer.graph in self._open and self._visible.get(name) is None:
            self.sorted = False
            if self._any_order:
                return
            raise InvalidModelError(f"{label(node)} uses {quoted(name)} before it is computed")
        if name and self._visible.get(name) is not None:
            raise NameClashError(f"{label(node)} uses a value {quoted(name)} that another of this name hides", name)
        raise InvalidModelError(f"nothing defines {quoted(name)}, an input of {label(node)}")


def visit(check: Callable[[ir.Graph], Generator[ir.Graph]], graph: ir.Graph) -> None:
    """Check a graph and those that its check gives: a stack of generators, for Python's own is not deep enough."""
    stack = [check(graph)]
    while stack:
        inner = next(stack[-1], None)
        if inner is None:
            stack.pop()
        else:
            stack.append(check(inner))


def _below(node: ir.Node, attributes: Iterable[ir.Attr]) -> Generator[ir.Graph]:
    for attribute in attributes:
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.value
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.value
        elif attribute.type == ir.AttributeType.UNDEFINED:
            raise InvalidModelError(f"attribute {quoted(attribute.name)} of {label(node)} has no type")


def _check_constant(node: ir.Node) -> None:
    """Refuse a Constant without its one result, or whose content is not what its attribute's name says."""
    if len(node.outputs) != 1 or not node.outputs[0].name:
        raise InvalidModelError(f"{label(node)} has not the one result that it must have")
    if not _CONTENTS.keys() & attributes_of(node).keys():
        raise InvalidModelError(f"{label(node)} has no value")
    for name, attribute in attributes_of(node).items():
        wanted = _CONTENTS.get(name)
        if wanted is not None and attribute.type != wanted:
            raise InvalidModelError(
                f"attribute {quoted(name)} of {label(node)} is of type {attribute.type.name}, not {wanted.name}"
            )


def _name(value: ir.Value, what: str) -> str:
    if not value.name:
        raise InvalidModelError(f"a {what} has no name")
    return value.name


def label(node: ir.Node) -> str:
    """What a message calls a node."""
    return f"{quoted(node.op_type)} node {quoted(node.name)}" if node.name else f"a node {quoted(node.op_type)}"


def _refuse_recursion(model: ir.Model, token: CancellationToken) -> None:
    """Refuse functions that call themselves, however indirectly: they can neither be inlined nor run."""
    functions = model.functions
    calls = {
        identifier: [
            called for node in token.checked(function.all_nodes()) if (called := node.op_identifier()) in functions
        ]
        for identifier, function in functions.items()
    }
    try:
        TopologicalSorter(calls).prepare()
    except CycleError as error:
        domain, name, _ = error.args[1][0]
        raise InvalidModelError(f"function {quoted(f'{domain}.{name}')} calls itself") from None
