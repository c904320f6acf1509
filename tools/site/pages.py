"""The written pages (README.md, docs/ and those beside the README) as pages of the site."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from tools.site.reference import MODULES

ROOT = Path(__file__).parents[2]
BESIDE = ("CHANGELOG", "CONTRIBUTING", "SECURITY")
"""Pages in the root of the repository that the site has, too."""

_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def pages() -> dict[str, str]:
    """The pages by file name."""
    found = {"index.md": ROOT / "README.md", **{f"{name.lower()}.md": ROOT / f"{name}.md" for name in BESIDE}}
    folder = ROOT / "docs"
    found |= {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.md"))}
    return {name: _on_the_site(path, name) for name, path in found.items()}


def _on_the_site(path: Path, name: str) -> str:
    parts = _CODE.split(path.read_text(encoding="utf-8"))
    return "".join(
        part if part.startswith("```") else _LINK.sub(lambda match: _link(match, path, name), part) for part in parts
    )


def _link(match: re.Match[str], path: Path, name: str) -> str:
    """A link of a written page: to a page of the site, or only its text where the site has no such page."""
    shown, target = match[1], match[2]
    if re.match(r"[a-z]+:|#", target):
        return match[0]
    file, _, anchor = target.partition("#")
    place = _place((path.parent / file).resolve().relative_to(ROOT))
    if place is None:
        return shown
    up = "../" * (len(PurePosixPath(name).parts) - 1)
    return f"[{shown}]({up}{place}{'#' + anchor if anchor and place.count('reference/') == 0 else ''})"


def _place(file: Path) -> str | None:
    """Where the site has a file of the repository, if it does."""
    if file.suffix == ".py":
        module = ".".join(file.with_suffix("").parts)
        if file.parts[0] == "transformers" and not file.stem.startswith("_"):
            return f"passes/{file.stem}.md"
        return f"reference/{module}.md" if module in MODULES else None
    if file == Path("README.md"):
        return "index.md"
    if file.parts[0] == "docs" and file.suffix == ".md":
        return file.relative_to("docs").as_posix()
    return f"{file.stem.lower()}.md" if file.stem in BESIDE else None
