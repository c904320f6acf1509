"""How far fusions reach: `python -m benchmarks.reach` (`make reach`).

Each model is optimized at -O3, unverified, for the CPU and for CUDA with every fusion that the provider has a kernel
for, and for the CPU as by default. The blocks that are single ops then are counted against those that the architecture
has, which people wrote down: in models/blocks.json for the zoo, in a folder's expected.json for exports. For what is
missing the passes' own reasons are listed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.reach import tables
from benchmarks.reach.expectation import Expected, of_folder, of_zoo
from benchmarks.reach.measure import SETTINGS, Outcome, before, measure


def run(models: Sequence[Expected], settings: Sequence[str]) -> list[Outcome]:
    """Measure every model under every setting, and as it is."""
    outcomes = []
    for number, model in enumerate(models, 1):
        print(f"{number} of {len(models)}: {model.name}", file=sys.stderr, flush=True)
        outcomes.append(before(model))
        outcomes += [measure(model, setting) for setting in SETTINGS if setting.name in settings]
    return outcomes


def report(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print all tables."""
    console.print(tables.shares(outcomes))
    console.print(tables.families(outcomes))
    for setting in dict.fromkeys(one.setting for one in outcomes if one.setting != "original"):
        console.print(tables.missed(outcomes, setting))
    for line in tables.surplus(outcomes):
        console.print(line, markup=False)


def main() -> None:
    """Read the command line, measure, print the report, write the JSON."""
    names = [setting.name for setting in SETTINGS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reach", description=__doc__.splitlines()[0])
    parser.add_argument("--exports", type=Path, help="a folder of python -m benchmarks.exports, instead of the zoo")
    parser.add_argument("--set", choices=("tuned", "aside", "all"), default="tuned", help="which of the exports")
    parser.add_argument("--models", default="", help="names by commas (default all)")
    parser.add_argument("--settings", default=",".join(names), help=f"by commas (default {','.join(names)})")
    parser.add_argument("--json", type=Path, default=Path("bench-out/reach.json"), help="where the data is written")
    options = parser.parse_args()
    wanted = options.models.split(",") if options.models else []
    if options.exports:
        chosen = {"tuned": False, "aside": True, "all": None}[options.set]
        models = [one for one in of_folder(options.exports, set_aside=chosen) if not wanted or one.name in wanted]
    else:
        models = of_zoo(wanted)
    outcomes = run(models, options.settings.split(","))
    report(outcomes, Console(width=None if sys.stdout.isatty() else 200))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps([one.as_dict() for one in outcomes], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
