"""Optimized group models on disk, from one process to the next.

A file is named by what it was made from, is written under another name and renamed, and begins with the checksum of its
contents: processes that write the same do not disturb each other, and a damaged file is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path
from typing import Final

import onnx_ir as ir

from ortopt.errors import InvalidModelError, OutputError
from ortopt.runtime.instruments.statistics import Counters
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes

_MAGIC: Final = b"ortopt group 1\n"
_DIGEST_BYTES: Final = 32


class Folder:
    """A folder of optimized models; it may be deleted at any time.

    Args:
        path: The folder, made if it is not there.
        counters: Where hits and damaged files are counted.
    """

    def __init__(self, path: str | os.PathLike[str], counters: Counters) -> None:
        self._path = Path(path)
        self._counters = counters

    def get(self, key: str) -> ir.Model | None:
        """A model by its key, or None if there is none that is whole."""
        path = self._file(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        body = content[start:]
        if content[: len(_MAGIC)] == _MAGIC and hashlib.sha256(body).digest() == content[len(_MAGIC) : start]:
            with contextlib.suppress(InvalidModelError):
                model = load(body, checked=False)
                self._counters.add("restored")
                return model
        self._counters.add("discarded")
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def put(self, key: str, model: ir.Model) -> None:
        """Keep a model; one that cannot be written is not kept, and no error is raised."""
        temporary = self._path / f".{key[:16]}-{secrets.token_hex(8)}.tmp"
        try:
            body = to_bytes(model)
            self._path.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as stream:
                stream.write(_MAGIC + hashlib.sha256(body).digest())
                stream.write(body)
            temporary.replace(self._file(key))
        except (OSError, OutputError):
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        self._counters.add("stored")

    def _file(self, key: str) -> Path:
        return self._path / f"{key}.ortopt"
