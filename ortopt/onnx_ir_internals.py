"""What onnx-ir knows, and gives publicly only at a cost: the one file that uses its private names.

Each private name here is pinned by a test, which names the release of onnx-ir that it was read in.

- Attributes and initializers are dictionaries in a wrapper; each question to it costs several calls.
- ``Value.uses()`` copies all uses; a shared constant with 30,000 of them makes that the cost of a rewrite.
- The linked list of nodes has no public way to the node before a node.
- The outputs of a node can be made fewer only at their end.
- ``Graph.remove()`` looks at all outputs of the graph, and one that has thousands makes that the cost of a rewrite;
  ``Node.replace_input_with()`` looks at all inputs of the node.
- A model that is cloned is cloned to the end.
- Each node and value that is asked for its metadata gets an empty dictionary; over 100,000 of them that costs more than
  writing the model.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir
from onnx_ir import _core

from ortopt.cancellation import CancellationToken
from ortopt.errors import OptimizationCancelled

Usage: TypeAlias = _core.Usage
"""Which node uses a value, and as which of its inputs."""


def attributes_of(node: ir.Node) -> dict[str, ir.Attr]:
    """The attributes of a node as a plain dictionary, to be read: ``node.attributes`` answers each question slowly."""
    return node._attributes.data


def graph_attributes(node: ir.Node) -> list[ir.Attr]:
    """The attributes of a node that hold graphs, or refer to such ones; nearly no node has any, and all are asked."""
    return [attribute for attribute in node._attributes.data.values() if attribute._type in _GRAPHS]


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def initializers_of(graph: ir.Graph) -> dict[str, ir.Value]:
    """The initializers of a graph as a plain dictionary, to be read."""
    return graph._initializers.data


def plain_dict(entries: Any) -> dict[Any, Any]:
    """The plain dictionary behind a container of onnx-ir, which may be changed past it; any other is itself.

    Args:
        entries: Initializers of a graph, which onnx-ir would let go of one by one, or any dictionary.
    """
    plain: dict[Any, Any] = getattr(entries, "data", entries)
    return plain


def use_count(value: ir.Value) -> int:
    """How many node inputs a value feeds, those in subgraphs included."""
    return len(value._uses)


def is_needed(value: ir.Value) -> bool:
    """Whether a node uses a value, or a graph returns it."""
    return bool(value._uses) or value.is_graph_output()


def first_use(value: ir.Value) -> Usage | None:
    """A use of a value (the oldest), or None."""
    return next(iter(value._uses), None)


def previous_node(node: ir.Node) -> ir.Node | None:
    """The node that stands before a node in its graph, or None for the first.

    Args:
        node: A node of a graph.
    """
    assert node.graph is not None
    box = node.graph._nodes._value_ids_to_boxes[id(node)].prev
    return box.value


def replace_input(node: ir.Node, position: int, value: ir.Value | None) -> None:
    """``node.replace_input_with(position, value)``.

    Args:
        node: A node.
        position: The index of one of its inputs.
        value: What it shall be.
    """
    inputs = node._inputs
    old = inputs[position]
    node._inputs = inputs[:position] + (value,) + inputs[position + 1 :]  # noqa: RUF005 -- nodes may have 50,000
    if old is not None:
        old._remove_usage(node, position)
    if value is not None:
        value._add_usage(node, position)
    if old is not None and old is not value:
        node._drop_sharding_for_value(old)


def unlink(node: ir.Node) -> None:
    """Take a node out of its graph; its inputs and outputs stay.

    Args:
        node: A node of a graph.
    """
    assert node.graph is not None
    node.graph._nodes.remove(node)
    node.graph = None


def output_count(graph: ir.Graph, value: ir.Value) -> int:
    """How often a value stands among the outputs of a graph."""
    count: int = graph.outputs._ref_counter[value]  # type: ignore[attr-defined]
    return count


def set_outputs(node: ir.Node, values: Sequence[ir.Value]) -> None:
    """Give a node these outputs, in this order.

    Args:
        node: A node.
        values: Its own outputs, or such that it had before; those left out belong to no node.
    """
    for value in node._outputs:
        value._producer, value._index = None, None
    node._outputs = tuple(values)
    for index, value in enumerate(values):
        value._producer, value._index = node, index


def fill(graph: ir.Graph, initializers: Iterable[ir.Value], nodes: Iterable[ir.Node], token: CancellationToken) -> None:
    """Give a new graph what else would be arguments of its constructor, which cannot be stopped.

    Args:
        graph: A graph of inputs and outputs alone.
        initializers: Its initializers.
        nodes: Its nodes.
        token: Cancellation token.
    """
    for value in token.checked(initializers):
        graph._name_authority.register_or_name_value(value)
        graph.initializers.add(value)
    for some in token.batched(nodes):
        graph.extend(some)


class _Stopped(BaseException):
    """Carries an error out of onnx-ir's cloner, which wraps every `Exception` in one that spells out whole graphs."""

    def __init__(self, cause: OptimizationCancelled) -> None:
        self.cause = cause


