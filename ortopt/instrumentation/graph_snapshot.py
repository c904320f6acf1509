"""A model's nodes and values as plain rows: what stays of a graph when a run has changed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import onnx_ir as ir

from ortopt.graph import facts
from ortopt.graph.index import op_key
from ortopt.graph.module_scopes import SCOPES_KEY
from ortopt.onnx_ir_internals import initializers_of

MAX_TEXT: Final = 400
"""Characters of an attribute or of metadata that a row holds."""

MAX_ITEMS: Final = 16
"""Items of a list, and elements of a tensor, that a row holds."""

MAX_METADATA: Final = 12
"""Entries of a node's metadata that a row holds."""


@dataclass(slots=True)
class ValueRow:
    """A value.

    Attributes:
        name: Its name.
        type: Its element type or other type, or the empty text.
        shape: Its shape, or the empty text where even the rank is unknown.
        kind: ``input``, ``weight``, or the empty text for what a node computes.
        producer: The id of the node that computes it, or -1.
    """

    name: str
    type: str
    shape: str
    kind: str
    producer: int = -1


@dataclass(slots=True)
class NodeRow:
    """A node.

    Attributes:
        id: Its number.
        op: Its op, as ``Add`` or ``com.microsoft::Gelu``.
        name: Its name.
        graph: Position of its graph.
        inputs: Positions of the values that it reads; -1 for an input that is left out.
        outputs: Positions of the values that it computes.
        attributes: Names and values, as text.
        metadata: Keys and texts.
    """

    id: int
    op: str
    name: str
    graph: int
    inputs: list[int]
    outputs: list[int]
    attributes: list[tuple[str, str]]
    metadata: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class GraphRow:
    """A graph.

    Attributes:
        label: Its name for people.
        parent: The id of the node that holds it, or -1.
    """

    label: str
    parent: int = -1


@dataclass(slots=True)
class GraphSnapshot:
    """What a model held.

    Attributes:
        graphs: The main graph first, each before those nested in it.
        nodes: In the order of the graphs.
        values: All that is read or computed.
        inputs: Positions of the model's inputs.
        outputs: Positions of the model's outputs.
    """

    graphs: list[GraphRow] = field(default_factory=list)
    nodes: list[NodeRow] = field(default_factory=list)
    values: list[ValueRow] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


class SnapshotTaker:
    """Takes a snapshot of a model, and remembers which row describes which value until it is closed.

    Args:
        model: The model.
        number: Gives a node its id; called once for each, in order, with the label of its graph.
    """

    def __init__(self, model: ir.Model, number: Callable[[ir.Node, str], int]) -> None:
        self.snapshot = GraphSnapshot()
        self._number = number
        self._rows: dict[ir.Value, int] = {}
        self._ids: dict[ir.Node, int] = {}
        for graph, label, parent in labelled_graphs(model):
            self._add_graph(graph, label, parent)
        self.snapshot.inputs = [self._row(value) for value in model.graph.inputs]
        self.snapshot.outputs = [self._row(value) for value in model.graph.outputs]
        self._ids.clear()

    def _add_graph(self, graph: ir.Graph, label: str, parent: ir.Node | None) -> None:
        position = len(self.snapshot.graphs)
        self.snapshot.graphs.append(GraphRow(label, -1 if parent is None else self._ids[parent]))
        for value in graph.inputs:
            self._row(value, "input")
        for value in initializers_of(graph).values():
            self._row(value, "weight")
        for node in graph:
            self.snapshot.nodes.append(self._node(node, position, label))

    def _node(self, node: ir.Node, graph: int, label: str) -> NodeRow:
        number = self._ids[node] = self._number(node, label)
        inputs = [-1 if value is None else self._row(value) for value in node.inputs]
        outputs = [self._row(value) for value in node.outputs]
        for position in outputs:
            self.snapshot.values[position].producer = number
        attributes = [(_shortened(name), attribute_text(value)) for name, value in node.attributes.items()]
        metadata = [
            (_shortened(key), text if key == SCOPES_KEY else _shortened(text))
            for key, text in list(node.metadata_props.items())[:MAX_METADATA]
        ]
        return NodeRow(number, op_of(node), node.name or "", graph, inputs, outputs, attributes, metadata)

    def _row(self, value: ir.Value, kind: str = "") -> int:
        known = self._rows.get(value)
        if known is None:
            known = self._rows[value] = len(self.snapshot.values)
            self.snapshot.values.append(ValueRow(value.name or "", type_text(value), shape_text(value), kind))
        elif kind and not self.snapshot.values[known].kind:
            self.snapshot.values[known].kind = kind
        return known

    def learn(self) -> None:
        """Take over what inference has found out about types and shapes since, and forget the model."""
        for value, position in self._rows.items():
            row = self.snapshot.values[position]
            row.type = type_text(value) or row.type
            row.shape = shape_text(value) or row.shape
        self._rows.clear()


