"""``python -m fuzzing --seed N --count M``: a budgeted run; exit code 1 if anything failed."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path

from fuzzing.campaign import campaign, work
from ortopt.system.child_processes import take_streams


def main() -> int:
    """Run from the command line."""
    if sys.argv[1:2] == ["--worker"]:
        first, count, out = sys.argv[2:5]
        with io.TextIOWrapper(take_streams()[1], "utf-8") as answers:
            work(int(first), int(count), 1, Path(out) if out else None, answers)
        return 0
    parser = argparse.ArgumentParser(prog="python -m fuzzing", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many models")
    parser.add_argument("--seconds", type=float, default=None, help="stop after this long")
    parser.add_argument("--out", type=Path, default=Path("fuzz-out"), help="the folder for findings")
    given = parser.parse_args()
    tally = campaign(
        given.seed, given.count, seconds=given.seconds, out=given.out, say=lambda text: print(text, flush=True)
    )
    print(tally)
    for name, models in tally.rewrites.most_common():
        print(f"{models:8} models changed by {name}")
    return 1 if tally.found else 0


if __name__ == "__main__":
    sys.exit(main())
