"""Random-weight exports with expectations: `python -m benchmarks.exports FOLDER`.

Needs the extra ``exports``; nothing is downloaded. Each architecture is exported twice, by TorchScript and by dynamo,
to opsets from 13 to 20 in turn; given several interpreters (with other versions of transformers) these take turns too.
Beside the files, `expected.json` says what was made of what and which blocks it has. What is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import select
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.exports.architecture import Architecture
from benchmarks.exports.catalog import ARCHITECTURES
from benchmarks.exports.variants import VARIANTS

MANIFEST = "expected.json"
VERSION = "import importlib.metadata as m; print(m.version('transformers'))"
EXPORTERS = {"ts": "torchscript", "dynamo": "dynamo", "dynamoraw": "dynamo"}


@dataclass(frozen=True)
class Job:
    """One file to be made."""

    architecture: Architecture
    way: str
    opset: int
    python: str
    version: str

    @property
    def name(self) -> str:
        """The file's name, without ending."""
        return f"{self.architecture.name}-v{self.version.partition('.')[0]}_{self.way}{self.opset}"

    def entry(self) -> dict[str, Any]:
        """What the manifest says of the file."""
        return {
            "name": self.name,
            "family": self.architecture.name.partition("-")[0],
            "exporter": EXPORTERS[self.way],
            "opset": self.opset,
            "transformers": self.version,
            "variant": "fp32",
            "set_aside": self.architecture.set_aside,
            "blocks": list(self.architecture.blocks),
        }


def plan(architectures: Sequence[Architecture], pythons: Sequence[tuple[str, str]]) -> Iterator[Job]:
    """The exports of each architecture: exporters, opsets and interpreters in turn, by its place in the catalog.

    Args:
        architectures: In the order of the catalog.
        pythons: Interpreters, with their versions of transformers.
    """
    for place, architecture in enumerate(architectures):
        for number, way in enumerate(architecture.ways):
            python, version = pythons[(place + number) % len(pythons)]
            if way == "ts":
                yield Job(architecture, way, 13 + place * 3 % 8, python, version)
            else:
                yield Job(architecture, "dynamoraw" if place % 3 == 0 else way, 18 + place % 3, python, version)


class Exporter:
    """A process that exports one model after the other; a new one where it died or was too slow."""

    def __init__(self, python: str) -> None:
        self.python = python
        self.process: subprocess.Popen[str] | None = None

    def make(self, job: Job, folder: Path, seconds: float) -> str | None:
        """Write one file.

        Returns:
            Why there is none, or None.
        """
        path = folder / f"{job.name}.onnx"
        if path.exists():
            return None
        draft = path.with_suffix(".tmp")
        why = self._ask([job.architecture.name, job.way, job.opset, str(draft.absolute())], seconds)
        if why is None:
            draft.replace(path)
        draft.unlink(missing_ok=True)
        return why

    def _ask(self, job: list[str | int], seconds: float) -> str | None:
        process = self.process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        answer = process.stdout.readline() if ready else ""
        if answer:
            why: str | None = json.loads(answer)
            return why
        process.kill()
        self.process = None
        return "the exporter died" if ready else f"no end within {seconds:.0f} s"

    def _start(self) -> subprocess.Popen[str]:
        command = [self.python, "-W", "ignore", "-m", "benchmarks.exports.one"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        return self.process


class Listing:
    """What is in the folder, and what could not be made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        listed = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"models": [], "failed": {}}
        self.models = {one["name"]: one for one in listed["models"]}
        self.failed: dict[str, str] = listed["failed"]

    def add(self, entry: dict[str, Any]) -> None:
        """Take a file in."""
        self.models[entry["name"]] = entry
        self.failed.pop(entry["name"], None)

    def write(self) -> None:
        """Write the manifest."""
        text = json.dumps({"models": list(self.models.values()), "failed": self.failed}, indent=1)
        self.path.write_text(text + "\n", encoding="utf-8")


def vary(job: Job, folder: Path) -> dict[str, Any] | None:
    """A variant in another data type of about every second file, by its name; None if there is none."""
    kinds = tuple(VARIANTS)
    place = zlib.crc32(job.name.encode()) % (2 * len(kinds))
    if place >= len(kinds):
        return None
    kind, entry = kinds[place], job.entry()
    name = f"{job.name}-{kind}"
    target = folder / f"{name}.onnx"
    if not target.exists():
        try:
            VARIANTS[kind](folder / f"{entry['name']}.onnx", target)
        except Exception as error:  # whatever a converter makes of a graph that it does not know
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            target.unlink(missing_ok=True)
            return None
    return {**entry, "name": name, "variant": kind}


def versions(pythons: Sequence[str]) -> list[tuple[str, str]]:
    """Each interpreter with its version of transformers."""
    return [(python, subprocess.check_output([python, "-c", VERSION], text=True).strip()) for python in pythons]


def main() -> None:
    """Read the command line, export one model after the other, write the manifest."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exports", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", action="append", help="an interpreter with torch and transformers; may be repeated")
    parser.add_argument("--set", choices=("tuned", "aside", "all"), default="tuned", help="which architectures")
    parser.add_argument("--only", default="", help="architectures by commas")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds that one export may take (default 240)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    pythons = options.python or [sys.executable]
    wanted = {"tuned": (False,), "aside": (True,), "all": (False, True)}[options.set]
    listed = Listing(options.folder / MANIFEST)
    exporters = {python: Exporter(python) for python in pythons}
    for job in plan(tuple(ARCHITECTURES.values()), versions(pythons)):
        name = job.architecture.name
        if job.architecture.set_aside not in wanted or (options.only and name not in options.only.split(",")):
            continue
        why = exporters[job.python].make(job, options.folder, options.timeout)
        print(f"{job.name}: {why or 'written'}", file=sys.stderr, flush=True)
        if why is not None:
            listed.failed[job.name] = why
        else:
            listed.add(job.entry())
            variant = vary(job, options.folder)
            listed.add(variant) if variant else None
        listed.write()


if __name__ == "__main__":
    main()
