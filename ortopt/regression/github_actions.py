"""The results of a check as annotations, which GitHub Actions shows at the files of a change."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ortopt import documents
from ortopt.errors import OrtoptError
from ortopt.regression.results import Check, Result, Status
from ortopt.terminal_text import one_line

MAX_SHOWN: Final = 10
"""Annotations of a kind that GitHub shows of a step: of more, the last one counts and names the others."""

_MAX_MESSAGE: Final = 4_000
"""Characters of a message, before it is escaped."""

_WARNED: Final = (Status.ACCEPTED, Status.FIXED)
"""Statuses that are no failures, and that somebody should look at all the same."""


class Place(NamedTuple):
    """Where an annotation stands.

    Attributes:
        file: The file, relative to the root of the repository.
        line: The line, from 1.
    """

    file: str
    line: int


def is_here() -> bool:
    """Whether this process runs in GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def lines(check: Check, places: Mapping[str, Place]) -> Iterator[str]:
    """The lines that GitHub Actions reads: errors for failures, the worst first, and warnings.

    A warning is what has been accepted, a known failure that is none any more, and what was repaired or could not be
    verified without making the check fail.

    Args:
        check: The results.
        places: Where to annotate, by the name of the result.
    """
    failed = [result for result in check.ranked if result.is_failure]
    warned = [result for result in check.ranked if not result.is_failure and _is_warned_of(result)]
    for kind, results in (("error", failed), ("warning", warned)):
        shown = results if len(results) <= MAX_SHOWN else results[: MAX_SHOWN - 1]
        for result in shown:
            says = (f"{result.name}: {result.status.value}", *result.says(), result.reason)
            title = f"ortopt check: {result.status.value}"
            yield _command(kind, title, [line for line in says if line], places.get(result.name))
        if rest := results[len(shown) :]:
            says = (f"{len(rest)} more models:", *(f"{result.name}: {result.status.value}" for result in rest))
            yield _command(kind, "ortopt check", says, None)


def _is_warned_of(result: Result) -> bool:
    return result.status in _WARNED or bool(result.facts.get("reasons"))


def places(check: Check, models: Mapping[str, Path | None]) -> dict[str, Place]:
    """Where results are annotated: at the model, else at its facts in the baseline; nowhere outside the repository.

    Of two baselines, the facts of the second come first: they are what has changed.

    Args:
        check: The results.
        models: The models' files, as far as they are known, by the name of the result.
    """
    baseline = Path(check.compared or check.baseline) if check.baseline else None
    begins = {} if baseline is None else _lines_of(baseline, (result.name for result in check.results))
    found: dict[str, Place] = {}
    for result in check.results:
        model = models.get(result.name) or Path(result.model)
        both = [(model, 1)] if model.is_file() else []
        if baseline is not None and result.name in begins:
            both.insert(0 if check.compared else len(both), (baseline, begins[result.name]))
        file = _in_repository(both[0][0]) if both else None
        if file is not None:
            found[result.name] = Place(file, both[0][1])
    return found


def _lines_of(baseline: Path, names: Iterable[str]) -> dict[str, int]:
    """The lines of a baseline, from 1, at which the facts of models begin, by the name of the case."""
    begin = {f"  {json.dumps(name, ensure_ascii=False)}: {{": name for name in names}
    try:
        text = documents.contents(baseline).decode("utf-8") if baseline.is_file() else ""
    except (OrtoptError, UnicodeDecodeError):
        return {}
    lines_of_text = (line.rstrip("\r") for line in text.split("\n"))
    return {begin[line]: number for number, line in enumerate(lines_of_text, 1) if line in begin}


def _in_repository(path: Path) -> str | None:
    root = Path(os.environ.get("GITHUB_WORKSPACE") or ".").resolve()
    resolved = path.resolve()
    return resolved.relative_to(root).as_posix() if resolved.is_relative_to(root) else None


def _command(kind: str, title: str, says: Sequence[str], place: Place | None) -> str:
    properties = {} if place is None else {"file": place.file, "line": str(place.line)}
    written = ",".join(
        f"{name}={_escaped(value, _IN_PROPERTY)}" for name, value in {**properties, "title": title}.items()
    )
    message = "\n".join(map(one_line, says))
    return f"::{kind} {written}::{_escaped(message[:_MAX_MESSAGE], _IN_MESSAGE)}"


_IN_MESSAGE: Final = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTY: Final = {**_IN_MESSAGE, ":": "%3A", ",": "%2C"}


def _escaped(text: str, escapes: Mapping[str, str]) -> str:
    return "".join(escapes.get(letter, letter) for letter in text)
