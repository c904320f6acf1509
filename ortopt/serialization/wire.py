"""Protobuf's wire format: reading and writing it without protobuf, as far as large models need that.

protobuf copies every weight that it parses, slowly. `strip` walks the messages of a ``ModelProto`` by their lengths,
leaves the large tensors where they are, and returns the model without them: a marker of a few bytes stands for each.
`read_varint` and `fields` read messages in place; `varint`, `tag`, `field` and `integer` write them.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError

CUT_FROM: Final = 1024
"""Bytes from which a tensor's data are left in place; what is smaller is cheaper to copy."""

_TOKEN_BYTES: Final = 16
_MARKER_BYTES: Final = _TOKEN_BYTES + 8

# protobuf refuses messages nested deeper; a model nested deeper loads nowhere.
_MAX_DEPTH: Final = 100

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_NODES_OF_FUNCTION, _NODES_OF_GRAPH = 7, 1
_TENSOR: Final[dict[int, object]] = {}
_ATTRIBUTE: Final[dict[int, object]] = {}
_NODE: Final[dict[int, object]] = {5: _ATTRIBUTE}
_GRAPH: Final[dict[int, object]] = {_NODES_OF_GRAPH: _NODE, 5: _TENSOR}
_FUNCTION: Final[dict[int, object]] = {_NODES_OF_FUNCTION: _NODE, 11: _ATTRIBUTE}
_MODEL: Final[dict[int, object]] = {7: _GRAPH, 25: _FUNCTION}
_ATTRIBUTE.update({5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH})

_RAW_DATA, _FLOAT_DATA, _DOUBLE_DATA, _DATA_TYPE = 9, 4, 10, 2
_PACKED_AS: Final = {_FLOAT_DATA: frozenset({1, 14}), _DOUBLE_DATA: frozenset({11, 15})}
"""Packed fields whose bytes are what raw_data would be, for these data types (FLOAT, COMPLEX64; DOUBLE, COMPLEX128)."""

Buffer = bytes | memoryview | mmap.mmap

_FIELDS_BETWEEN_CHECKS: Final = 4096


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """A number and the position behind it.

    Raises:
        IndexError: The buffer ends in the middle of the number.
        InvalidModelError: The number has more than 64 bits.
    """
    result = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
        if shift > 63:
            raise InvalidModelError("a number has more than 64 bits: not an ONNX model")


def _fixed_size(kind: int) -> int:
    if kind == _FIXED32:
        return 4
    if kind == _FIXED64:
        return 8
    raise InvalidModelError("a field has a type that protobuf does not use: not an ONNX model")


