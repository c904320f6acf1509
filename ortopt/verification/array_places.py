"""Where arrays of a verification are kept: in a folder, which another process reads, or in memory.

Only numpy is imported here: child processes that run models use it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

from ortopt.evaluation.raw_tensors import Array, aligned_copy, load_array, save_array


class MemoryPlace:
    """Arrays by their names, for a session in this process: files would take longer than small models do.

    Attributes:
        arrays: Read-only copies, laid out as those of a file.
        rows: How to find the inputs there.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.rows: dict[str, Any] = {}


Place: TypeAlias = Path | MemoryPlace
"""A folder, or its like in memory."""

_ROWS = "values.json"


def keep(place: Place, name: str, array: Array) -> None:
    """Keep an array of numbers under a name."""
    if isinstance(place, MemoryPlace):
        place.arrays[name] = aligned_copy(array)
    else:
        save_array(place / name, array)


def kept(place: Place, name: str) -> Array:
    """What `keep` has kept; it cannot be changed."""
    return place.arrays[name] if isinstance(place, MemoryPlace) else load_array(place / name)


def keep_rows(place: Place, rows: dict[str, Any]) -> None:
    """Keep how the inputs are found."""
    if isinstance(place, MemoryPlace):
        place.rows = rows
    else:
        (place / _ROWS).write_text(json.dumps(rows), encoding="utf-8")


def kept_rows(place: Place) -> dict[str, Any]:
    """What `keep_rows` has kept."""
    if isinstance(place, MemoryPlace):
        return place.rows
    rows: dict[str, Any] = json.loads((place / _ROWS).read_bytes())
    return rows


def make(place: Place) -> None:
    """Make the folder, unless there is one."""
    if isinstance(place, Path):
        place.mkdir(exist_ok=True)


__all__ = ["MemoryPlace", "Place", "keep", "keep_rows", "kept", "kept_rows", "make"]
