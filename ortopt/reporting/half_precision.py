"""A conversion to 16 bits in the report: as data, and in lines for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ortopt.terminal_text import one_line, quoted

if TYPE_CHECKING:
    from ortopt.optimization.half_precision_conversion import HalfPrecision

_SHOWN: Final = 8
"""How many reasons and names are shown; the data has all."""


def as_data(half: HalfPrecision | None) -> dict[str, Any] | None:
    """The report's field ``half_precision``; None where no conversion was asked for."""
    if half is None:
        return None
    return {
        "dtype": half.dtype,
        "nodes": half.nodes,
        "casts": half.casts,
        "float32": [{"op": op, "why": one_line(why), "count": count} for op, why, count in half.single],
        "kept": [{"node": name, "op": op} for name, op in half.kept],
        "tolerance": half.tolerance,
        "error_before": _number(half.error_before),
        "error": _number(half.error),
        "probes": half.probes,
        "not_measured": one_line(half.not_measured) if half.not_measured else None,
    }


def _number(error: float | None) -> float | str | None:
    return str(error) if error is not None and not math.isfinite(error) else error


def in_short(data: Mapping[str, Any]) -> list[str]:
    """How much of a model is in 16 bits, and at what error: clauses of one sentence.

    Args:
        data: From `as_data`; not None.
    """
    kept = [f"{len(data['kept'])} kept in float32 for that"] if data["kept"] else []
    return [_counts(data), _measured(data), *kept]


def lines(data: Mapping[str, Any] | None) -> Iterable[str]:
    """The lines for people.

    Args:
        data: From `as_data`.
    """
    if data is None:
        return
    yield f"{data['dtype']}: {_counts(data)}"
    for row in sorted(data["float32"], key=lambda row: -row["count"])[:_SHOWN]:
        yield f"  {row['count']} {one_line(row['op'])}: {row['why']}"
    yield f"  {_measured(data)}"
    if data["kept"]:
        names = ", ".join(f"{row['op']} {quoted(row['node'])}" for row in data["kept"][:_SHOWN])
        more = len(data["kept"]) - _SHOWN
        names += f" and {more} more" if more > 0 else ""
        yield f"  kept in float32, error {_shown(data['error_before'])} before: {names}"
    yield "  the speed is a GPU's: on the CPU ONNX Runtime has few kernels of 16 bits, and casts around the others"


def _counts(data: Mapping[str, Any]) -> str:
    stay = sum(row["count"] for row in data["float32"])
    return f"{data['nodes']} nodes, {stay} stay in float32, {data['casts']} Casts between them"


def _measured(data: Mapping[str, Any]) -> str:
    if data["not_measured"]:
        return f"not measured: {data['not_measured']}"
    return f"worst error {_shown(data['error'])} of a slice of an output, where {data['tolerance']:.2g} is allowed"


def _shown(error: float | str) -> str:
    return error if isinstance(error, str) else f"{error:.2g}"
