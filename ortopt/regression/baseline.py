"""The baseline: facts of each model in a file that a team reviews, one line a fact, in the order of names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from ortopt import documents
from ortopt.errors import InvalidModelError
from ortopt.regression.facts import Facts, checked, measured_alike
from ortopt.regression.thresholds import Threshold
from ortopt.terminal_text import quoted

SCHEMA: Final = 1
"""Raised when a fact changes its meaning or goes; new facts do not raise it."""

MEASURED: Final = ("seconds", "memory", "error")
"""Facts that change from run to run: a file keeps them while they stay near."""

_LEFT_OUT: Final = frozenset({"reasons"})


@dataclass(frozen=True, slots=True)
class Baseline:
    """Facts to compare with.

    Attributes:
        versions: The versions that they were found with.
        models: Facts by the case's name.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, Facts] = field(default_factory=dict)

    def text(self) -> str:
        """The file's contents."""
        data = {"schema": SCHEMA, "versions": dict(self.versions), "models": dict(self.models)}
        return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def read(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        InvalidModelError: There is none, or it is none.
    """
    if not path.exists():
        raise InvalidModelError(f"{quoted(str(path))}: there is no such file (--update writes a first baseline)")
    data = documents.read_json(path, _Document, _WHAT, schema=SCHEMA)
    for name, facts in data.models.items():
        try:
            checked(facts, whole=True)
        except ValueError as error:
            raise documents.invalid(path, _WHAT, f"{quoted(name)}: {error}") from error
    return Baseline(data.versions, data.models)


_WHAT: Final = "no baseline of ortopt check"


class _Document(Struct):
    schema: int
    models: dict[str, dict[str, Any]]
    versions: dict[str, str] = {}


def updated(
    old: Baseline,
    new: Mapping[str, Facts],
    versions: Mapping[str, str],
    thresholds: Mapping[str, Mapping[str, Threshold]],
) -> Baseline:
    """A baseline with the facts of a run.

    What was measured is kept where it has not clearly changed, so that a file changes only where something did.

    Args:
        old: The baseline until now.
        new: Facts of the models that have a result, by the case's name.
        versions: The versions of the run.
        thresholds: By the case's name.
    """
    models: dict[str, Facts] = {}
    for name, facts in new.items():
        before = old.models.get(name, {})
        kept = {key: value for key, value in facts.items() if key not in _LEFT_OUT}
        if before.get("model") == facts.get("model") and before.get("options") == facts.get("options"):
            kept |= {key: before[key] for key in MEASURED if _is_near(before, facts, key, thresholds[name])}
            if "latency" in before and not _has_clearly_changed(before, facts):
                kept["latency"] = before["latency"]
        models[name] = kept
    return Baseline(versions, models)


def _is_near(before: Facts, now: Facts, key: str, thresholds: Mapping[str, Threshold]) -> bool:
    old, new = before.get(key), now.get(key)
    if not isinstance(old, int | float) or not isinstance(new, int | float):
        return old == new and key in before
    return thresholds[key].floor(old) <= new <= thresholds[key].limit(old)


def _has_clearly_changed(before: Facts, now: Facts) -> bool:
    """Whether the intervals of two measurements of latency are apart, or they were made at other sizes."""
    old: Any = before["latency"]
    new: Any = now.get("latency")
    if new is None:
        return False
    return new["low"] > old["high"] or new["high"] < old["low"] or not measured_alike(new, old)
