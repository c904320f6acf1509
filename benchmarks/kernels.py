"""What kernels cost: `python -m benchmarks.kernels [--seconds 180] [--threads 1,2] [--out bench-out/kernels]`.

Every form of the table of costs is timed against what it stands for, at several sizes and with each number of threads,
in turns (see docs/costs.md). Written are a table of costs for each number of threads, ready for `--costs`, and one
table for people with the interval of each figure.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import onnxruntime

from benchmarks.tables import markdown
from ortopt.analysis.costs import in_sizes
from ortopt.measurement.cost_tables import as_file, processor
from ortopt.measurement.costs import SECONDS, Case, Measurement, measure
from ortopt.measurement.forms.catalog import ENTRIES


def rows(measurements: Sequence[Measurement]) -> list[list[str]]:
    """A row for each form, size and number of threads.

    Args:
        measurements: One for each number of threads.
    """
    return [_row(case, one.threads) for one in measurements for case in one.cases]


def _row(case: Case, threads: int) -> list[str]:
    dtype = next(iter(case.entry.at(case.given).inputs.values())).dtype
    sizes = in_sizes({name: (size, size) for name, size in case.given.items()})
    head = [str(case.entry.form), str(dtype), sizes, str(threads)]
    speed = case.speed
    if speed is None:
        return [*head, case.error or "not measured", "", ""]
    interval = f"{speed.low:.2f} to {speed.high:.2f}"
    return [*head, f"{1e6 * speed.seconds:.1f}", f"{speed.median:.2f}", interval]


def write(measurements: Sequence[Measurement], folder: Path) -> None:
    """Write the tables.

    Args:
        measurements: One for each number of threads.
        folder: Where to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    version = onnxruntime.__version__
    for one in measurements:
        name = f"kernels-{one.threads}"
        table = as_file(one, name=name, onnxruntime=version, processor=processor())
        (folder / f"{name}.json").write_bytes(table)
    headers = ["form", "dtype", "sizes", "threads", "µs of what it stands for", "times as fast", "95 %"]
    (folder / "kernels.md").write_text(markdown(headers, rows(measurements)), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each number of threads")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--out", type=Path, default=Path("bench-out/kernels"))
    chosen = parser.parse_args(arguments)
    counts = [int(count) for count in chosen.threads.split(",")]
    write([measure(ENTRIES, seconds=chosen.seconds, threads=count) for count in counts], chosen.out)


if __name__ == "__main__":
    main()
