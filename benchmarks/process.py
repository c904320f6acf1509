"""Whole processes, measured: seconds, peak memory, and how they ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ortopt.system import processor

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Run:
    """How a process ended and what it took.

    Attributes:
        outcome: ``ok``, or one line that says what went wrong.
        seconds: Wall-clock time from its start to its end.
        peak: The most memory that was resident at once, in bytes; pages of mapped files count.
    """

    outcome: str
    seconds: float
    peak: int

    @property
    def ok(self) -> bool:
        """Whether the process did what it was asked to do."""
        return self.outcome == "ok"


def numbers_of_threads() -> tuple[int, ...]:
    """What models are measured with: one thread, and two where this process may use two processors."""
    return tuple(range(1, min(processor.usable(), 2) + 1))


def measure(command: Sequence[str | Path], timeout: float = 600.0) -> Run:
    """Run a command from the project's root; whatever happens to it is an outcome, never an exception.

    Args:
        command: The program and its arguments.
        timeout: Seconds after which it is killed, with everything that it started.
    """
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder, "stderr")
        launcher = [sys.executable, "-I", "-S", Path(__file__).with_name("launch.py"), str(timeout), errors, *command]
        # What is installed has its bytecode; what runs from this checkout must be able to keep its own.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(launcher, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:  # the program itself is missing
            return Run(_last_line(done.stderr), 0.0, 0)
        facts = json.loads(done.stdout)
        outcome = _outcome(facts, errors.read_text(errors="replace"), timeout)
        return Run(outcome, facts["seconds"], facts["peak"])


def _outcome(facts: dict[str, int], errors: str, timeout: float) -> str:
    status = facts["status"]
    if facts["timed_out"]:
        return f"timed out after {timeout:g} s"
    if status == 0:
        return "ok"
    if status < 0:
        return f"crashed: {signal.Signals(-status).name}"
    return f"exit {status}: {_last_line(errors)}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"
