"""Tables of costs: the one that ships, as its verdicts hold on older releases, or the caller's, laid over it.

``data/costs.releases.json`` has the speeds of the forms of the table that ships, at the same ranges of sizes, on other
releases; ``python -m tools.measure_releases`` renews it. For a run that allows an older release than the one with which
the table was measured, each row has to hold there, too: a form that loses on one of the releases that it allows loses,
and one that was not measured on one of them, or is not clear there, is not taken. A release that was not measured is
taken for the one before it. Nothing is said of a form that a release refuses: it is not for runs that allow that one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

from ortopt import documents
from ortopt.analysis import costs, releases
from ortopt.analysis.costs import Circumstances, Cost, CostTable, Form, Verdict
from ortopt.analysis.kernel_history import Release
from ortopt.analysis.providers import CPU
from ortopt.documents import Amount, Count
from ortopt.errors import InvalidModelError
from ortopt.options import Options, Target
from ortopt.terminal_text import quoted

PATH: Final = Path(__file__).with_name("data") / "costs.releases.json"

_UNMEASURED: Final = (Verdict.UNKNOWN.value,)


def shipped_for(oldest: Release | None, target: Target = Target.ORT, threads: int | None = None) -> CostTable:
    """The table that ships, for all releases from one on.

    Args:
        oldest: The oldest release that a run allows; None is the one of the table.
        target: What runs the result: what was measured on another runtime takes the place there of what was measured
            on ONNX Runtime.
        threads: Threads that run the result; None is any number.
    """
    return _shipped_for(oldest, costs.of_target(target), threads == 1)


@functools.cache
def _shipped_for(oldest: Release | None, elsewhere: CostTable | None, alone: bool) -> CostTable:
    table, *others = costs.of_processors()
    alone = alone or elsewhere is not None
    others += [] if alone else [costs.with_threads()]
    own = releases.parse_release(table.measured.onnxruntime)
    oldest = oldest or own
    measured = sorted(release for release in map(releases.parse_release, _data()["releases"]) if release < own)
    first = max((release for release in measured if release <= oldest), default=oldest)
    asked = [release for release in measured if release >= first]
    if oldest >= own or not asked:
        whole = costs.on_all_processors(table, others) if alone else costs.shipped()
    else:
        whole = costs.on_all_processors(table, [*others, _column(table, asked)])
        whole.name = f"{table.name}, for {releases.shown(oldest)} and newer"
    if elsewhere is not None:
        return _on_another_runtime(whole, elsewhere)
    if alone:
        whole.name += ", for one thread"
    return whole


def _on_another_runtime(table: CostTable, measured: CostTable) -> CostTable:
    """A table whose rows say what was measured on another runtime, as far as they were."""
    known = {cost.key: cost for cost in measured.own}
    rows = [structs.replace(known.get(cost.key, cost), sizes=cost.sizes) for cost in table.own]
    digest = hashlib.sha256((table.digest + measured.digest).encode()).hexdigest()
    return CostTable(f"{table.name}, for {measured.name}", digest, rows, table.measured, columns=table.columns)


def _column(table: CostTable, asked: Sequence[Release]) -> CostTable:
    """What the rows of a table cost on some releases together."""
    data = _data()
    known = {_key(row): row["speeds"] for row in data["costs"]}
    rows = (_row(cost, known.get(cost.key, {}), asked) for cost in table.own if cost.provider == CPU)
    first, last = (releases.shown(release) for release in (asked[0], asked[-1]))
    label = f"ONNX Runtime {first}" if first == last else f"ONNX Runtime {first} to {last}"
    digest = hashlib.sha256(PATH.read_bytes() + label.encode()).hexdigest()
    measured = Circumstances(label.rpartition("Runtime ")[2], data["processor"], data["threads"], label)
    return CostTable(label, digest, (row for row in rows if row is not None), measured)


def _row(cost: Cost, speeds: Mapping[str, Any], asked: Sequence[Release]) -> Cost | None:
    """What a row costs on releases together; None where all of them refuse the form."""
    told = {name: speeds.get(name, _UNMEASURED) for name in map(releases.shown, asked)}
    each = {name: (Verdict(one[0]), tuple(one[1:])) for name, one in told.items() if one is not None}
    if not each:
        return None
    verdicts = {verdict for verdict, _ in each.values()}
    order = (Verdict.LOSES, Verdict.UNKNOWN, Verdict.PAYS, Verdict.NEUTRAL)
    verdict = next(one for one in order if one in verdicts)
    against = [name for name, (one, _) in each.items() if one is verdict]
    ends = [end for _, speed in each.values() for end in speed]
    return Cost(
        cost.form,
        cost.provider,
        verdict,
        (min(ends), max(ends)) if ends else None,
        cost.instead_of,
        cost.sizes,
        cost.at,
        cost.source,
        releases=", ".join(against) if verdict in (Verdict.LOSES, Verdict.UNKNOWN) else "",
    )


def _key(row: Mapping[str, Any]) -> tuple[Form, str, tuple[tuple[str, tuple[int, float]], ...]]:
    """What a row is about, as `Cost.key`."""
    domain, _, op_type = row["op"].rpartition("::")
    at = ((name, (low, math.inf if high is None else high)) for name, (low, high) in row.get("at", {}).items())
    return Form(domain, op_type, row.get("variant", "")), CPU, tuple(at)


@functools.cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(PATH.read_bytes())
    return data


def table_for(options: Options) -> CostTable:
    """The table that a run asks: of forms that it takes, none loses on a release that it allows.

    Args:
        options: Options of the run.

    Raises:
        InvalidModelError: If the file that they name cannot be read, or is no such table.
    """
    return table_of(options.costs, releases.least(options), options.target, options.for_threads)


def table_of(
    path: str | None, oldest: Release | None = None, target: Target = Target.ORT, threads: int | None = None
) -> CostTable:
    """The table that ships, or that of a file laid over it.

    What the file says of a form on a provider, at all sizes or in a range of them, counts; of forms and ranges that it
    does not know, the table that ships does.

    Args:
        path: The file; None is the table that ships.
        oldest: The oldest release of ONNX Runtime on which what the table that ships says shall hold; None is the one
            that it was measured with.
        target: What runs the result.
        threads: Threads that run it; None is any number.

    Raises:
        InvalidModelError: If the file cannot be read, or is no such table.
    """
    below = shipped_for(oldest, target, threads)
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
    if own.digest == costs.of_processors()[0].digest:
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
