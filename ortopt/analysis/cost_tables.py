"""Tables of costs in files: the one that ships, or the caller's, laid over it."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from ortopt import documents
from ortopt.analysis import costs, release_costs, releases
from ortopt.analysis.costs import CostTable, Verdict
from ortopt.analysis.kernel_history import Release
from ortopt.documents import Amount, Count
from ortopt.errors import InvalidModelError
from ortopt.options import Options
from ortopt.terminal_text import quoted


def table_for(options: Options) -> CostTable:
    """The table that a run asks: of forms that it takes, none loses on a release that it allows.

    Args:
        options: Options of the run.

    Raises:
        InvalidModelError: If the file that they name cannot be read, or is no such table.
    """
    return table_of(options.costs, releases.least(options))


def table_of(path: str | None, oldest: Release | None = None) -> CostTable:
    """The table that ships, or that of a file laid over it.

    What the file says of a form on a provider, at all sizes or in a range of them, counts; of forms and ranges that it
    does not know, the table that ships does.

    Args:
        path: The file; None is the table that ships.
        oldest: The oldest release of ONNX Runtime on which what the table that ships says shall hold; None is the one
            that it was measured with.

    Raises:
        InvalidModelError: If the file cannot be read, or is no such table.
    """
    below = costs.shipped() if oldest is None else release_costs.shipped_for(oldest)
    if path is None:
        return below
    try:
        status = Path(path).stat()
    except OSError as error:
        raise InvalidModelError(f"{quoted(path)}: {error.strerror or error}") from error
    return _laid_over(os.path.abspath(path), status.st_mtime_ns, status.st_size, below)  # noqa: PTH100 -- no links resolved


@functools.lru_cache(maxsize=8)
def _laid_over(path: str, _changed: int, _size: int, below: CostTable) -> CostTable:
    own = read_file(path)
    if costs.on_all_processors(own, below.columns).digest == below.digest:
        return below
    return CostTable(own.name, own.digest, own.costs, own.measured, below)


def read_file(path: str) -> CostTable:
    """The table in a file alone.

    Args:
        path: The file.

    Raises:
        InvalidModelError: If the file cannot be read, or is no such table.
    """
    content = documents.contents(path)
    try:
        _check(documents.typed(documents.parse_json(content), _Table))
    except ValueError as error:
        raise documents.invalid(path, "no table of costs", error) from error
    return costs.read(content)


_Extent = tuple[Count, Count | None]


class _Cost(Struct):
    op: str
    provider: str
    verdict: Verdict
    instead_of: str
    source: str
    variant: str = ""
    speed: tuple[Amount, Amount] | None = None
    sizes: str = ""
    at: dict[str, _Extent] = {}


class _Measured(Struct, frozen=True):
    onnxruntime: str = ""
    processor: str = ""
    threads: Count = 1
    kernels: str = ""


class _Table(Struct):
    name: str
    sources: dict[str, str]
    costs: list[_Cost]
    measured: _Measured = _Measured()


def _check(table: _Table) -> None:
    for number, row in enumerate(table.costs, 1):
        wrong = _wrong_with(row, table.sources)
        if wrong:
            raise ValueError(f"row {number} {wrong}")


def _wrong_with(row: _Cost, sources: Mapping[str, str]) -> str:
    """What is wrong with a row beside types; empty if nothing is."""
    if row.source not in sources:
        return f"names the source {quoted(row.source)}, which is none of the table's"
    if row.speed is not None and not 0 < row.speed[0] <= row.speed[1]:
        return "has a speed that is not two positive numbers, the least first"
    if any(high is not None and high < low for low, high in row.at.values()):
        return "has sizes that are not two numbers each, the least first"
    return ""
