"""From the IR to the wire format: tensors, whose data are taken from them when they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir

from ortopt.errors import OutputError
from ortopt.serialization.sparse_tensors import SparseTensor
from ortopt.serialization.wire import field, integer, tag, varint

Part = bytes | ir.TensorProtocol


class Message:
    """A message that may hold tensors: parts, and how many bytes they are together."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.size = 0

    def add(self, data: bytes) -> None:
        """Add fields."""
        self.parts.append(data)
        self.size += len(data)

    def add_tensor_data(self, number: int, tensor: ir.TensorProtocol) -> None:
        """Add a field of a tensor's data, which are taken from it when the message is written."""
        self.add(tag(number) + varint(tensor.nbytes))
        self.parts.append(tensor)
        self.size += tensor.nbytes

    def add_any(self, number: int, message: bytes | Message) -> None:
        """Add a field that is a message, in either form."""
        if isinstance(message, bytes):
            self.add(field(number, message))
        else:
            self.add_message(number, message)

    def add_message(self, number: int, message: Message) -> None:
        """Add a field that is a message."""
        self.add(tag(number) + varint(message.size))
        self.parts += message.parts
        self.size += message.size


def text(prefix: bytes, content: str) -> bytes:
    """A text behind its field's tag."""
    data = content.encode()
    return prefix + varint(len(data)) + data


def optional(number: int, content: str | None) -> bytes:
    """A field of text; nothing for no text."""
    return field(number, content.encode()) if content else b""


def properties(number: int, entries: Mapping[str, str]) -> bytes:
    """Metadata, sorted by name."""
    return b"".join(field(number, field(1, key.encode()) + field(2, entries[key].encode())) for key in sorted(entries))


def as_bytes(item: str | bytes) -> bytes:
    """A string as a file has it."""
    return item.encode() if isinstance(item, str) else bytes(item)


def integer_of(number: int) -> bytes:
    """An integer without its field's tag.

    Raises:
        OutputError: It has more than 64 bits.
    """
    if not -(2**63) <= number < 2**63:
        raise OutputError(f"the integer {number} has more than 64 bits")
    return varint(int(number))


class Place(NamedTuple):
    """Where a tensor's data lie, or will lie.

    Attributes:
        location: The file, relative to the model's folder.
        offset: Bytes before the data.
        length: Bytes of data.
    """

    location: str
    offset: int
    length: int


Placing = Callable[[ir.TensorProtocol, bool], Place | None]
"""Says where a tensor's data go outside of the model, None for inside; the flag is true for an attribute's tensor."""


class TensorEncoder:
    """Writes the tensors of one model.

    Args:
        place: Which tensors' data go to other files; None keeps all inside.
    """

    def __init__(self, place: Placing | None) -> None:
        self._place = place

    def dense(self, tensor: ir.TensorProtocol, name: str | None, *, in_attribute: bool) -> Message:
        """A ``TensorProto``.

        Args:
            tensor: The tensor.
            name: Its name in the file.
            in_attribute: Whether an attribute holds it.
        """
        out = Message()
        if isinstance(tensor, ir.serde.TensorProtoTensor) and not tensor.raw.HasField("raw_data"):
            proto = onnx.TensorProto()
            proto.CopyFrom(tensor.raw)
            del proto.metadata_props[:]
            proto.ClearField("name")
            out.add(proto.SerializeToString(deterministic=True) + optional(8, name))
            out.add(properties(16, tensor.metadata_props))
            return out
        out.add(b"".join(tag(1, 0) + integer_of(dim) for dim in tensor.shape.numpy()))
        out.add(integer(2, tensor.dtype.value))
        if tensor.dtype == ir.DataType.STRING:
            out.add(b"".join(field(6, as_bytes(item)) for item in _strings(tensor)))
        out.add(optional(8, name))
        place = None if self._place is None or tensor.dtype == ir.DataType.STRING else self._place(tensor, in_attribute)
        if place is None and tensor.dtype != ir.DataType.STRING:
            out.add_tensor_data(9, tensor)
        out.add(optional(12, tensor.doc_string))
        if place is not None:
            for key, text in zip(Place._fields, place, strict=True):
                out.add(field(13, field(1, key.encode()) + field(2, str(text).encode())))
            out.add(integer(14, onnx.TensorProto.EXTERNAL))
        out.add(properties(16, tensor.metadata_props))
        return out

    def sparse(self, tensor: SparseTensor, name: str | None) -> Message:
        """A ``SparseTensorProto``."""
        out = Message()
        out.add_message(1, self.dense(tensor.values, name, in_attribute=True))
        out.add_message(2, self.dense(tensor.indices, tensor.indices.name, in_attribute=True))
        out.add(b"".join(tag(3, 0) + integer_of(dim) for dim in tensor.dims))
        return out


def _strings(tensor: ir.TensorProtocol) -> Sequence[Any]:
    if isinstance(tensor, ir.StringTensor):
        return tensor.string_data()
    return list(tensor.numpy().reshape(-1))
