"""What a model costs as it is, optimized, and grouped: its versions by level, measured in turns, and timelines."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ortopt.errors import InvalidModelError
from ortopt.measurement.asking import MeasurementBudget
from ortopt.measurement.in_turns import Figures, Version, measure_in_turns, measure_once

GROUPED: Final = 4
"""The level whose result runs under `ortopt.InferenceSession`; those below run under ONNX Runtime."""

_MODULE: Final = "ortopt.benchmarking.child"


def version_of(level: int, path: Path) -> Version:
    """The version of a model that a level makes; 0 is the original."""
    name = "original" if level == 0 else f"-O{level}"
    return Version(name, path, _MODULE, {"level": level, "grouped": level == GROUPED, "trace": None})


def compare(
    versions: Sequence[Version], inputs: Path, effort: MeasurementBudget, traces: Path | None = None
) -> tuple[list[Figures], dict[str, Any] | None]:
    """Measure versions of a model in turns.

    Args:
        versions: As `version_of` makes them; the first is what the others' calls are compared with.
        inputs: An .npz file of plain arrays by input name.
        effort: How much.
        traces: A folder for timelines; one more process of each version, which is not measured, records one.

    Returns:
        Figures for each version; and, with ``traces``, one timeline of all, in Chrome's format.
    """
    figures = measure_in_turns(versions, inputs, effort)
    return figures, None if traces is None else _traced(figures, inputs, effort, traces)


def as_row(figures: Figures) -> dict[str, Any]:
    """The figures of a version as data that json can write."""
    version = figures.version
    row = {"name": version.name, "level": version.settings["level"], "error": figures.error or None}
    return {**row, **figures.as_dict()}


def _traced(every: Sequence[Figures], inputs: Path, effort: MeasurementBudget, folder: Path) -> dict[str, Any]:
    """One timeline of all versions, each a process of it, each beginning at 0 so that they can be compared."""
    events: list[dict[str, Any]] = []
    for number, figures in enumerate(every):
        path, version = folder / f"trace.{number}.json", figures.version
        traced = dataclasses.replace(version, settings={**version.settings, "trace": str(path)})
        if figures.error or "error" in measure_once(traced, inputs, effort):
            continue
        for event in json.loads(path.read_text(encoding="utf-8"))["traceEvents"]:
            if event["name"] == "process_name":
                event["args"]["name"] = version.name
            events.append({**event, "pid": number})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def require_original(every: Sequence[Figures]) -> None:
    """Refuse figures without anything to compare with.

    Raises:
        InvalidModelError: The first version does not run.
    """
    if every[0].error:
        raise InvalidModelError(f"{every[0].version.name} does not run: {every[0].error}")


__all__ = ["GROUPED", "as_row", "compare", "require_original", "version_of"]
