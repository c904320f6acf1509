"""When two nodes, or two graphs, compute the same from the same: keys that are equal then."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import onnx_ir as ir

from ortopt import semantics

Names = Mapping[ir.Value, Hashable]
"""What stands for the values of a graph inside a node; all others stand for themselves."""

SMALL = 4096
"""Tensors in attributes are compared by content up to so many bytes."""

MAX_NODES = 1_000
"""Graphs in attributes are compared node by node if they have no more nodes than this."""

_FLOATS = frozenset({ir.AttributeType.FLOAT, ir.AttributeType.FLOATS})
_GRAPHS = frozenset({ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS})


def node_key(node: ir.Node, names: Names) -> Hashable:
    """Equal for nodes that compute the same from the same.

    Args:
        node: A node.
        names: See `Names`.
    """
    inputs: tuple[Hashable, ...] = tuple(node.inputs)
    if names:
        inputs = tuple(None if value is None else names.get(value, value) for value in node.inputs)
    if inputs and inputs[-1] is None:
        present = [position for position, value in enumerate(inputs) if value is not None]
        inputs = inputs[: present[-1] + 1] if present else ()
    if len(inputs) == 2 and not node.domain and node.op_type in semantics.COMMUTATIVE:
        inputs = tuple(sorted(inputs, key=hash))
    outputs: Hashable = None
    if (len(node.outputs) != 1 or not node.outputs[0].name) and semantics.key(node) not in semantics.SPARE_OUTPUTS:
        outputs = tuple(bool(value.name) for value in node.outputs)
    if not node.attributes:
        return node.op_type, node.domain, node.overload, inputs, outputs
    attributes = tuple(sorted((_attribute_key(attribute) for attribute in node.attributes.values()), key=_first))
    return node.op_type, node.domain, node.overload, inputs, outputs, attributes


def _first(key: tuple[Hashable, ...]) -> str:
    return str(key[0])


def _attribute_key(attribute: ir.Attr) -> tuple[Hashable, ...]:
    if attribute.is_ref():
        return attribute.name, attribute.type, "@", attribute.ref_attr_name
    value = attribute.value
    content: Hashable
    if attribute.type in _FLOATS:
        content = repr(value if isinstance(value, float) else tuple(value))  # zeros have signs
    elif attribute.type == ir.AttributeType.TENSOR:
        content = _tensor_key(value)
    elif attribute.type in _GRAPHS:
        content = tuple(graph_key(graph) for graph in ([value] if isinstance(value, ir.Graph) else value))
    else:
        content = tuple(value) if isinstance(value, list | tuple) else value
    try:
        hash(content)
    except TypeError:  # types, sparse tensors and the like are equal only if they are the same
        content = id(value)
    return attribute.name, attribute.type, content


def _tensor_key(tensor: ir.TensorProtocol) -> Hashable:
    if tensor.dtype == ir.DataType.STRING or tensor.nbytes > SMALL:
        return id(tensor)
    return tensor.dtype, tuple(tensor.shape), tensor.tobytes()


def graph_key(graph: ir.Graph) -> Hashable:
    """Equal for graphs that compute the same from the same inputs and the same captured values.

    Large graphs, and those that hold graphs themselves, are equal to none: the cost stays linear, however they nest.
    """
    if len(graph) > MAX_NODES or any(node.attributes and any(semantics.subgraphs(node)) for node in graph):
        return id(graph)
    names: dict[ir.Value, Hashable] = {}
    parts: list[Hashable] = [len(graph.inputs), len(graph.outputs)]

    def give_name(value: ir.Value) -> None:
        names[value] = ("inner", len(names))

    for value in graph.inputs:
        give_name(value)
        parts.append((value.dtype, str(value.shape)))
    for value in graph.initializers.values():
        tensor = value.const_value
        if value.is_graph_input() or tensor is None:
            return id(graph)
        names[value] = ("constant", _tensor_key(tensor))
    for node in graph:
        parts.append(node_key(node, names))
        for value in node.outputs:
            give_name(value)
    parts.append(tuple(names.get(value, value) for value in graph.outputs))
    return tuple(parts)