def clone(model: ir.Model, token: CancellationToken) -> ir.Model:
    """``model.clone()``, which a token may stop.

    Args:
        model: The model.
        token: Cancellation token.
    """
    from onnx_ir._cloner import Cloner

    asking = token.checked(itertools.repeat(None))

    def ask(_: ir.Node) -> None:
        try:
            next(asking)
        except OptimizationCancelled as cancelled:
            raise _Stopped(cancelled) from None

    def cloner() -> Cloner:
        return Cloner(attr_map={}, value_map={}, metadata_props={}, post_process=ask)

    functions = []
    try:
        graph = cloner().clone_graph(model.graph)
        for function in model.functions.values():
            own = cloner()
            body = own.clone_graph(function.graph)
            attributes = [own.clone_attr(attribute.name, attribute) for attribute in function.attributes.values()]
            functions.append(
                ir.Function(
                    function.domain,
                    function.name,
                    function.overload,
                    graph=body,
                    attributes=[attribute for attribute in attributes if attribute is not None],
                )
            )
    except _Stopped as stopped:
        raise stopped.cause from None
    return ir.Model(
        graph,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=functions,
        metadata_props=dict(model.metadata_props),
        device_configurations=model.device_configurations,
    )


def trivially_same_type(first: ir.Value, second: ir.Value, tracked: Container[ir.DataType]) -> bool:
    """Whether a glance shows that two values are of the same type and shape, and that no more can be known of them.

    Args:
        first: A value.
        second: Another value, equal to it.
        tracked: The types of which contents may be known too.

    Returns:
        Also true of two constants, whatever their type. False of what takes more than a glance.
    """
    type_, other_type = first._type, second._type
    if type_ is not other_type and (type_ is None or other_type is None or type_ != other_type):
        return False
    shape, other_shape = first._shape, second._shape
    if shape is None or other_shape is None or (shape is not other_shape and shape._dims != other_shape._dims):
        return False
    if first._is_graph_output or second._is_graph_output or first._is_graph_input or second._is_graph_input:
        return False  # there may be more than what is declared
    producer, other_producer = first._producer, second._producer
    if first._const_value is not None and second._const_value is not None:
        return _may_be_constant(producer) and _may_be_constant(other_producer)
    if producer is None or other_producer is None or type_ is None or type_.dtype in tracked:
        return False
    return producer._op_type != "Constant" and other_producer._op_type != "Constant"


def _may_be_constant(producer: ir.Node | None) -> bool:
    return producer is None or (producer._op_type == "Constant" and not producer._domain)


def properties_of(owner: ir.Node | ir.Value) -> Mapping[str, str] | None:
    """``owner.metadata_props``, or something false if there are none; none are made."""
    return owner._metadata_props


def meta_of(owner: ir.Node | ir.Value) -> Mapping[str, Any] | None:
    """``owner.meta``, or something false if there is none; none is made."""
    return owner._metadata


def get_meta(owner: ir.Node | ir.Value, key: str) -> Any:
    """``owner.meta.get(key)``; no dictionary is made, and nothing is raised and caught where there is no such key."""
    meta = owner._metadata
    return None if meta is None else meta.data.get(key)


def set_meta(owner: ir.Node | ir.Value, key: str, content: object | None) -> None:
    """Set what is known of a node or value under a key; None is nothing."""
    if content is None:
        owner.meta.pop(key, None)
    else:
        owner.meta[key] = content
