"""The inputs on which models are measured: the first that a model accepts, stored, and how they are described."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortopt.measurement.asking import MeasurementBudget
    from ortopt.measurement.in_turns import Version


def accepted(
    label: str,
    original: Version,
    candidates: Iterable[tuple[Mapping[str, Any], bool]],
    path: Path,
    budget: MeasurementBudget,
) -> dict[str, Any]:
    """The first inputs that a model runs on; they are stored then.

    Args:
        label: The model, as the user named it.
        original: The model.
        candidates: From `ortopt.cli.arrays.candidates`.
        path: The folder in which they are stored (`ortopt.verification.input_sets`).
        budget: Where the model runs.

    Raises:
        UsageError: The user's do not fit it.
        InvalidModelError: It runs on none.
    """
    import numpy as np

    from ortopt.cli import arrays
    from ortopt.errors import InvalidModelError, UsageError
    from ortopt.measurement.in_turns import Failure, attempt
    from ortopt.verification.input_sets import store_inputs

    first: Failure | None = None
    for feeds, drawn in candidates:
        for name, value in feeds.items():
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufcOU":
                raise UsageError(f"a measurement takes arrays of types that numpy has: input {name!r} is none")
        store_inputs(dict(feeds), path)
        failure = attempt(original, path, budget)
        if failure is None:
            return dict(feeds)
        if not drawn and failure.kind in arrays.UNFIT:
            raise UsageError(f"the inputs do not fit {label}: {failure.reason}")
        first = first or failure
        if not failure.opens or not drawn:
            raise InvalidModelError(f"{label} cannot be run: {failure.reason}")
    reason = "" if first is None else first.reason
    raise InvalidModelError(f"{label} cannot be run: {reason} ({arrays.HINT})")


def described(feeds: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The inputs, as data that json can write."""
    return [
        {"name": name, "dtype": "string" if value.dtype.kind in "OU" else str(value.dtype), "shape": list(value.shape)}
        for name, value in feeds.items()
    ]


def in_words(inputs: Iterable[Mapping[str, Any]], threads: int, providers: Iterable[str]) -> str:
    """What was measured with, for people.

    Args:
        inputs: From `described`.
        threads: Threads within an op; 0 for ONNX Runtime's default.
        providers: Full names.
    """
    sizes = ", ".join(f"{row['name']} {row['dtype']}{row['shape']}" for row in inputs) or "no inputs"
    count = f"{threads} thread{'' if threads == 1 else 's'}"
    if threads == 0:
        count = f"ONNX Runtime's default number of threads ({os.cpu_count()} processors here)"
    return f"measured with {sizes}; {count}; {', '.join(providers)}"


__all__ = ["accepted", "described", "in_words"]
