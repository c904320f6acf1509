"""Tables from what was measured, also by `benchmarks.kernels`, and where two of them differ."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kernels
from ortopt.analysis import costs
from ortopt.analysis.cost_tables import read_file
from ortopt.analysis.costs import Form, Verdict
from ortopt.analysis.kernels import CPU
from ortopt.measurement.cost_tables import as_file, differences, rows_of, verdict_of
from ortopt.measurement.costs import Case, Measurement
from ortopt.measurement.forms import catalog
from ortopt.measurement.forms.entry import Entry
from ortopt.measurement.pairs import Sample, Speed

GELU = Form("com.microsoft", "BiasGelu")


def case(form: Form, rows: int, *ratios: float) -> Case:
    entry = ENTRIES.setdefault(
        form, Entry(op=str(form), instead_of="others", sizes={"rows": (1, 128)}, before="", after="")
    )
    made = Case(entry, {"rows": rows})
    if ratios:
        made.add(Sample(ratios * 20, 2e-6))
    return made


ENTRIES: dict[Form, Entry] = {}


@pytest.mark.parametrize(
    ("speeds", "verdict"),
    [
        ([(1.2, 1.3, 1.4), (0.99, 1.0, 1.01)], Verdict.PAYS),
        ([(1.2, 1.3, 1.4), (0.8, 0.9, 0.95)], Verdict.LOSES),
        ([(0.99, 1.0, 1.01)], Verdict.NEUTRAL),
        ([(0.8, 0.95, 1.1)], Verdict.UNKNOWN),  # noise
        ([(0.8, 1.1, 1.4)], Verdict.UNKNOWN),
        ([(0.8, 0.95, 1.1), (0.8, 0.9, 0.95)], Verdict.LOSES),
        ([(1.0, 1.02, 1.3)], Verdict.NEUTRAL),
    ],
)
def test_verdicts(speeds: list[tuple[float, float, float]], verdict: Verdict) -> None:
    assert verdict_of([Speed(*speed, 1e-3) for speed in speeds]) is verdict


def test_there_is_a_row_for_each_range_of_sizes_that_the_shipped_table_tells_apart() -> None:
    measured = [case(GELU, 1, 1.05), case(GELU, 2, 0.9), case(GELU, 512, 0.8)]
    rows = {row.at["rows"]: row for row in rows_of(measured, CPU)}
    many, one = rows[2, math.inf], rows[0, 1]
    assert (many.verdict, many.speed, many.sizes) == (Verdict.LOSES, (0.8, 0.9), "rows 2 to 512")
    assert (one.verdict, one.sizes) == (Verdict.PAYS, "rows 1")


def test_a_range_that_was_not_measured_whole_has_no_row() -> None:
    rows = rows_of([case(GELU, 1, 1.05), case(GELU, 2, 0.9), case(GELU, 512)], CPU)
    assert [dict(row.at) for row in rows] == [{"rows": (0, 1)}]


def written(*measured: Case) -> bytes:
    return as_file(Measurement(list(measured), CPU, 1), name="mine", onnxruntime="1.2.3", processor="Abacus")


def test_the_file_is_a_table() -> None:
    content = written(case(GELU, 1, 1.05), case(GELU, 2, 0.9))
    table = costs.read(content)
    assert (table.measured.onnxruntime, table.measured.processor) == ("1.2.3", "Abacus")
    assert {cost.verdict for cost in table.own} == {Verdict.LOSES, Verdict.PAYS}
    assert all("1.2.3, CPU time of one thread of Abacus" in cost.source for cost in table.own)
    data: dict[str, Any] = json.loads(content)
    told = data["costs"][0]["cases"][0]
    assert told == {"sizes": {"rows": 2}, "low": 0.9, "median": 0.9, "high": 0.9, "seconds": 2e-6, "calls": 20}
    rows = [json.loads(line.strip().rstrip(",")) for line in content.decode().splitlines() if '"op"' in line]
    assert rows == data["costs"]


def test_a_form_that_is_not_clear_is_left_out() -> None:
    noisy = Form("", "Gelu")
    table = costs.read(
        written(case(noisy, 1, 0.8, 1.4), case(noisy, 128, 2.0), case(GELU, 1, 1.05), case(GELU, 2, 0.9))
    )
    assert {cost.form for cost in table.own} == {GELU}


def test_differences() -> None:
    plain = Form("", "Gelu")
    one = costs.read(written(case(GELU, 1, 1.05), case(GELU, 2, 0.9)))
    other = costs.read(written(case(GELU, 1, 1.2), case(GELU, 2, 1.2), case(plain, 1, 1.2)))
    contrary, only = differences(one, other)
    assert (contrary.form, dict(contrary.at), contrary.is_contrary) == (GELU, {"rows": (2, math.inf)}, True)
    assert (only.form, only.first) == (plain, None)
    assert not differences(one, one)


def test_kernels_are_written_as_tables_of_costs(tmp_path: Path) -> None:
    entry = next(entry for entry in catalog.ENTRIES if entry.form.op_type == "Gelu")
    cases = [Case(entry, given) for given in entry.cases[:2]]
    cases[0].add(Sample((2.0,) * 20, 3e-6))
    kernels.write([Measurement(cases, "CPUExecutionProvider", 2)], tmp_path)
    assert read_file(str(tmp_path / "kernels-2.json")).own == ()  # not all sizes were measured
    lines = (tmp_path / "kernels.md").read_text().splitlines()
    assert lines[2] == "| Gelu | float32 | rows 1, columns 256 | 2 | 3.0 | 2.00 | 2.00 to 2.00 |"
    assert "not measured" in lines[3]
