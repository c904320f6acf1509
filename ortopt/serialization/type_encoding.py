"""From the IR to the wire format: the types, shapes and annotations of values."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import onnx_ir as ir

from ortopt.errors import OutputError
from ortopt.graph.facts import declared_shape
from ortopt.graph.symbolic import INVENTED
from ortopt.onnx_ir_internals import meta_of, properties_of
from ortopt.semantics import QUANTIZATION_KEY
from ortopt.serialization.message import optional, properties
from ortopt.serialization.type_decoding import FOREIGN_TYPE_KEY
from ortopt.serialization.wire import field, integer


class ValueInfos:
    """What a file says about values apart from the nodes, each value once.

    Args:
        prefix: What stands before each name.
        names: The values whose types are written, with the prefix; None for all.

    Attributes:
        parts: Fields of a graph or a function.
    """

    __slots__ = ("_names", "_prefix", "_seen", "parts")

    def __init__(self, prefix: str = "", names: Collection[str] | None = None) -> None:
        self._prefix = prefix
        self._names = names
        self._seen: set[str] = set()
        self.parts: list[bytes] = []

    def type(self, value: ir.Value, number: int) -> None:
        """Add a value's type, if it has a name and there is something to say."""
        name = value.name
        if not name or (self._names is not None and self._prefix + name not in self._names):
            return
        if value.type is None and not value.doc_string and not properties_of(value):
            meta = meta_of(value)
            if not meta or FOREIGN_TYPE_KEY not in meta:
                return
        self.parts.append(field(number, value_info(value, self._prefix)))

    def annotation(self, value: ir.Value) -> None:
        """Add a value's quantization annotation, if it has one."""
        meta = meta_of(value)
        if not meta or QUANTIZATION_KEY not in meta or not value.name or value.name in self._seen:
            return
        self._seen.add(value.name)
        self.parts.append(field(14, field(1, value.name.encode()) + properties(2, meta[QUANTIZATION_KEY])))


def says_more_than_tensor(value: ir.Value) -> bool:
    """Whether an initializer's value knows what its tensor does not."""
    if value.is_graph_input() or value.is_graph_output():
        return False
    denoted = value.type is not None and bool(value.type.denotation)
    if not denoted and value.shape is not None:
        denoted = any(value.shape.get_denotation(axis) for axis in range(len(value.shape)))
    return denoted or bool(value.doc_string or properties_of(value))


def value_info(value: ir.Value, prefix: str = "") -> bytes:
    """A serialized ``ValueInfoProto``."""
    parts = [field(1, (prefix + (value.name or "")).encode())]
    shape = declared_shape(value)
    if value.type is not None or shape is not None:
        parts.append(field(2, type_proto(value.type, shape)))
    elif (meta := meta_of(value)) and FOREIGN_TYPE_KEY in meta:
        parts.append(field(2, meta[FOREIGN_TYPE_KEY]))
    parts.append(optional(3, value.doc_string))
    if metadata := properties_of(value):
        parts.append(properties(4, metadata))
    return b"".join(parts)


_WRAPPED: Final = ((ir.SequenceType, 4), (ir.OptionalType, 9))


def type_proto(kind: Any, shape: ir.Shape | None) -> bytes:
    """A serialized ``TypeProto``; the shape belongs to the innermost tensor."""
    denotation = optional(6, kind.denotation) if kind is not None else b""
    for wrapper, number in _WRAPPED:
        if isinstance(kind, wrapper):
            return _ordered(number, field(number, field(1, type_proto(kind.elem_type, shape))), denotation)
    number = 8 if isinstance(kind, ir.SparseTensorType) else 1
    element = b"" if kind is None else integer(1, kind.dtype.value)
    contents = element + (b"" if shape is None else field(2, _shape(shape)))
    return _ordered(number, field(number, contents), denotation)


def _ordered(number: int, contents: bytes, denotation: bytes) -> bytes:
    return contents + denotation if number < 6 else denotation + contents


def _shape(shape: ir.Shape) -> bytes:
    parts = []
    for axis, dim in enumerate(shape):
        if isinstance(dim, int):
            if dim < 0:
                raise OutputError(f"a shape has a negative dimension: {dim}")
            contents = integer(1, dim)
        elif dim.value is None or INVENTED in dim.value:
            contents = b""
        else:
            contents = field(2, dim.value.encode())
        parts.append(field(1, contents + optional(3, shape.get_denotation(axis))))
    return b"".join(parts)


__all__ = ["ValueInfos", "says_more_than_tensor", "type_proto", "value_info"]
