"""Build the site: ``python -m tools.site [--only PASSES] [--sources]``; the result is below ``site/``."""

from __future__ import annotations

import argparse
import html
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ortopt import __version__
from tools.site import pages, pass_pages, reference
from tools.site.navigation import navigation

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "build" / "site"
SITE = ROOT / "site"
HERE = Path(__file__).parent


def main() -> None:
    """Write the sources and run Zensical on them."""
    arguments = _arguments()
    write_sources(SOURCES, arguments.only)
    if arguments.sources:
        return
    zensical = Path(sys.executable).with_name("zensical")
    subprocess.run([zensical, "build", "--clean", "--strict"], cwd=SOURCES, check=True)
    publish(SOURCES / "html", SITE, __version__)
    print(f"{SITE / 'index.html'} opens the documentation of ortopt {__version__}")


def _arguments() -> Any:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description="Build the site of the documentation.")
    parser.add_argument("--only", nargs="*", metavar="PASS", help="pages of these passes only")
    parser.add_argument("--sources", action="store_true", help="stop after the pages are written, before HTML is made")
    return parser.parse_args()


def write_sources(folder: Path, only: list[str] | None = None) -> None:
    """Write all pages and the configuration.

    Args:
        folder: Where to; what is there is removed.
        only: The passes that get a page; all if None.
    """
    shutil.rmtree(folder, ignore_errors=True)
    described = pass_pages.described()
    names = [row["name"] for row in described]
    written = pages.pages()
    found = dict(written)
    found |= {f"reference/{name}": text for name, text in reference.pages().items()}
    found["passes/index.md"] = pass_pages.index(described)
    for row in described:
        chosen = only is None or row["name"] in only
        found[f"passes/{row['name']}.md"] = pass_pages.page(row, names) if chosen else f"# {row['name']}\n"
    for name, text in found.items():
        path = folder / "pages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copy(HERE / "site.css", folder / "pages" / "site.css")
    template = (HERE / "zensical.toml").read_text(encoding="utf-8")
    values = {"@VERSION@": __version__, "@NAVIGATION@": navigation(described, written), "@ROOT@": str(ROOT)}
    for mark, value in values.items():
        template = template.replace(mark, value)
    (folder / "zensical.toml").write_text(template, encoding="utf-8")


def publish(made: Path, site: Path, version: str) -> None:
    """Put the pages of one version beside those of others, with the list that the version menu reads.

    Args:
        made: The HTML of the version.
        site: The site; other versions in it stay.
        version: The version.
    """
    site.mkdir(exist_ok=True)
    shutil.rmtree(site / version, ignore_errors=True)
    shutil.copytree(made, site / version)
    versions = sorted((path.parent.name for path in site.glob("*/index.html")), key=_numbers, reverse=True)
    entries = [
        {"version": name, "title": name, "aliases": ["latest"] * (not place)} for place, name in enumerate(versions)
    ]
    (site / "versions.json").write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    newest = html.escape(versions[0])
    page = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={newest}/index.html">'
    (site / "index.html").write_text(f'{page}<a href="{newest}/index.html">ortopt {newest}</a>\n', encoding="utf-8")


def _numbers(version: str) -> list[tuple[int, str]]:
    return [(int(part) if part.isdigit() else -1, part) for part in version.split(".")]


if __name__ == "__main__":
    main()
