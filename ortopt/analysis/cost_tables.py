"""Tables of costs in files: the one that ships, or the caller's, laid over it."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any, Final

from ortopt.analysis import costs
from ortopt.analysis.costs import CostTable, Verdict
from ortopt.errors import UsageError
from ortopt.terminal_text import quoted

_TEXTS: Final = ("op", "provider", "verdict", "instead_of", "source")
_VERDICTS: Final = frozenset(verdict.value for verdict in Verdict)


def table_of(path: str | None) -> CostTable:
    """The table that a run asks: the one that ships, or that of a file laid over it.

    What the file says of a form on a provider, at all sizes or in a range of them, counts; of forms and ranges that it
    does not know, the table that ships does.

    Args:
        path: The file; None is the table that ships.

    Raises:
        UsageError: If the file cannot be read, or is no such table.
    """
    if path is None:
        return costs.shipped()
    try:
        status = Path(path).stat()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    return _laid_over(os.path.abspath(path), status.st_mtime_ns, status.st_size)  # noqa: PTH100 -- no links resolved


@functools.lru_cache(maxsize=8)
def _laid_over(path: str, _changed: int, _size: int) -> CostTable:
    own, below = read_file(path), costs.shipped()
    if costs.on_all_processors(own, below.columns).digest == below.digest:
        return below
    return CostTable(own.name, own.digest, own.costs, own.measured, below)


def read_file(path: str) -> CostTable:
    """The table in a file alone.

    Args:
        path: The file.

    Raises:
        UsageError: If the file cannot be read, or is no such table.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    try:
        _check(json.loads(content))
        return costs.read(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        told = f": {error}" if isinstance(error, _NoTableError) else ""
        raise UsageError(f"{path} is no table of costs{told}") from error


class _NoTableError(ValueError):
    """What is wrong with a table, in words."""


def _check(data: Any) -> None:
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise _NoTableError("it has no name")
    if not isinstance(data.get("sources"), dict) or not isinstance(data.get("costs"), list):
        raise _NoTableError("it needs sources and costs")
    for number, row in enumerate(data["costs"], 1):
        wrong = _wrong_with(row, data["sources"])
        if wrong:
            raise _NoTableError(f"row {number} {wrong}")


def _wrong_with(row: Any, sources: dict[str, Any]) -> str:
    """What is wrong with a row; empty if nothing is."""
    if not isinstance(row, dict):
        return "is no object"
    missing = next((name for name in _TEXTS if not isinstance(row.get(name), str)), None)
    if missing is not None:
        return f"has no text {quoted(missing)}"
    if row["verdict"] not in _VERDICTS:
        return f"has the verdict {quoted(row['verdict'])}, which is none of {', '.join(sorted(_VERDICTS))}"
    if row["source"] not in sources:
        return f"names the source {quoted(row['source'])}, which is none of the table's"
    if row.get("speed") is not None and not _is_range(row["speed"], open_ended=False):
        return "has a speed that is not two positive numbers, the least first"
    extents = row.get("at", {})
    if not isinstance(extents, dict) or not all(_is_range(extent, open_ended=True) for extent in extents.values()):
        return "has sizes that are not two numbers each, the least first"
    return ""


def _is_range(extent: Any, *, open_ended: bool) -> bool:
    """Whether something is two numbers, the least first; the greatest may be null where it is open-ended."""
    if not isinstance(extent, list) or len(extent) != 2 or any(isinstance(end, bool) for end in extent):
        return False
    low, high = extent
    if open_ended and high is None:
        return isinstance(low, int)
    if not all(isinstance(end, int if open_ended else int | float) for end in extent):
        return False
    return bool(low <= high and (open_ended or low > 0))


__all__ = ["read_file", "table_of"]
