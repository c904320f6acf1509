"""The results of a check for others than its terminal: Markdown for a pull request, JUnit for CI servers, a page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ortopt.regression.facts import latency_of
from ortopt.regression.results import EXIT_CODES, Check, Result, Status
from ortopt.reporting.page.document import index
from ortopt.reporting.report import size

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
