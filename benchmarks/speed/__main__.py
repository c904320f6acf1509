"""How fast results run: `python -m benchmarks.speed [--models A,B] [--seconds 600] [--threads 1,2] [--out FOLDER]`.

Every version of a model (the original, what each tool makes of it, and the floor: its heavy nodes alone) is called in
turns with the others, in fresh processes, at representative sizes (one token and many where sizes are open). What is
measured is written after each model; a run that ended, or whose time was over, goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks import tools
from benchmarks.speed.measured import Plan, measured
from benchmarks.speed.results import Result, read
from benchmarks.speed.tables import page
from benchmarks.tables import headline, machine
from ortopt import zoo


def models(names: str) -> Iterator[tuple[str, Path | None]]:
    """Names and files: members of the zoo (their files are grown later), files, and the files of folders.

    Args:
        names: What was asked for, by commas; empty for the whole zoo.
    """
    known = zoo.names()
    for name in names.split(",") if names else known:
        path = Path(name)
        if path.is_dir():
            yield from ((file.stem, file) for file in sorted(path.glob("*.onnx")))
        elif path.suffix == ".onnx":
            yield path.stem, path.absolute()
        elif name in known:
            yield name, None
        else:
            raise SystemExit(f"{name} is no member of the zoo, no .onnx file and no folder")


def main() -> None:
    """Measure what is not known yet, and write `speed.md` and `speed.json` after each model."""
    plan, asked = _arguments()
    kept = asked.out / "speed"
    kept.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + asked.seconds
    results: list[Result] = []
    late: list[str] = []
    for tool in filter(tools.missing, plan.tools):
        print(f"{tool} is not installed: make bench installs it", file=sys.stderr)
    for name, file in list(models(asked.models)):  # all names first: a wrong one ends it before anything is measured
        source = file or zoo.cached(name)
        known = kept / f"{name}.json"
        result = read(known) if known.exists() else None
        if result is None or (result.key != plan.key(source) and not asked.keep):
            if time.monotonic() > deadline:
                late.append(name)
                continue
            print(name, file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory(prefix="ortopt-speed-") as folder:
                result = measured(name, source, plan, Path(folder))
            result.write(known)
        results.append(result)
        _write(results, plan, asked.out)
    if late:
        print(f"no time was left for {', '.join(late)}: run it again", file=sys.stderr)
    print(page(results, plan.threads))


def _write(results: list[Result], plan: Plan, out: Path) -> None:
    facts = {"machine": machine(), "versions": tools.versions(), "repeat": plan.rounds}
    text = f"{headline(facts)}\n{page(results, plan.threads)}"
    (out / "speed.md").write_text(text, encoding="utf-8")
    data = {**facts, "plan": asdict(plan), "results": [result.as_dict() for result in results]}
    (out / "speed.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _arguments() -> tuple[Plan, argparse.Namespace]:
    usual = Plan()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="", help="members of the zoo, files or folders, by commas; else the zoo")
    parser.add_argument("--tools", type=lambda text: tuple(text.split(",")), default=usual.tools)
    parser.add_argument("--threads", type=lambda text: tuple(map(int, text.split(","))), default=usual.threads)
    parser.add_argument("--rounds", type=int, default=usual.rounds, help="processes for each size")
    parser.add_argument("--turns", type=int, default=usual.turns, help="samples of each version in each process")
    parser.add_argument("--each", type=float, default=usual.seconds, help="seconds of samples for each version")
    parser.add_argument("--tune-seconds", type=float, default=0.0, help="also ours with --tune, for so long a model")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no model is begun after so many seconds")
    parser.add_argument("--keep", action="store_true", help="measure nothing again, whatever has changed since")
    parser.add_argument("--out", type=Path, default=Path("bench-out"))
    asked = parser.parse_args()
    plan = Plan(asked.tools, asked.threads, asked.rounds, asked.turns, asked.each, asked.tune_seconds)
    return plan, asked


if __name__ == "__main__":
    main()
