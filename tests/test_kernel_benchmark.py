"""What `benchmarks.kernels` writes; nothing here asserts a time."""

from __future__ import annotations

from pathlib import Path

from benchmarks import kernels
from ortopt.analysis.cost_tables import read_file
from ortopt.cost_measurement.catalog import ENTRIES
from ortopt.cost_measurement.measuring import Case, Measurement
from ortopt.measurement.pairs import Sample


def test_kernels_are_written_as_tables_of_costs(tmp_path: Path) -> None:
    entry = next(entry for entry in ENTRIES if entry.form.op_type == "Gelu")
    cases = [Case(entry, given) for given in entry.cases[:2]]
    cases[0].add(Sample((2.0,) * 20, 3e-6))
    kernels.write([Measurement(cases, "CPUExecutionProvider", 2)], tmp_path)
    assert read_file(str(tmp_path / "kernels-2.json")).own == ()  # not all sizes were measured
    lines = (tmp_path / "kernels.md").read_text().splitlines()
    assert lines[2] == "| Gelu | float32 | rows 1, columns 256 | 2 | 3.0 | 2.00 | 2.00 to 2.00 |"
    assert "not measured" in lines[3]