def labelled_graphs(model: ir.Model) -> Iterator[tuple[ir.Graph, str, ir.Node | None]]:
    """Every graph with its name for people and the node that holds it; each before those nested in it."""
    pending: list[tuple[ir.Graph, str, ir.Node | None]] = [(model.graph, model.graph.name or "main", None)]
    pending += [(each.graph, f"function {each.domain}.{each.name}", None) for each in model.functions.values()]
    pending.reverse()
    while pending:
        graph, label, parent = pending.pop()
        yield graph, label, parent
        inner = [
            (nested, f"{label}/{node.name or node.op_type}:{attribute.name}", node)
            for node in graph
            for attribute in node.attributes.values()
            for nested in _graphs_in(attribute)
        ]
        pending.extend(reversed(inner))


def _graphs_in(attribute: ir.Attr) -> tuple[ir.Graph, ...]:
    if attribute.is_ref():
        return ()
    if attribute.type == ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return tuple(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else ()


def op_of(node: ir.Node) -> str:
    """A node's op, as ``Add`` or ``com.microsoft::Gelu``."""
    return op_key(node.domain, node.op_type)


def type_text(value: ir.Value) -> str:
    """A value's element type, e.g. ``float``, or its whole type where it is no tensor; empty where it is unknown."""
    if value.type is None:
        return "" if value.const_value is None else value.const_value.dtype.name.lower()
    return value.type.dtype.name.lower() if isinstance(value.type, ir.TensorType) else _shortened(str(value.type))


def shape_text(value: ir.Value) -> str:
    """A value's shape, e.g. ``[batch, 128]``; empty where even the rank is unknown."""
    shape = facts.shape_of(value)
    if shape is None:
        return ""
    dims = (dim if isinstance(dim, int) else dim.value for dim in shape.dims)
    return _shortened(f"[{', '.join('?' if dim is None else str(dim) for dim in dims)}]")


def attribute_text(attribute: ir.Attr) -> str:
    """An attribute's value for people."""
    if attribute.is_ref():
        return f"@{_shortened(attribute.ref_attr_name or '')}"
    value = attribute.value
    if _graphs_in(attribute):
        return "a graph"
    if attribute.type == ir.AttributeType.TENSOR:
        return tensor_text(value)
    if isinstance(value, list | tuple):
        items = [_shortened(str(item)) for item in value[:MAX_ITEMS]]
        return _shortened(f"[{', '.join((*items, *(['…'] if len(value) > MAX_ITEMS else [])))}]")
    return _shortened(value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value))


def tensor_text(tensor: ir.TensorProtocol) -> str:
    """A tensor's type and shape, and its elements where they are few."""
    text = f"{tensor.dtype.name.lower()}[{', '.join(map(str, tensor.shape.dims))}]"
    if tensor.size > MAX_ITEMS or tensor.dtype == ir.DataType.STRING:
        return text
    return _shortened(f"{text} {' '.join(tensor.numpy().tolist().__str__().split())}")


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
