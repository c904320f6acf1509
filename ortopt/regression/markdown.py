"""The results of a check as Markdown: what a reader of a pull request wants to know first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ortopt.regression.results import Check, Result, Status
from ortopt.reporting.report import size

LIMIT: Final = 900_000
"""Characters that the page has at most: a job summary of GitHub takes a megabyte."""

_QUIET: Final = (Status.SAME, Status.DONE, Status.UNCHANGED, Status.SKIPPED)


def text(check: Check) -> str:
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


__all__ = ["LIMIT", "text"]
