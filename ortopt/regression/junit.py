"""The results of a check as JUnit's XML, which CI servers show: a test for each model."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Final

from ortopt.regression.results import Check, Result, Status

_ERRORS: Final = (Status.BROKEN,)
_SKIPPED: Final = (Status.SKIPPED, Status.EXPECTED, Status.UNCHANGED)


def text(check: Check) -> str:
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


__all__ = ["text"]
