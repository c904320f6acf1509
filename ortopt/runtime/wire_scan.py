"""Whether a model has fusion groups, told from its bytes: a large model is not parsed to be found to have none."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, Final

import onnx
import onnx_ir as ir

from ortopt.semantics import GROUP_DOMAIN

_FUNCTIONS: Final = 25  # ModelProto.functions
_BYTES, _VARINT, _FIXED = 2, 0, {1: 8, 5: 4}


def mentions_groups(source: Any) -> bool:
    """Whether a model may have fusion groups; False also for what is no model at all."""
    if isinstance(source, ir.Model):
        return any(domain == GROUP_DOMAIN for domain, _, _ in source.functions)
    if isinstance(source, onnx.ModelProto):
        return any(function.domain == GROUP_DOMAIN for function in source.functions)
    if isinstance(source, bytes):
        return _scan(source)
    path = Path(os.fspath(source))
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
        return _scan(buffer)


def _scan(buffer: bytes | mmap.mmap) -> bool:
    """Walk the outermost message: a few fields, the graph among them, which is stepped over."""
    wanted = GROUP_DOMAIN.encode()
    position, end = 0, len(buffer)
    try:
        while position < end:
            tag, position = _varint(buffer, position)
            kind = tag & 7
            if kind == _VARINT:
                _, position = _varint(buffer, position)
            elif kind == _BYTES:
                length, position = _varint(buffer, position)
                if tag >> 3 == _FUNCTIONS and buffer.find(wanted, position, min(position + length, end)) >= 0:
                    return True
                position += length
            elif kind in _FIXED:
                position += _FIXED[kind]
            else:
                return False
    except IndexError:
        return False
    return False


def _varint(buffer: bytes | mmap.mmap, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
