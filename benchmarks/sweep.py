"""The whole zoo under every level: `python -m benchmarks.sweep` (`make zoo`) optimizes and verifies each model.

The model is looked at after every pass (``--check-each``): one that breaks it ends the run.

Ends with exit status 1 if a run did not end with 0.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks import graphs
from benchmarks.process import measure
from benchmarks.tables import markdown, number
from ortopt import zoo


def sweep(models: tuple[str, ...], levels: tuple[int, ...], timeout: float) -> tuple[str, list[str]]:
    """Optimize every model at every level, each in a process of its own.

    Returns:
        A table of nodes left and seconds, and one line for each run that failed.
    """
    lines, failed = [], []
    for name in models:
        source = zoo.cached(name)
        line = [name, str(graphs.count(source).total)]
        for level in levels:
            print(f"{name} -O{level}", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder, "result.onnx")
                checks = ["--strict", "--check-each"]
                run = measure(
                    [sys.executable, "-m", "ortopt", "optimize", source, "-o", out, f"-O{level}", *checks], timeout
                )
                if run.ok:
                    line.append(f"{graphs.count(out).total} in {number(run.seconds)} s")
                    continue
            line.append(run.outcome.partition(":")[0])
            failed.append(f"{name} -O{level}: {run.outcome}")
        lines.append(line)
    return markdown(["model", "nodes", *(f"-O{level}" for level in levels)], lines), failed


def main() -> None:
    """Read the command line, run, print the table and what failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="", help="names by commas (default all)")
    parser.add_argument("--levels", default="0,1,2,3,4", help="levels by commas (default 0,1,2,3,4)")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that a run may take (default 600)")
    options = parser.parse_args()
    models = tuple(options.models.split(",")) if options.models else zoo.names()
    table, failed = sweep(models, tuple(map(int, options.levels.split(","))), options.timeout)
    print(table)
    print("\n".join(failed))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
