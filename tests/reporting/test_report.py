"""The report fits where it is shown, and is data that anybody can read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ortopt.api import optimize
from ortopt.reporting import long_report, report
from ortopt.reporting.tables import table
from ortopt.testing import parse

TEXT = """main (float[N] x) => (float[N] y) {
    a_long_name_of_an_intermediate_value = Identity (x)
    y = Relu (a_long_name_of_an_intermediate_value)
}"""


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return report.as_dict(optimize(parse(TEXT), verify=False), source="m.onnx")


def shown(data: dict[str, Any], out: Console) -> str:
    long_report.show(data, out)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_it_is_json(data: dict[str, Any]) -> None:
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["schema"] == report.SCHEMA


def test_a_pipe_gets_plain_text_in_one_line_each(data: dict[str, Any]) -> None:
    text = shown(data, report.console(io.StringIO()))
    assert text.isascii()
    assert "\x1b" not in text
    (line,) = (line for line in text.splitlines() if line.startswith("Identity"))
    assert line.split() == ["Identity", "1", "0", "-1"]
    assert "written: nothing" in text
    assert "verification: not asked for" in text


@pytest.mark.parametrize("width", [12, 30, 80])
def test_tables_fold_on_a_narrow_terminal(data: dict[str, Any], width: int) -> None:
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, markup=False)
    out.print(table(("pass", "seconds"), [("identity_elimination", "0.123")]))
    assert isinstance(out.file, io.StringIO)
    lines = out.file.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert "identity_elimination" in "".join(line.split()[0] for line in lines if line.split())
    if width > len("identity_elimination"):
        assert any(line.split()[0] == "identity_elimination" for line in lines), "a name that fits is not broken"


def test_cells_are_text_and_no_markup() -> None:
    out = report.console(io.StringIO())
    out.print(table(("name",), [("[red]x[/red] :smile: \x1b[31m\n",)]))
    assert isinstance(out.file, io.StringIO)
    assert out.file.getvalue().splitlines()[1].rstrip() == "[red]x[/red] :smile: \\x1b[31m"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_400, "999.4 kB"), (999_999, "1.0 MB"), (3 * 10**12, "3.0 TB")],
)
def test_sizes_for_people(nbytes: int, text: str) -> None:
    assert report.size(nbytes) == text


def test_numbers_that_json_has_not_are_words(tmp_path: Path) -> None:
    outcome = {"status": "differs", "worst": "inf", "worst_output": "y", "outputs": [1], "reason": "NaN", "spread": 0}
    data = {"verification": outcome, "options": None}
    assert long_report._verification(data) == "differs, worst error inf of the scale of output 'y', NaN"
    assert report.plain({"worst": float("inf"), "all": (float("nan"), 1.5)}) == {"worst": "inf", "all": ["nan", 1.5]}


@pytest.mark.parametrize(
    ("imports", "op", "needs"),
    [
        ('"" : 17', "Abs (x)", "standard ops only (ONNX Runtime 1.12 or newer, for opset 17)"),
        (
            '"" : 23, "com.microsoft" : 1',
            "com.microsoft.Gelu (x)",
            "ONNX Runtime 1.23 or newer, for opset 23; it has ops of ONNX Runtime's own: com.microsoft::Gelu",
        ),
        (
            '"" : 17, "com.microsoft" : 1',
            'com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x, "", "", b)',
            "ONNX Runtime 1.21 or newer, for com.microsoft::MultiHeadAttention; it has ops of ONNX Runtime's own:"
            " com.microsoft::MultiHeadAttention",
        ),
        ('"" : 17, "mine" : 1', "mine.Op (x)", "a runtime that has mine::Op"),
    ],
)
def test_it_says_what_the_result_needs_and_what_for(imports: str, op: str, needs: str) -> None:
    head = f"<ir_version: 8, opset_import: [{imports}]> main (float[2,3,4] x, float[2,1,3,3] b) => (float[2,3,4] y)"
    text = f"{head} {{ y = {op} }}"
    data = report.as_dict(optimize(parse(text), verify=False))
    assert f"needs: {needs}" in shown(data, report.console(io.StringIO())).splitlines()


@pytest.mark.parametrize(
    ("opset", "more", "end"),
    [
        (17, {"opset": 23}, "has standard ops only, ONNX Runtime ≥ 1.23 reads them (the original 1.12)"),
        (17, {}, "has standard ops only, ONNX Runtime ≥ 1.12 reads them"),
        (23, {}, "has standard ops only, ONNX Runtime ≥ 1.23 reads them"),
    ],
)
def test_the_last_line_says_what_is_newer_than_the_original_needed(opset: int, more: dict[str, int], end: str) -> None:
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> main (float[N] x) => (float[N] y) {{ y = Abs (x) }}'
    result = optimize(parse(text), verify=False, **more)
    data = report.as_dict(result) | {"output": {"path": "y.onnx", "data": None, "bytes": 100}}
    last = shown(data, report.console(io.StringIO())).splitlines()[-1]
    assert last.startswith("written: y.onnx: 1 → 1 nodes, ")
    assert last.endswith(end)


def test_what_changed_has_a_colour() -> None:
    data = report.as_dict(
        optimize(parse("main (float[N] x) => (float[N] y) { a = Identity (x) y = Abs (a) }"), verify=False)
    )
    out = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard", markup=False)
    lines = shown(data, out).splitlines()
    assert any("Identity" in line and "\x1b[32m" in line for line in lines)
    assert any("Abs" in line and "\x1b" not in line for line in lines)
    assert "\x1b" not in shown(data, report.console(io.StringIO()))
