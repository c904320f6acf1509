"""What was measured with and where, for people: out of what `ortopt.measurement.inputs` records in reports."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ortopt.terminal_text import one_line

OTHER_SIZES: Final = "not at all representative sizes"
"""How a line begins that says why something was measured at others."""

_SHOWN: Final = 4


def sizes_in_words(sizes: Mapping[str, int]) -> str:
    """Sizes of dimensions for people, e.g. ``batch=1, seq=16``."""
    return ", ".join(f"{one_line(name)}={size}" for name, size in sizes.items())


def place_in_words(data: Mapping[str, Any]) -> str:
    """Where a figure was measured, in few words: the sizes of the open dimensions, else the inputs' shapes.

    Args:
        data: From `StoredInputs.as_dict`.
    """
    return sizes_in_words(data["sizes"]) or shapes_in_words(data["inputs"])


def inputs_in_words(data: Mapping[str, Any]) -> str:
    """What was measured with, e.g. ``ids int64[1, 16] (batch=1, seq=16)``.

    Args:
        data: From `StoredInputs.as_dict`.
    """
    sizes = f" ({sizes_in_words(data['sizes'])})" if data["sizes"] else ""
    return f"{shapes_in_words(data['inputs'])}{sizes}"


def shapes_in_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Inputs for people, the first few: ``ids int64[1, 16], mask int64[1, 16]``.

    Args:
        rows: From `described`.
    """
    shown = [f"{one_line(row['name'])} {row['dtype']}{row['shape']}" for row in rows[:_SHOWN]]
    shown += [f"{len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    return ", ".join(shown) or "no inputs"


def in_words(data: Mapping[str, Any], threads: int, providers: Iterable[str]) -> list[str]:
    """What was measured with and where, for people; why at other sizes than the representative ones, where that is so.

    Args:
        data: From `StoredInputs.as_dict`.
        threads: Threads within an op; 0 for ONNX Runtime's default.
        providers: Full names.
    """
    count = f"{threads} thread{'' if threads == 1 else 's'}"
    if threads == 0:
        count = f"ONNX Runtime's default number of threads ({os.cpu_count()} processors here)"
    lines = [f"measured with {inputs_in_words(data)}; {count}; {', '.join(providers)}"]
    return lines + ([f"{OTHER_SIZES}: {data['fallback']}"] if data["fallback"] else [])
