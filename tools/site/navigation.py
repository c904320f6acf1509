"""The menu of the site."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tools.site.pass_pages import LEVELS
from tools.site.reference import MODULES

MENU: dict[str, dict[str, str]] = {
    "Start": {"ortopt": "index.md", "Levels": "levels.md", "Options": "options.md", "Cookbook": "cookbook.md"},
    "Coming from": {
        "onnxslim": "coming_from/onnxslim.md",
        "onnxsim": "coming_from/onnxsim.md",
        "ONNX Runtime offline": "coming_from/onnxruntime.md",
        "Optimum": "coming_from/optimum.md",
        "Polygraphy": "coming_from/polygraphy.md",
    },
    "Guides": {
        "Verification": "verification.md",
        "Many models, in CI": "ci.md",
        "The report as data": "json.md",
        "Fusion groups": "groups.md",
        "The runtime": "runtime.md",
        "torch, notebooks, Optimum, Olive": "integrations.md",
    },
    "Passes": {},
    "Python": {},
    "Developers": {
        "Writing passes": "writing_passes.md",
        "Architecture": "architecture.md",
        "Glossary": "glossary.md",
        "Benchmarks": "benchmarks.md",
        "Forms that are not taken": "losers.md",
        "Contributing": "contributing.md",
        "Security": "security.md",
        "Changes": "changelog.md",
    },
}
"""Pages by section. Those of passes and modules are added, and other written pages come under Guides."""


def navigation(passes: Iterable[Mapping[str, Any]], written: Mapping[str, str]) -> str:
    """The menu as TOML.

    Args:
        passes: What the passes declare.
        written: The written pages by file name.
    """
    sections = {name: [_entry(title, page) for title, page in pages.items()] for name, pages in MENU.items()}
    known = {page for pages in MENU.values() for page in pages.values()}
    sections["Guides"] += [_entry(_title(text), page) for page, text in written.items() if page not in known]
    passes = list(passes)
    by_level = [
        (
            f"Level {level}",
            [_entry(row["name"], f"passes/{row['name']}.md") for row in passes if row["levels"][0] == level],
        )
        for level in LEVELS
    ]
    sections["Passes"] = [_entry("All passes", "passes/index.md"), *(_section(*each) for each in by_level)]
    modules = [_entry(name, f"reference/{name}.md") for name in MODULES]
    sections["Python"] = [_entry("Overview", "reference/index.md"), *modules]
    return f"[{', '.join(_section(name, entries) for name, entries in sections.items())}]"


def _title(text: str) -> str:
    """The first heading of a page, without marks of code."""
    return text.lstrip().partition("\n")[0].removeprefix("# ").replace("`", "")


def _entry(title: str, page: str) -> str:
    return f"{{{json.dumps(title)} = {json.dumps(page)}}}"


def _section(title: str, entries: list[str]) -> str:
    return f"{{{json.dumps(title)} = [{', '.join(entries)}]}}"
