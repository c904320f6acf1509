"""Names that a main graph gives to several constants, which ONNX forbids and ONNX Runtime reads.

The runtime turns Constant nodes into initializers before it looks at names, and of several initializers of one name and
type it takes the last: of those that the file lists, then of the Constant nodes, then of the sparse ones. An input of
this name makes it a default. Only the main graph is read so.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from msgspec import Struct

from ortopt.errors import InvalidModelError
from ortopt.serialization.opset_imports import canonical
from ortopt.terminal_text import quoted


class DuplicateNameError(InvalidModelError):
    """Two values of one graph have the same name."""


class _Constant(Struct, frozen=True):
    """One of the constants of a name: its message, and what must be equal in all of them."""

    message: onnx.TensorProto | onnx.SparseTensorProto
    node: int | None

    @property
    def type(self) -> tuple[int, tuple[int, ...]]:
        message = self.message
        if isinstance(message, onnx.SparseTensorProto):
            return message.values.data_type, tuple(message.dims)
        return message.data_type, tuple(message.dims)


def without_duplicates(graph: onnx.GraphProto) -> onnx.GraphProto:
    """A copy of a main graph in which each name that only constants have is that of one of them.

    Args:
        graph: The main graph. What is repeated otherwise stays.

    Raises:
        InvalidModelError: Constants of one name differ in type or shape, which ONNX Runtime refuses.
    """
    by_name: dict[str, list[_Constant]] = {}
    for name, constant in _constants(graph):
        by_name.setdefault(name, []).append(constant)
    inputs = {info.name for info in graph.input}
    computed = {
        name for node in graph.node if not _is_constant(node) for name in node.output
    }  # a name that something else has too stays repeated
    result = onnx.GraphProto()
    result.CopyFrom(graph)
    gone: set[int] = set()
    lost: set[str] = set()
    for name, constants in by_name.items():
        if name in computed or (len(constants) == 1 and (constants[0].node is None or name not in inputs)):
            continue
        if len({constant.type for constant in constants}) > 1:
            raise InvalidModelError(f"two constants named {quoted(name)} differ in type or shape")
        lost.add(name)
        kept = constants[-1]
        as_node = kept.node is not None and name not in inputs
        gone.update(other.node for other in constants if other.node is not None and not (as_node and other is kept))
    for field in (result.initializer, result.sparse_initializer):
        remaining = [message for message in field if _name(message) not in lost]
        del field[:]
        field.extend(remaining)
    for name in lost:
        kept = by_name[name][-1]
        if kept.node is None or kept.node in gone:
            field = (
                result.sparse_initializer if isinstance(kept.message, onnx.SparseTensorProto) else result.initializer
            )
            field.append(kept.message)
    for position in sorted(gone, reverse=True):
        del result.node[position]
    return result


def _name(message: onnx.TensorProto | onnx.SparseTensorProto) -> str:
    return message.values.name if isinstance(message, onnx.SparseTensorProto) else message.name


def _is_constant(node: onnx.NodeProto) -> bool:
    return node.op_type == "Constant" and not canonical(node.domain) and len(node.output) == 1


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, _Constant]]:
    """The constants with their names, each before those that are taken in its place."""
    for tensor in graph.initializer:
        yield tensor.name, _Constant(tensor, None)
    for position, node in enumerate(graph.node):
        if _is_constant(node) and (message := _content(node)) is not None:
            yield node.output[0], _Constant(message, position)
    for sparse in graph.sparse_initializer:
        yield sparse.values.name, _Constant(sparse, None)


def _content(node: onnx.NodeProto) -> onnx.TensorProto | onnx.SparseTensorProto | None:
    """What a Constant node holds, as an initializer of its result's name."""
    if not node.attribute:
        return None
    attribute, name = node.attribute[0], node.output[0]
    if attribute.name == "sparse_value":
        sparse = onnx.SparseTensorProto()
        sparse.CopyFrom(attribute.sparse_tensor)
        sparse.values.name = name
        return sparse
    if attribute.name == "value":
        tensor = onnx.TensorProto()
        tensor.CopyFrom(attribute.t)
        tensor.name = name
        return tensor
    value = onnx.helper.get_attribute_value(attribute)
    kind = {"value_int": 7, "value_ints": 7, "value_float": 1, "value_floats": 1, "value_string": 8, "value_strings": 8}
    if attribute.name not in kind:
        return None
    dims = [len(value)] if attribute.name.endswith("s") else []
    return onnx.helper.make_tensor(name, kind[attribute.name], dims, value if dims else [value])
