"""What arrays hold, in a few figures: extremes, mean, what is not finite, and all elements of small ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ortopt.reporting.report import plain
from ortopt.reporting.tables import FittingTable, table
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    import numpy as np

_SMALL: Final = 8
"""Elements of an array of which all are shown."""

_NUMBERS: Final = "biufV"
"""Kinds of dtypes that are numbers with an order; V are those that numpy lacks, such as bfloat16."""


def describe(name: str, value: Any) -> list[dict[str, Any]]:
    """A value of a model as data that json can write; of a sequence also its elements, as ``y[0]`` and so on.

    Args:
        name: Its name.
        value: An array of any shape and dtype, a list of arrays, a mapping, or None.

    Returns:
        Rows with ``name``, ``dtype``, ``shape`` (null for what is no array), ``numbers``: ``min``, ``mean``, ``max`` of
        the finite elements, and how many are ``nan`` and ``inf`` (null where there are no numbers), and ``values``: the
        elements, flat, where there are at most 8.
    """
    if isinstance(value, list | tuple):
        items = [row for i, item in enumerate(value) for row in describe(f"{name}[{i}]", item)]
        return [_no_array(name, f"sequence of {len(value)}"), *items]
    if isinstance(value, dict):
        return [_no_array(name, f"map of {len(value)}")]
    if value is None:
        return [_no_array(name, "nothing")]
    return [
        {
            "name": name,
            "dtype": "string" if value.dtype.kind in "OU" else str(value.dtype),
            "shape": list(value.shape),
            "numbers": _numbers(value),
            "values": plain(value.reshape(-1).tolist()) if value.size <= _SMALL else None,
        }
    ]


def _no_array(name: str, dtype: str) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": None, "numbers": None, "values": None}


def _numbers(array: np.ndarray[Any, Any]) -> dict[str, Any] | None:
    """The figures of an array of numbers; None where there are none."""
    import numpy as np

    if array.dtype.kind not in _NUMBERS or not array.size:
        return None
    if array.dtype.kind in "biu":
        low, high = array.min(), array.max()
        return {"min": int(low), "mean": float(array.mean(dtype=float)), "max": int(high), "nan": 0, "inf": 0}
    wide = array.astype(float)  # half floats would overflow in a sum
    finite = wide[np.isfinite(wide)]
    figures = [float(of(finite)) for of in (np.min, np.mean, np.max)] if finite.size else [None] * 3
    counts = {"nan": int(np.isnan(wide).sum()), "inf": int(np.isinf(wide).sum())}
    return {**dict(zip(("min", "mean", "max"), plain(figures), strict=True)), **counts}


def values_table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> FittingTable:
    """Values as a table, one line each.

    Args:
        rows: What each is (``input``, ``output``), and from `describe`.
    """
    headers: tuple[str, ...] = ("", "name", "type", "shape", "min", "mean", "max", "not finite")
    cells = [_cells(kind, row) for kind, row in rows]
    if not any(row[-1] for row in cells):
        headers, cells = headers[:-1], [row[:-1] for row in cells]
    return table(headers, cells, text=4, spare=("mean",))


def _cells(kind: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    numbers = row["numbers"]
    figures = [""] * 3 if numbers is None else [_figure(numbers[key]) for key in ("min", "mean", "max")]
    counts = [] if numbers is None else [f"{numbers[key]} {said}" for key, said in _SPECIAL.items() if numbers[key]]
    shape = "" if row["shape"] is None else str(row["shape"])
    return (kind, one_line(row["name"]), row["dtype"], shape, *figures, ", ".join(counts))


_SPECIAL: Final = {"nan": "NaN", "inf": "inf"}


def _figure(number: Any) -> str:
    return "" if number is None else f"{number:.4g}" if isinstance(number, float) else str(number)


def small_values(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each array of few elements.

    Args:
        rows: From `describe`.
    """
    for row in rows:
        if row["values"]:
            elements = ", ".join(one_line(one) if isinstance(one, str) else _figure(one) for one in row["values"])
            yield f"{one_line(row['name'])}: {elements}"
