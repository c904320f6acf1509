"""``python -m fuzzing.mutants --seed N --count M``: examples of the passes' tests, changed; exit code 1 on failures.

A seed stands for one example of a pass, changed a few times: other types, ranks, sizes and symbols of its inputs, other
constants and attributes, operands that are left out, doubled or replaced, values that are outputs or have further
readers, initializers that are inputs, another opset, nodes in branches, loops and functions. Where ONNX Runtime runs
it, it is optimized without verification by the pass alone, at -O1 and at -O3, and must compute the same.
"""

from __future__ import annotations

import argparse
import functools
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from fuzzing.campaign import campaign, examine_case, work
from fuzzing.mutants.examples import names
from fuzzing.mutants.mutant import mutant
from fuzzing.writer import Unsuitable
from ortopt.system.child_processes import take_streams

_PATIENCE: Final = 45.0
"""Seconds without a word after which a worker hangs: the examples are small."""


def examine(
    seed: int, out: Path | None, report: Callable[[str], None] = lambda _: None, *, passes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Check one mutant; see `fuzzing.campaign.examine`."""
    report("draw")
    try:
        found = mutant(seed, passes)
    except Unsuitable as error:
        return {"rejected": str(error)}
    return examine_case(found.case, seed, out, report, found.ways)


def main() -> int:
    """Run from the command line."""
    if sys.argv[1:2] == ["--worker"]:
        first, count, out, *passes = sys.argv[2:]
        with io.TextIOWrapper(take_streams()[1], "utf-8") as answers:
            check = functools.partial(examine, passes=tuple(passes))
            work(int(first), int(count), 1, Path(out) if out else None, answers, check)
        return 0
    parser = argparse.ArgumentParser(prog="python -m fuzzing.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=5000, help="how many mutants")
    parser.add_argument("--seconds", type=float, default=None, help="stop after this long")
    parser.add_argument("--passes", default="", help="passes whose examples are changed, A,B; all if it is left out")
    parser.add_argument("--out", type=Path, default=Path("fuzz-out"), help="the folder for findings")
    given = parser.parse_args()
    passes = [name for name in given.passes.split(",") if name]
    if unknown := set(passes) - set(names()):
        parser.error(f"there is no pass {', '.join(sorted(unknown))}")
    tally = campaign(
        given.seed,
        given.count,
        seconds=given.seconds,
        out=given.out,
        say=lambda text: print(text, flush=True),
        worker="fuzzing.mutants",
        arguments=passes,
        patience=_PATIENCE,
    )
    print(tally)
    return 1 if tally.found else 0


if __name__ == "__main__":
    sys.exit(main())
