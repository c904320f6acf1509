"""Measures one model: makes every version of it, its floor, and times them in fresh processes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import graphs, tools
from benchmarks.process import ROOT, measure, numbers_of_threads
from benchmarks.speed import results
from benchmarks.speed.results import FLOOR, ORIGINAL, Result
from ortopt.errors import InvalidModelError
from ortopt.measurement.inputs import StoredInputs, attempts, stored_inputs
from ortopt.measurement.pairs import BRIEF
from ortopt.serialization.load import load

TOOLS = (results.OURS, "ort_extended", *tools.PEERS, tools.FUSIONS)


@dataclass(frozen=True, slots=True)
class Plan:
    """How models are measured.

    Attributes:
        tools: The tools, by their names in `benchmarks.tools`.
        threads: Numbers of threads within an op.
        rounds: Processes for each size and number of threads.
        turns: Samples of each version in each of them, at most.
        seconds: Seconds of samples for each version in each of them.
        tune_seconds: How long ortopt with ``--tune`` may measure; 0 leaves it out.
        timeout: Seconds that a tool may take.
    """

    tools: tuple[str, ...] = TOOLS
    threads: tuple[int, ...] = field(default_factory=numbers_of_threads)
    rounds: int = 3
    turns: int = 25
    seconds: float = 0.4
    tune_seconds: float = 0.0
    timeout: float = 300.0

    @property
    def makers(self) -> list[str]:
        """The tools that are installed and asked for."""
        tuned = [tools.TUNED] if self.tune_seconds else []
        return [*(tool for tool in self.tools if not tools.missing(tool)), *tuned]

    def key(self, model: Path) -> str:
        """What a result depends on: the model, how it is measured, and whose versions are compared."""
        facts = [dataclasses.asdict(self), tools.versions(), digest(model)]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def digest(model: Path) -> str:
    """The SHA-256 of a file."""
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def measured(name: str, source: Path, plan: Plan, folder: Path) -> Result:
    """Everything about a model.

    Args:
        name: What it is called.
        source: Its file.
        plan: How it is measured.
        folder: An empty folder.
    """
    result = Result(name, plan.key(source), digest(source))
    made = {ORIGINAL: source, **_made(source, plan, folder, result)}
    for tool in (ORIGINAL, results.OURS, tools.TUNED):
        if tool in made:
            _load(tool, made[tool], folder, result)
    for number, inputs in enumerate(_inputs(source, folder / "inputs")):
        versions: list[dict[str, Any]] = [
            {"name": tool, "model": str(path), "inputs": str(inputs.folder), "same": True}
            for tool, path in made.items()
        ]
        versions += _floors(made, inputs.folder, folder / f"floor{number}", plan, result)
        for threads in plan.threads:
            result.timings += _timed(versions, words(inputs), threads, plan)
    return result


def _floors(made: Mapping[str, Path], inputs: Path, folder: Path, plan: Plan, result: Result) -> list[dict[str, Any]]:
    """The floor of a model, and of ours: the form of heavy nodes is a choice, too, and the faster counts.

    What is reachable is ours alone, whose normalizations and activations are fused.
    """
    sources = {FLOOR: made[ORIGINAL]}
    if results.OURS in made:
        sources |= dict.fromkeys((results.OTHER_FLOOR, results.REACHABLE), made[results.OURS])
    versions = []
    for name, source in sources.items():
        base = folder / name
        more = ["--reachable"] if name == results.REACHABLE else []
        command: list[str | Path] = [sys.executable, "-m", "benchmarks.speed.floor", source, inputs, base, *more]
        done = measure(command, plan.timeout)
        result.tools[name] = done.outcome
        if done.ok and (base / "inputs").exists():
            paths = {"model": str(base / "floor.onnx"), "inputs": str(base / "inputs")}
            versions.append({"name": name, **paths, "same": False})
    return versions


def _made(source: Path, plan: Plan, folder: Path, result: Result) -> dict[str, Path]:
    """The files that tools make, by tool."""
    files = {}
    for tool in plan.makers:
        out = folder / tool / "result.onnx"
        out.parent.mkdir()
        command = tools.command(tool, source, out, tune_seconds=plan.tune_seconds)
        done = measure(command, plan.timeout + plan.tune_seconds)
        result.seconds[tool] = done.seconds
        result.tools[tool] = done.outcome if not done.ok or out.is_file() else "exit 0, but no file"
        if result.tools[tool] == "ok":
            files[tool] = out
    return files


def _load(tool: str, path: Path, folder: Path, result: Result) -> None:
    """Count what ONNX Runtime makes of a file when it loads it."""
    out = folder / f"{tool}.loaded.onnx"
    if measure(tools.command("ort_all", path, out)).ok and out.is_file():
        counted = graphs.count(out)
        result.loaded[tool] = (counted.total, counted.fused, counted.reorders)


def _inputs(source: Path, folder: Path) -> list[StoredInputs]:
    """Inputs that the original runs on, at each of its representative sizes."""
    try:
        return stored_inputs(load(source), folder, attempts(source, BRIEF), sizes={})
    except InvalidModelError:
        return []


def words(inputs: StoredInputs) -> str:
    """The sizes of inputs, for people."""
    return ", ".join(f"{name} {size}" for name, size in inputs.sizes.items()) or "as they are"


def _timed(versions: Sequence[Mapping[str, Any]], sizes: str, threads: int, plan: Plan) -> list[results.Timing]:
    """Time the versions in several processes; one that takes a process down is left out of the next ones."""
    answers: list[Any] = []
    lost: list[results.Timing] = []
    left = list(versions)
    while len(answers) < plan.rounds and len(left) > 1:
        answer = _asked(left, threads, plan)
        if answer is not None:
            answers.append(answer)
            continue
        if answers:
            break  # they ran before: a chance, or the time
        for version in [one for one in left if _asked([one], threads, dataclasses.replace(plan, turns=1)) is None]:
            left.remove(version)
            lost.append(results.Timing(str(version["name"]), sizes, threads, "crashed, or took too long"))
        if not lost or left[0]["name"] != ORIGINAL:
            break
    return [*(results.one_floor(results.timings(answers, sizes, threads)) if answers else []), *lost]


def _asked(versions: Sequence[Mapping[str, Any]], threads: int, plan: Plan) -> Any:
    order = {"versions": versions, "threads": threads, "seconds": plan.seconds, "turns": plan.turns}
    command = [sys.executable, "-m", "benchmarks.speed.turns"]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(order),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=plan.timeout,
        )
    except subprocess.TimeoutExpired:
        return None
    return json.loads(done.stdout) if done.returncode == 0 else None
