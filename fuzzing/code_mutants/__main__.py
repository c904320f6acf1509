"""``python -m fuzzing.code_mutants draw|check``: changes of ortopt's own code, and whether a test notices each.

First ``python -m pytest -n 2 -p fuzzing.code_mutants.reach`` on Python 3.12 or newer: it notes which tests call which
functions. ``draw`` tries mutants drawn by a seed and writes those that a test kills to ``killed.jsonl``; ``check``
tries these again, by all tests that are known: each must still be killed, or its code must be gone, which is listed.
Exit code 1 if one survives.

Only functions that a test calls in its own process are changed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fuzzing.code_mutants import killed, trial
from fuzzing.code_mutants.mutants import Address, Mutant, drawn
from fuzzing.code_mutants.reach import reached

Tests = Mapping[tuple[str, str], Sequence[str]]


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m fuzzing.code_mutants", description=__doc__)
    parser.add_argument("what", choices=("draw", "check"))
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--count", type=int, default=1500, help="mutants that are drawn")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    given = parser.parse_args()
    calls = {function: trial.in_order(tests) for function, tests in reached().items()}
    if given.what == "draw":
        calls = {function: tests[: trial.MAX_TESTS] for function, tests in calls.items()}
    if not calls:
        parser.error("nothing is known of the tests: python -m pytest -n 2 -p fuzzing.code_mutants.reach")
    gone: list[Address] = []
    if given.what == "draw":
        chosen = drawn(given.seed, given.count, calls)
    else:
        chosen, gone = killed.located(killed.read())
    outcomes = dict(_outcomes(chosen, calls, given.jobs, time.monotonic() + given.seconds))
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(Counter(outcomes.values()).items())))
    survivors = [mutant for mutant, outcome in outcomes.items() if outcome == trial.SURVIVED]
    for mutant in sorted(survivors, key=lambda mutant: mutant.address):
        print(f"survived: {mutant.path}: {_line(mutant)}")
    for address in gone:
        print(f"gone: {address.function}: {address.kind}: {address.text}")
    if given.what == "draw":
        killed.write(mutant.address for mutant, outcome in outcomes.items() if outcome == trial.KILLED)
        return 0
    return 1 if survivors else 0


def _outcomes(chosen: Sequence[Mutant], calls: Tests, jobs: int, until: float) -> Iterator[tuple[Mutant, str]]:
    """Try mutants, each in a process of its own, in some processes at once.

    Args:
        chosen: The mutants.
        calls: The tests that call each function, by its file and name.
        jobs: The number of processes.
        until: When to stop, as `time.monotonic` counts.
    """
    trial.load()
    with tempfile.TemporaryDirectory() as folder:
        parts = [chosen[job::jobs] for job in range(jobs)]
        children = [_worker(part, calls, Path(folder) / str(job), until) for job, part in enumerate(parts)]
        for child in children:
            os.waitpid(child, 0)
        for job, part in enumerate(parts):
            lines = (Path(folder) / str(job)).read_text(encoding="utf-8").splitlines()
            yield from zip(part, lines, strict=False)  # the time may have been over


def _worker(part: Sequence[Mutant], calls: Tests, answers: Path, until: float) -> int:
    child = os.fork()
    if child:
        return child
    try:
        trials = trial.Trials(answers.with_suffix(".failure"))
        with answers.open("w", encoding="utf-8", buffering=1) as file:
            for number, mutant in enumerate(part):
                if time.monotonic() > until:
                    break
                outcome = trials.tried(mutant, calls.get((mutant.path, mutant.address.function), ()))
                file.write(f"{outcome}\n")
                print(f"{number + 1} of {len(part)}: {outcome}: {mutant.path}: {_line(mutant)}", file=sys.stderr)
    finally:
        os._exit(0)


def _line(mutant: Mutant) -> str:
    address = mutant.address
    return f"{address.function}: {address.kind}: {address.text} → {address.becomes}"


if __name__ == "__main__":
    sys.exit(main())
