"""Tables of costs for people and as data: one, two side by side, and one that is being measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from ortopt.analysis.costs import Cost, CostTable, Verdict, in_sizes
from ortopt.measurement.cost_tables import Difference, all_rows, by_form, differences, rows_of
from ortopt.measurement.forms.catalog import UNMEASURED
from ortopt.reporting import costs
from ortopt.reporting.costs import at_of
from ortopt.reporting.tables import say, table
from ortopt.terminal_text import between, one_line

if TYPE_CHECKING:
    from rich.console import Console

    from ortopt.measurement.costs import Case, Measurement


_MAX_NAMES: Final = 8
"""How many forms a line names."""


class Told:
    """Says what was measured of each form, while others are measured.

    Args:
        out: The console.
        count: How many forms there are.
        provider: The execution provider's full name.
    """

    def __init__(self, out: Console, count: int, provider: str) -> None:
        self._out = out
        self._count = count
        self._provider = provider
        self._number = 0

    def __call__(self, cases: Sequence[Case]) -> None:
        """Say what was measured of a form at all its sizes."""
        self._number += 1
        say(self._out, f"[{self._number}/{self._count}] {cases[0].entry.form}: {self._in_words(cases)}")

    def _in_words(self, cases: Sequence[Case]) -> str:
        error = next((case.error for case in cases if case.error), "")
        if error:
            return f"not measured: {one_line(error)}"
        rows = rows_of(cases, self._provider)
        each = [f"{in_sizes(row.at) + ': ' if row.at else ''}{between(*row.speed)}" for row in rows]
        joined = ", ".join(each)
        return f"{joined} {'as' if joined.endswith('fast') else 'than'} {cases[0].entry.instead_of}"


def show_measurement(measurement: Measurement, path: str, out: Console) -> None:
    """Print what came of measuring.

    Args:
        measurement: What was measured.
        path: The file that was written.
        out: The console.
    """
    rows = all_rows(measurement)
    known = {row.form for row in rows}
    unclear = sorted({str(row.form) for row in rows if row.verdict is Verdict.UNKNOWN})
    missing = sorted({str(own[0].entry.form) for own in by_form(measurement.cases)} - {str(form) for form in known})
    if measurement.stopped:
        say(out, "interrupted: what was measured is kept")
    for names, why in ((unclear, "not clear in this time, and left out"), (missing, "not measured, and left out")):
        if names:
            more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            say(out, f"{why}: {', '.join(names[:_MAX_NAMES])}{more}")
    for form, why in UNMEASURED.items():
        say(out, f"not measured: {form}: {why}")
    say(out, f"written: {one_line(path)}: {len(known) - len(unclear)} forms in {measurement.seconds:.0f} s")


def described(of: CostTable) -> dict[str, Any]:
    """A table as data that json can write.

    Args:
        of: The table.
    """
    return {
        "schema": 1,
        **costs.described(of),
        "measured": structs.asdict(of.measured),
        "columns": [structs.asdict(table.measured) for table in of.columns],
        "costs": [_row(cost, is_own=cost in of.own) for cost in of.costs],
    }


def _row(cost: Cost, *, is_own: bool) -> dict[str, Any]:
    return {**costs.as_row(cost), "at": at_of(cost), "source": cost.source, "own": is_own}


def show(data: Mapping[str, Any], out: Console) -> None:
    """Print a table.

    Args:
        data: From `described`.
        out: The console.
    """
    say(out, costs.table_in_words(data), "bold")
    if data["measured"]["onnxruntime"]:
        say(out, f"measured with {_circumstances(data['measured'])}")
    for column in data["columns"]:
        say(out, f"and with {_circumstances(column)}")
    sources = list(dict.fromkeys(row["source"] for row in data["costs"]))
    for number, source in enumerate(sources, 1):
        say(out, f"source {number}: {one_line(source)}")
    out.print()
    kernels = [column["kernels"] for column in data["columns"]]
    speeds = (data["measured"]["kernels"], *kernels) if kernels else ("speed",)
    rows = (
        (
            f"{row['op']} {row['variant']}".strip(),
            row["provider"].removesuffix("ExecutionProvider"),
            row["verdict"],
            sources.index(row["source"]) + 1,
            *_speeds(row, kernels),
            one_line(row["sizes"]),
        )
        for row in data["costs"]
    )
    out.print(table(("form", "on", "verdict", "source", *speeds, "sizes"), rows, text=5 + len(speeds), prose="sizes"))


def _speeds(row: Mapping[str, Any], others: Sequence[str]) -> list[str]:
    """The speed on the table's own processors, and on others."""
    if not row["speeds"]:
        return [_speed(row), *(["-"] * len(others))]
    own = next((speed for kernels, speed in row["speeds"].items() if kernels not in others), None)
    return [
        _speed({"speed": own}),
        *(between(*row["speeds"][name]) if name in row["speeds"] else "-" for name in others),
    ]


def _circumstances(measured: Mapping[str, Any]) -> str:
    threads = "1 thread" if measured["threads"] == 1 else f"{measured['threads']} threads"
    return f"ONNX Runtime {measured['onnxruntime']} on {one_line(measured['processor'])}, {threads}"


def _speed(row: Mapping[str, Any]) -> str:
    return "not measured" if row["speed"] is None else between(*row["speed"])


def compared(first: CostTable, second: CostTable) -> dict[str, Any]:
    """Where two tables differ, as data that json can write.

    Args:
        first: A table.
        second: Another one.
    """
    every = differences(first, second)
    return {
        "schema": 1,
        "a": {**costs.described(first), "measured": structs.asdict(first.measured)},
        "b": {**costs.described(second), "measured": structs.asdict(second.measured)},
        "differences": [_difference(each) for each in every if each.is_contrary],
        "only_a": [_about(each) for each in every if each.second is None],
        "only_b": [_about(each) for each in every if each.first is None],
    }


def _about(difference: Difference) -> dict[str, Any]:
    return {
        "op": str(difference.form._replace(variant="")),
        "variant": difference.form.variant,
        "provider": difference.provider,
        "at": in_sizes(difference.at),
    }


def _difference(difference: Difference) -> dict[str, Any]:
    sides = {"a": difference.first, "b": difference.second}
    said = {
        name: {"verdict": cost.verdict.value, "speed": None if cost.speed is None else list(cost.speed)}
        for name, cost in sides.items()
        if cost is not None
    }
    return {**_about(difference), **said}


def show_comparison(data: Mapping[str, Any], out: Console) -> None:
    """Print where two tables differ.

    Args:
        data: From `compared`.
        out: The console.
    """
    for name in ("a", "b"):
        one = data[name]
        measured = f", measured with {_circumstances(one['measured'])}" if one["measured"]["onnxruntime"] else ""
        say(out, f"{name.upper()}: {costs.table_in_words(one)}{measured}")
    out.print()
    rows = (
        (
            f"{row['op']} {row['variant']}".strip(),
            row["at"],
            *(f"{row[name]['verdict']}, {_speed(row[name])}" for name in ("a", "b")),
        )
        for row in data["differences"]
    )
    if data["differences"]:
        out.print(table(("form", "at", "in A", "in B"), rows, text=4))
    else:
        say(out, "no verdict differs")
    for name in ("a", "b"):
        if data[f"only_{name}"]:
            say(out, f"only {name.upper()} knows {len(data[f'only_{name}'])} more")
