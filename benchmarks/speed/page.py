"""Puts a run's tables into docs/benchmarks.md: `python -m benchmarks.speed.page bench-out`."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.process import ROOT
from benchmarks.speed.results import Result, result_of
from benchmarks.speed.tables import page
from benchmarks.tables import headline

PAGE = ROOT / "docs" / "benchmarks.md"
PART = re.compile(
    r"(?<=<!-- speed, written by `python -m benchmarks\.speed\.page` -->\n).*?(?=<!-- end of speed -->)", re.S
)


def part(data: Mapping[str, Any]) -> str:
    """What stands between the page's marks.

    Args:
        data: What a run has written as `speed.json`.
    """
    results: list[Result] = [result_of(one) for one in data["results"]]
    return f"\n{headline(data)}\n{page(results, data['plan']['threads'])}\n"


def main() -> None:
    """Read the command line, write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.page", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the run has written speed.json")
    data = json.loads((parser.parse_args().folder / "speed.json").read_text(encoding="utf-8"))
    text, written = PART.subn(lambda _: part(data), PAGE.read_text(encoding="utf-8"))
    if written != 1:
        raise SystemExit(f"{PAGE} has no marks to write between")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
