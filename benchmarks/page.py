"""Renews all figures of docs/benchmarks.md in one go: `python -m benchmarks.page` (`make bench`).

One benchmark runs after the other, each as its own command, and what they print goes between the page's marks,
``<!-- NAME -->`` and ``<!-- end of NAME -->``. The page is written once all of them are done, with one date: no two of
its tables are of different versions. With ``--models`` or ``--parts`` the figures are printed only. What a benchmark
of the whole zoo printed is kept in a folder as well, unless it failed; with ``--keep`` those that are there are not run
again, and the date is that of the first of them: for a run that ended early, with the same versions.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks import tools
from benchmarks.process import ROOT
from benchmarks.tables import machine

PAGE: Final = ROOT / "docs" / "benchmarks.md"


class Part(NamedTuple):
    """A benchmark whose output stands on the page.

    Attributes:
        command: Its module below `benchmarks`, and its arguments.
        takes_models: Whether ``--models`` narrows it.
        is_markdown: Whether it prints Markdown; else it is shown as it is.
    """

    command: tuple[str, ...]
    takes_models: bool = True
    is_markdown: bool = True


PARTS: Final = {
    "files": Part(("bench", "--no-latency", "--repeat", "1")),
    "speed": Part(("speed", "--rounds", "1", "--turns", "9")),
    "half precision": Part(("half_precision",)),
    "reach": Part(("reach",), is_markdown=False),
    "verification": Part(("verification", "--repeat", "1")),
    "report": Part(("report", "--repeat", "1")),
    "decode": Part(("decode", "--rounds", "3"), takes_models=False),
    "groups": Part(("sessions", "--pairs", "3"), takes_models=False, is_markdown=False),
    "check": Part(("regression", "--parts", "jobs,many,overhead"), takes_models=False),
    "scale": Part(("scale", "--repeat", "1"), takes_models=False),
}

_SINCE: Final = "measured"
"""The mark of the line that says when and with what."""


def run(part: Part, models: str) -> tuple[str, int]:
    """The Markdown of a benchmark, which runs now, and its exit status: 1 where its figures are not what they shall be.

    Args:
        part: The benchmark.
        models: Names in the zoo, by commas; empty for all.

    Raises:
        SystemExit: It failed, and has no figures.
    """
    narrowed = ["--models", models] if models and part.takes_models else []
    module, *arguments = part.command
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments, *narrowed]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    text = done.stdout.strip("\n")
    if done.returncode and not text:
        raise SystemExit(f"{' '.join(part.command)} ended with {done.returncode}")
    return text if part.is_markdown else f"```text\n{text}\n```", done.returncode


def circumstances(day: datetime.date, load: float) -> str:
    """The line that says when everything was measured, where, and with which versions.

    Args:
        day: The day on which it began.
        load: The average load of the machine before it began.
    """
    here = machine()
    versions = ", ".join(f"{name} {version}" for name, version in tools.versions().items())
    return (
        f"{day}: {here['cpu']}, {here['cores']} cores, {here['memory_gib']} GiB, {here['system']}, "
        f"Python {here['python']}, load {load} before. {versions}."
    )


def filled(page: str, figures: Mapping[str, str]) -> str:
    """A page with other figures between its marks.

    Args:
        page: The page.
        figures: The Markdown for each mark.

    Raises:
        ValueError: A mark is not there exactly once.
    """
    for name, text in figures.items():
        marks = re.compile(rf"(?<=<!-- {re.escape(name)} -->\n).*?(?=<!-- end of {re.escape(name)} -->)", re.S)
        literal = text.replace("\\", r"\\")
        page, written = marks.subn(f"\n{literal}\n\n", page)
        if written != 1:
            raise ValueError(f"the page has {written} places for {name}")
    return page


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, run the benchmarks, write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS), help="names by commas (default all)")
    parser.add_argument("--models", default="", help="names in the zoo by commas (default all)")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page that is written")
    parser.add_argument("--out", type=Path, default=ROOT / "bench-out" / "page", help="where each part is kept")
    parser.add_argument("--keep", action="store_true", help="run no part again that is there")
    options = parser.parse_args(arguments)
    chosen = options.parts.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"no part is named {', '.join(unknown)}")
    day, load = datetime.datetime.now(tz=datetime.UTC).date(), float(machine()["load"])
    figures = {_SINCE: ""}  # what comes first on the page
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in chosen:
        kept = options.out / f"{name}.md"
        if options.keep and not options.models and kept.exists():
            figures[name] = kept.read_text(encoding="utf-8")
            day = min(day, datetime.datetime.fromtimestamp(kept.stat().st_mtime, tz=datetime.UTC).date())
            continue
        print(name, file=sys.stderr, flush=True)
        figures[name], status = run(PARTS[name], options.models)
        if status:
            failed.append(f"{name} ended with {status}")
        elif not options.models:
            kept.write_text(figures[name], encoding="utf-8")
    figures[_SINCE] = circumstances(day, load)
    if options.models or set(chosen) != set(PARTS):
        print("\n\n".join(figures.values()))
    else:
        options.page.write_text(filled(options.page.read_text(encoding="utf-8"), figures), encoding="utf-8")
        print(f"{options.page} is written")
    if failed:
        raise SystemExit("; ".join(failed))


if __name__ == "__main__":
    main()
