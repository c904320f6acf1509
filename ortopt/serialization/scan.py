"""Questions about a serialized model that its bytes answer: it is not parsed, and weights are stepped over."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import onnx
import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.semantics import GROUP_DOMAIN
from ortopt.serialization.wire import Buffer, fields

_GRAPH_OF_MODEL, _FUNCTION_OF_MODEL, _NODE_OF_GRAPH = 7, 25, 1  # field numbers of onnx.proto
_LOCATION: Final = b"\n\x08location\x12"
_LONG: Final = 0x80  # the length of longer names takes two bytes
_SEARCHED: Final = 1 << 28
_GROUP_DOMAIN: Final = GROUP_DOMAIN.encode()


def mentions_groups(source: Any) -> bool:
    """Whether a model may have fusion groups; False also for what is no model at all."""
    if isinstance(source, ir.Model):
        return any(domain == GROUP_DOMAIN for domain, _, _ in source.functions)
    if isinstance(source, onnx.ModelProto):
        return any(function.domain == GROUP_DOMAIN for function in source.functions)
    if isinstance(source, bytes):
        return _mentions_groups(source)
    path = Path(os.fspath(source))
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
        return _mentions_groups(buffer)


def _mentions_groups(buffer: bytes | mmap.mmap) -> bool:
    return any(
        number == _FUNCTION_OF_MODEL and buffer.find(_GROUP_DOMAIN, start, end) >= 0
        for number, start, end in fields(buffer, 0, len(buffer))
    )


def external_files(path: os.PathLike[str] | str) -> list[Path]:
    """The files beside a model that its weights name; what only looks like a name of one may be among them.

    Args:
        path: The model; of one that is large itself, and of what is no file, none are looked for.
    """
    model = Path(path)
    if not model.is_file() or not 0 < model.stat().st_size <= _SEARCHED:
        return []
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
        names = {os.fsdecode(name) for name in _locations(buffer)}
    return [model.parent / name for name in sorted(names)]


def _locations(buffer: mmap.mmap) -> Iterator[bytes]:
    """The values of entries with the key of external data's files, wherever they stand."""
    at = buffer.find(_LOCATION)
    while at >= 0:
        start = at + len(_LOCATION) + 1
        length = buffer[start - 1] if start <= len(buffer) else 0
        name = buffer[start : start + length]
        if 0 < length < _LONG and b"\0" not in name:
            yield name
        at = buffer.find(_LOCATION, start)


def count_nodes(model: bytes | os.PathLike[str] | str, token: CancellationToken = NEVER) -> int:
    """The number of nodes of a serialized model's main graph.

    Answers 0 where it is not a model; whoever loads it says what is wrong.

    Args:
        model: The model, or its path.
        token: Cancellation token.
    """
    if isinstance(model, bytes):
        return _count_nodes(model, token)
    try:
        with Path(model).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return _count_nodes(mapped, token)
    except (OSError, ValueError):
        return 0


def _count_nodes(buffer: Buffer, token: CancellationToken) -> int:
    return sum(
        1
        for number, start, end in fields(buffer, 0, len(buffer))
        if number == _GRAPH_OF_MODEL and end <= len(buffer)
        for inner, _, inner_end in token.checked(fields(buffer, start, end))
        if inner == _NODE_OF_GRAPH and inner_end <= end
    )
