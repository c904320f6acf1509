"""What the rules of ortopt declare, written down: so a run imports a rule when a node of one of its ops turns up.

``pass_manifest.json`` is generated (``make manifest``). Its entry for a file holds as long as the file is the one that
it was made from; any other file is imported to ask it.
"""

from __future__ import annotations

import functools
import pkgutil
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

FILE: Final = "pass_manifest.json"


class Entry(msgspec.Struct, frozen=True):
    """A file of passes.

    Attributes:
        checksum: Of its source.
        passes: By name, what each rule declares that differs from the default; None of a transformer that has to be
            imported at once.
    """

    checksum: int
    passes: dict[str, dict[str, Any] | None]


@functools.cache
def read() -> Mapping[str, Entry]:
    """The manifest, by module below the package of passes; empty where there is none."""
    try:
        data = pkgutil.get_data("ortopt.discovery", FILE)  # out of an archive, too
    except OSError:
        data = None
    return {} if data is None else msgspec.json.decode(data, type=dict[str, Entry])


def current(module: str, path: str) -> Entry | None:
    """The entry of a file, if it was made from what the file says now.

    Args:
        module: The module below the package of passes.
        path: The file; empty where it is in an archive, which nobody edits.
    """
    entry = read().get(module)
    return entry if entry is not None and (not path or entry.checksum == checksum(path)) else None


def checksum(path: str) -> int:
    """A checksum of a file."""
    with open(path, "rb") as file:  # noqa: PTH123 -- of each pass, in each run
        return zlib.crc32(file.read())
