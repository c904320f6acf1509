"""The results of a check for others than its terminal: Markdown for a pull request, JUnit, annotations, a page."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ortopt import documents
from ortopt.errors import OrtoptError
from ortopt.regression.facts import latency_of
from ortopt.regression.results import EXIT_CODES, Check, Result, Status
from ortopt.reporting.page.pages import index
from ortopt.reporting.report import size
from ortopt.terminal_text import one_line

LIMIT: Final = 65_000
"""Characters that the Markdown has at most: a comment of GitHub takes 65,536, a marker in front of it among them."""

_MAX_SENTENCE: Final = 500
"""Characters of a sentence, and of a name."""

_QUIET: Final = (Status.SAME, Status.DONE, Status.UNCHANGED, Status.SKIPPED)


def markdown(check: Check) -> str:
    """The page: what fails first, then what else is to be told, folded; of what does not fit, how much there is.

    Args:
        check: The results.
    """
    counts = ", ".join(f"{count} {status}" for status, count in check.counts().items())
    lines = [f"## {check.title}", "", f"{_cell(check.scope)}: {counts or 'nothing to check'}", ""]
    lines += [f"- {_cell(note)}" for note in (*check.notes, *check.advice())]
    if check.stopped:
        lines.append("- interrupted: results are missing")
    if check.missing:
        lines.append(f"- {len(check.missing)} models of the baseline were not checked: {_names(check.missing)}")
    text = "\n".join((*lines, ""))[: LIMIT // 2]
    failed = [result for result in check.ranked if result.is_failure]
    told = [result for result in check.ranked if not result.is_failure and result.status not in _QUIET]
    for title, results, head, row in (
        ("", failed, _TOLD, _told),
        ("What is no failure", told, _TOLD, _told),
        ("All models", check.ranked, _FIGURES, _figures),
    ):
        if results:
            text += _section(title, results, head, row, LIMIT - len(text))
    return text


_TOLD: Final = ("| model | what | says |", "| --- | --- | --- |")
_FIGURES: Final = (
    "| model | what | nodes | size | error | latency | seconds |",
    "| --- | --- | --: | --: | --: | --: | --: |",
)


def _section(
    title: str, results: Sequence[Result], head: Iterable[str], row: Callable[[Result], str], room: int
) -> str:
    """A table of results, folded where it has a title; of those that have no room, how many there are."""
    folded = f"<details><summary>{title} ({len(results)})</summary>\n\n" if title else ""
    begin, end = "\n" + folded + "".join(f"{line}\n" for line in head), "\n</details>\n" if title else ""
    room -= len(rest := _rest(results))
    alone = rest if room >= 0 else ""
    room -= len(begin) + len(end)
    rows: list[str] = []
    for result in results:
        line = f"{row(result)}\n"
        if len(line) > room:
            break
        room -= len(line)
        rows.append(line)
    if not rows:
        return alone
    return begin + "".join(rows) + _rest(results[len(rows) :]) + end


def _rest(results: Iterable[Result]) -> str:
    counts = Counter(result.status.value for result in results)
    if not counts:
        return ""
    return f"\n(And {', '.join(f'{number} {status}' for status, number in counts.items())}; `--json` has all of it.)\n"


def _told(result: Result) -> str:
    """A row with what is said of a model: the first sentence, and the others folded."""
    says = [_cell(line) for line in (*result.says(), result.reason)[:_MAX_SAID] if line]
    told = "".join(says[:1])
    if says[1:]:
        told = f"<details><summary>{told}</summary>{'<br>'.join(says[1:])}</details>"
    return f"| <code>{_cell(result.name)}</code> | {result.status.value} | {told} |"


_MAX_SAID: Final = 7
"""How many sentences are said of a model."""


def _figures(result: Result) -> str:
    facts = result.facts
    error = facts.get("error", "")
    cells = (
        facts.get("nodes", ""),
        size(facts["size"]) if "size" in facts else "",
        f"{error:.2g}" if isinstance(error, float) else error,
        latency_of(facts),
        f"{result.seconds:.1f}" if result.seconds else "",
    )
    return f"| <code>{_cell(result.name)}</code> | {result.status.value} | {' | '.join(map(str, cells))} |"


def _names(names: Iterable[str]) -> str:
    shown = [_cell(name) for name in names]
    return ", ".join((*shown[:10], *(["…"] if len(shown) > 10 else [])))


_ESCAPES: Final = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "@\u200b", **{letter: f"\\{letter}" for letter in "\\`*_[]|~#"}}
)
"""So that markup is none, and nobody is told of a name with an @."""


def _cell(said: str) -> str:
    """A text in a cell."""
    line = "".join(letter for letter in " ".join(said.split()) if letter.isprintable())
    line = line if len(line) <= _MAX_SENTENCE else f"{line[:_MAX_SENTENCE]}…"
    return line.translate(_ESCAPES)


_ERRORS: Final = (Status.BROKEN,)
_SKIPPED: Final = (Status.SKIPPED, Status.EXPECTED, Status.UNCHANGED)


def junit(check: Check) -> str:
    """The file's contents.

    Args:
        check: The results.
    """
    suite = ET.Element("testsuite", name="ortopt check", time=f"{check.seconds:.3f}")
    suite.set("tests", str(len(check.results)))
    suite.set("errors", str(sum(result.status in _ERRORS for result in check.results)))
    suite.set("failures", str(sum(result.is_failure and result.status not in _ERRORS for result in check.results)))
    suite.set("skipped", str(sum(result.status in _SKIPPED for result in check.results)))
    properties = ET.SubElement(suite, "properties")
    for name, version in check.versions.items():
        ET.SubElement(properties, "property", name=name, value=version)
    for result in check.results:
        suite.append(_case(result))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _case(result: Result) -> ET.Element:
    group = "ortopt.check" + (f".{result.configuration}" if result.configuration else "")
    case = ET.Element("testcase", name=_clean(result.name), classname=_clean(group), time=f"{result.seconds:.3f}")
    says = [_clean(line) for line in result.says()]
    if result.is_failure:
        tag = "error" if result.status in _ERRORS else "failure"
        failure = ET.SubElement(case, tag, type=result.status.value, message=says[0] if says else result.status.value)
        failure.text = "\n".join(says)
    elif result.status in _SKIPPED:
        ET.SubElement(case, "skipped", message=_clean(f"{result.status.value}: {result.reason}".removesuffix(": ")))
    if not result.is_failure:
        ET.SubElement(case, "system-out").text = "\n".join((result.status.value, *says))
    return case


def _clean(line: str) -> str:
    """A text without the control characters that XML lacks."""
    return "".join(letter if letter.isprintable() or letter == "\t" else "?" for letter in line)


_KINDS: Final[Mapping[Status, str]] = {
    **dict.fromkeys(Status, "good"),  # in the order of `Status`: the worst first
    **dict.fromkeys(EXIT_CODES, "bad"),
    Status.EXPECTED: "unknown",
    Status.UNCHANGED: "",
    Status.SKIPPED: "",
}
"""How a status is coloured; without a colour where nothing has run."""


def page(check: Check) -> str:
    """The page.

    Args:
        check: The results.
    """
    notes = [*check.notes, *check.advice(), *(["interrupted: results are missing"] if check.stopped else [])]
    if check.missing:
        notes.append(f"{len(check.missing)} models of the baseline were not checked: {', '.join(check.missing)}")
    against = f", against {check.baseline}" if check.baseline and not check.compared else ""
    kinds = {status.value: kind for status, kind in _KINDS.items()}
    return index(check.title, f"{check.scope}{against}", kinds, map(_row, check.results), notes)


def _row(result: Result) -> dict[str, Any]:
    facts = result.facts
    error = facts.get("error")
    rewrites = facts.get("rewrites")
    return {
        "name": result.name,
        "status": result.status.value,
        "nodes": facts.get("nodes"),
        "size": facts.get("size"),
        "error": error if isinstance(error, float | int) else error and str(error),
        "rewrites": sum(rewrites.values()) if rewrites else None,
        "seconds": result.seconds or None,
        "latency": (facts.get("latency") or {}).get("ratio"),
        "says": [*result.says(), *([result.reason] if result.reason else [])],
    }


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


def in_github_actions() -> bool:
    """Whether this process runs in GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotation_lines(check: Check, places: Mapping[str, Place]) -> Iterator[str]:
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


def annotated_places(check: Check, models: Mapping[str, Path | None]) -> dict[str, Place]:
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
