"""The parts of a serialized message: bytes, and tensors that stand for the bytes of their data."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ortopt.errors import OutputError
from ortopt.serialization.wire import field, tag, varint

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


__all__ = ["Message", "Part", "as_bytes", "integer_of", "optional", "properties", "text"]