def fields(buffer: Buffer, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields of a message that hold bytes, a string or a message; the other fields are stepped over.

    Args:
        buffer: What holds the message.
        position: Where the message starts.
        end: Where it ends.

    Yields:
        The number of the field, where its contents start, and where they end: behind the message if it is cut short.
        What is malformed ends the fields.
    """
    try:
        while position < end:
            tag, position = read_varint(buffer, position)
            kind = tag & 7
            if kind == _BYTES:
                length, position = read_varint(buffer, position)
                yield tag >> 3, position, position + length
                position += length
            elif kind == _VARINT:
                _, position = read_varint(buffer, position)
            else:
                position += _fixed_size(kind)
    except (IndexError, InvalidModelError):
        return


class Cut(NamedTuple):
    """Where a tensor's data lie in the buffer, in bytes."""

    offset: int
    length: int


class Stripped(NamedTuple):
    """A model without its large tensors.

    Attributes:
        model: A serialized ``ModelProto``; each large tensor's ``raw_data`` is a marker.
        cuts: What was left out, in the order of the markers' numbers.
        token: What a marker starts with; random, so that no file can contain one.
    """

    model: bytes
    cuts: list[Cut]
    token: bytes

    def cut(self, raw_data: bytes) -> Cut | None:
        """The cut that a tensor's ``raw_data`` stands for, or None if they are its own data."""
        if len(raw_data) != _MARKER_BYTES or not raw_data.startswith(self.token):
            return None
        return self.cuts[int.from_bytes(raw_data[_TOKEN_BYTES:], "little")]


def strip(buffer: Buffer, token: CancellationToken = NEVER) -> Stripped:
    """Leave a serialized ``ModelProto``'s large tensors out.

    Linear in the number of fields outside of tensors; reads no tensor's data.

    Args:
        buffer: The message.
        token: Cancellation token.

    Raises:
        InvalidModelError: The buffer is not a protobuf message, or is cut short, or nests too deeply.
    """
    walk = _Walk(buffer, token)
    try:
        parts = walk.message(0, len(buffer), _MODEL, 0)
    except IndexError:
        raise InvalidModelError("the file ends in the middle of a field: not an ONNX model, or cut short") from None
    model = bytes(buffer[:]) if parts is None else b"".join(parts)
    return Stripped(model, walk.cuts, walk.token)


class _Walk:
    """One walk over a buffer; a class because all of its functions share the buffer and the list of cuts."""

    def __init__(self, buffer: Buffer, token: CancellationToken) -> None:
        self.buffer = buffer
        self._ask = token.check
        self._fields_left = _FIELDS_BETWEEN_CHECKS
        self.cuts: list[Cut] = []
        self.token = os.urandom(_TOKEN_BYTES)

    def message(self, position: int, end: int, fields: dict[int, object], depth: int) -> list[bytes] | None:
        """The stripped message between two positions, in parts; None if there is nothing to strip in it."""
        if depth > _MAX_DEPTH:
            raise InvalidModelError(f"the model is nested more than {_MAX_DEPTH} messages deep")
        buffer = self.buffer
        parts: list[bytes] = []
        copied = position
        while position < end:
            start = position
            tag = buffer[position]
            position += 1
            if tag >= 0x80:
                tag, position = read_varint(buffer, start)
            kind = tag & 7
            if kind == _BYTES:
                length = buffer[position]
                position += 1
                if length < 0x80:
                    position += length
                    continue
                self._fields_left -= 1
                if not self._fields_left:
                    self._ask()
                    self._fields_left = _FIELDS_BETWEEN_CHECKS
                length, position = read_varint(buffer, position - 1)
                body, position = position, position + length
                if length < CUT_FROM or position > end or (inner := fields.get(tag >> 3)) is None:
                    continue
                assert isinstance(inner, dict)
                if inner is _TENSOR:
                    replaced = self._tensor(body, position)
                else:
                    replaced = self.message(body, position, inner, depth + 1)
                if replaced is None:
                    continue
                parts += (bytes(buffer[copied:start]), varint(tag) + varint(sum(map(len, replaced))), *replaced)
                copied = position
            elif kind == _VARINT:
                while buffer[position] >= 0x80:
                    position += 1
                position += 1
            else:
                position += _fixed_size(kind)
        if position != end:
            raise InvalidModelError("a field is longer than its message: not an ONNX model, or cut short")
        if not parts:
            return None
        parts.append(bytes(buffer[copied:end]))
        return parts

    def _tensor(self, position: int, end: int) -> list[bytes] | None:
        """The same for a ``TensorProto``: its data, if large, give way to a marker."""
        start = position
        data_type = 0
        candidates: list[tuple[int, int, int, int]] = []  # field number, where it starts, where its data start and end
        while position < end:
            begin = position
            tag, position = read_varint(self.buffer, position)
            number, kind = tag >> 3, tag & 7
            if kind == _BYTES:
                length, body = read_varint(self.buffer, position)
                position = body + length
                if number == _RAW_DATA or number in _PACKED_AS:
                    candidates.append((number, begin, body, position))
            elif kind == _VARINT:
                value, position = read_varint(self.buffer, position)
                if number == _DATA_TYPE:
                    data_type = value
            else:
                if number in _PACKED_AS:
                    return None  # not packed: protobuf puts the numbers together
                position += _fixed_size(kind)
        if position != end:
            raise InvalidModelError("a tensor's field is longer than the tensor: the file is damaged")
        if len(candidates) != 1:
            return None
        number, begin, body, position = candidates[0]
        if position - body < CUT_FROM or data_type not in _PACKED_AS.get(number, (data_type,)):
            return None
        marker = self.token + len(self.cuts).to_bytes(8, "little")
        self.cuts.append(Cut(body, position - body))
        return [bytes(self.buffer[start:begin]), field(_RAW_DATA, marker), bytes(self.buffer[position:end])]


def varint(number: int) -> bytes:
    """A number from -2**63 to 2**64 - 1 as protobuf writes it: 7 bits a byte, negative ones as 64 bits."""
    if 0 <= number < len(_SHORT):
        return _SHORT[number]
    return _long_varint(number)


def _long_varint(number: int) -> bytes:
    number &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SHORT: Final = [_long_varint(number) for number in range(512)]


def tag(number: int, kind: int = _BYTES) -> bytes:
    """What stands before a field's contents; ``kind`` is 2 for bytes, strings and messages, 0 for integers."""
    return varint(number << 3 | kind)


def field(number: int, contents: bytes) -> bytes:
    """A field of bytes, a string in UTF-8 or a serialized message."""
    return tag(number) + varint(len(contents)) + contents


def integer(number: int, value: int) -> bytes:
    """An integer field."""
    return tag(number, _VARINT) + varint(value)
