"""The results of a check for others than its terminal: Markdown for a pull request, JUnit for CI servers, a page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ortopt.regression.results import EXIT_CODES, Check, Result, Status
from ortopt.reporting.page.document import index
from ortopt.reporting.report import size

LIMIT: Final = 900_000
"""Characters that the page has at most: a job summary of GitHub takes a megabyte."""

_QUIET: Final = (Status.SAME, Status.DONE, Status.UNCHANGED, Status.SKIPPED)


def markdown(check: Check) -> str:
    """The page.

    Args:
        check: The results.
    """
    verdict = "failed" if check.exit_code else "passed"
    counts = ", ".join(f"{count} {status}" for status, count in check.counts().items()) or "no models"
    lines = [f"## ortopt check {verdict}", "", f"{len(check.results)} models: {counts}. {check.seconds:.0f} s.", ""]
    lines += [f"- {_cell(note)}" for note in check.notes]
    if check.stopped:
        lines.append("- interrupted: results are missing")
    if check.missing:
        lines.append(f"- {len(check.missing)} models of the baseline were not checked: {_names(check.missing)}")
    for title, chosen in _sections(check):
        lines += ["", f"### {title}", "", *_told(chosen)]
    lines += ["", "<details><summary>All models</summary>", "", *_table(check.results), "", "</details>", ""]
    return _shortened(lines)


def _sections(check: Check) -> Iterable[tuple[str, list[Result]]]:
    failed = [result for result in check.results if result.is_failure]
    other = [result for result in check.results if not result.is_failure and result.status not in _QUIET]
    if failed:
        yield "Failed", failed
    for title, status in (
        ("Better than the baseline", Status.BETTER),
        ("No longer failing", Status.FIXED),
        ("Accepted", Status.ACCEPTED),
        ("New", Status.NEW),
        ("Changed", Status.CHANGED),
        ("Expected failures", Status.EXPECTED),
    ):
        chosen = [result for result in other if result.status is status]
        if chosen:
            yield title, chosen


def _told(results: Iterable[Result]) -> list[str]:
    lines = ["| model | what | says |", "| --- | --- | --- |"]
    for result in results:
        says = "<br>".join(_cell(line) for line in (*result.says(), *([result.reason] if result.reason else [])))
        lines.append(f"| {_cell(result.name)} | {result.status.value} | {says} |")
    return lines


def _table(results: Iterable[Result]) -> list[str]:
    lines = ["| model | what | nodes | size | error | seconds |", "| --- | --- | --: | --: | --: | --: |"]
    for result in results:
        facts = result.facts
        error = facts.get("error", "")
        cells = (
            facts.get("nodes", ""),
            size(facts["size"]) if "size" in facts else "",
            f"{error:.2g}" if isinstance(error, float) else error,
            f"{result.seconds:.1f}" if result.seconds else "",
        )
        lines.append(f"| {_cell(result.name)} | {result.status.value} | {' | '.join(map(str, cells))} |")
    return lines


def _names(names: Iterable[str]) -> str:
    shown = [_cell(name) for name in names]
    return ", ".join((*shown[:10], *(["…"] if len(shown) > 10 else [])))


def _cell(said: str) -> str:
    """A text in a cell: what would be markup is none."""
    line = " ".join(said.split())
    for letter, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        line = line.replace(letter, name)
    return "".join(f"\\{letter}" if letter in "\\`*_[]|~#" else letter for letter in line if letter.isprintable())


def _shortened(lines: list[str]) -> str:
    page: list[str] = []
    length = 0
    for line in lines:
        length += len(line) + 1
        if length > LIMIT:
            return "\n".join((*page, "", "(The rest does not fit; `--json` has all of it.)", ""))
        page.append(line)
    return "\n".join(page)


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
    says = [_clean(line) for line in result.says("worse", "note")]
    if result.is_failure:
        tag = "error" if result.status in _ERRORS else "failure"
        failure = ET.SubElement(case, tag, type=result.status.value, message=says[0] if says else result.status.value)
        failure.text = "\n".join(says)
    elif result.status in _SKIPPED:
        ET.SubElement(case, "skipped", message=_clean(f"{result.status.value}: {result.reason}".removesuffix(": ")))
    lines = [f"{result.status.value}", *map(_clean, result.says())]
    ET.SubElement(case, "system-out").text = "\n".join(lines)
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
    verdict = "failed" if check.exit_code else "passed"
    notes = [*check.notes, *(["interrupted: results are missing"] if check.stopped else [])]
    if check.missing:
        notes.append(f"{len(check.missing)} models of the baseline were not checked: {', '.join(check.missing)}")
    against = f", against {check.baseline}" if check.baseline else ""
    subtitle = f"{len(check.results)} models in {check.seconds:.0f} s{against}"
    kinds = {status.value: kind for status, kind in _KINDS.items()}
    return index(f"ortopt check {verdict}", subtitle, kinds, map(_row, check.results), notes)


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
