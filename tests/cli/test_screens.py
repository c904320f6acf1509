"""Every screen at 60, 80 and 120 columns: no line is too long, no number and no name is broken."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import IO, Any

import onnx
import pytest
from rich.console import Console
from rich.theme import Theme

from ortopt.measurement import in_turns
from ortopt.reporting import report
from ortopt.reporting.tables import THEME, Style

WIDTHS = (60, 80, 120)
NAME = "a_layer_with_a_rather_long_name.that_must_stay_whole"
TEXT = f"""<ir_version: 9, opset_import: ["": 17]> main (float[N,8] x) => (float[N,4] y)
<float[8,4] w = {{{", ".join(["0.5"] * 32)}}}, float[4] b = {{1, 2, 3, 4}}> {{
    i = Identity (x)
    m = MatMul (i, w)
    y = Add (m, b)
}}"""
CONTROL = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]")
SGR = re.compile(r"\x1b\[([0-9;]*)m")
MODEL = "model.onnx"
COMMANDS: dict[str, tuple[object, ...]] = {
    "optimize": ("optimize", MODEL, "-o", "out.onnx", "-v"),
    "optimize short": ("optimize", MODEL, "-o", "out.onnx"),
    "optimize several": ("optimize", MODEL, "zoo:lstm_tagger__ts13", "-o", "out", "--no-verify"),
    "check": ("check", MODEL),
    "verify": ("verify", MODEL, MODEL),
    "bisect": ("bisect", MODEL, "-o", "folder"),
    "run": ("run", MODEL, "--repeat", 3),
    "bench": ("bench", MODEL, "other.onnx", "--rounds", 1, "--repeat", 1, "--levels", "0,3", "--no-verify"),
    "explain": ("explain", MODEL, "noop_elimination", "--alone"),
    "explain all": ("explain", MODEL),
    "explain attention": ("explain", "zoo:vit_tiny__ts17", "attention"),
    "groups": ("groups", MODEL),
    "info": ("info", MODEL),
    "info versions": ("info", "--versions"),
    "passes": ("passes",),
    "pass": ("passes", "skip_layer_norm_fusion"),
    "zoo list": ("zoo", "list"),
}


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """A terminal of a fixed width."""
    width: int = request.param

    def console(stream: IO[str]) -> Console:
        return Console(
            file=stream, markup=False, emoji=False, highlight=False, width=width, force_terminal=True,
            color_system=None, legacy_windows=False,
        )  # fmt: skip

    monkeypatch.setattr(report, "console", console)
    return width


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures as of a slow, large model, without the processes that measure."""
    answer = {"open": 12.3456, "first": 1.23456, "calls": [0.1234567, 0.2345678], "anonymous": 10**9, "peak": 10**10}
    monkeypatch.setattr(in_turns, "measure_once", lambda *_, **__: answer)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(TEXT)
    for node in model.graph.node:
        node.name = f"{NAME}.{node.op_type}"
    for name in (MODEL, "other.onnx"):
        (tmp_path / name).write_bytes(model.SerializeToString())
    return tmp_path


@pytest.mark.parametrize("screen", WIDTHS, indirect=True)
@pytest.mark.parametrize("command", COMMANDS)
def test_it_fits(ortopt: Any, files: Path, screen: int, command: str) -> None:
    lines = CONTROL.sub("", ortopt(*COMMANDS[command]).stdout).replace("\r", "\n").splitlines()
    for line in lines:
        assert len(line.rstrip()) <= screen or " " not in line.strip(), line
    ends = [line for before, line in itertools.pairwise(lines) if before.strip() != "levels"]  # a heading of numbers
    broken = [line for line in ends if re.search(r"[\w)] *$", line) and re.fullmatch(r" *[\d.]{1,2}", line)]
    assert broken == [], "a number goes on in the next line"
    text = "\n".join(lines)
    whole = {"explain": f"{NAME}.Add"}.get(command)
    if whole is not None and len(whole) < screen:
        assert whole in text


LEGIBLE = {"0", "1", "31", "32", "35"}
"""Codes of styles that are read on white and on black: none, bold, red, green, magenta; no yellow, white, dim."""


@pytest.mark.parametrize("command", COMMANDS)
def test_its_colours_are_legible_on_white_and_on_black(
    ortopt: Any, files: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def console(stream: IO[str]) -> Console:
        return Console(
            file=stream, markup=False, emoji=False, highlight=False, width=100, force_terminal=True,
            color_system="truecolor", legacy_windows=False, theme=Theme(THEME),
        )  # fmt: skip

    monkeypatch.setattr(report, "console", console)
    done = ortopt(*COMMANDS[command])
    codes = {code for found in SGR.findall(done.stdout + done.stderr) for code in found.split(";")}
    assert codes <= LEGIBLE
    if command in ("optimize", "optimize short"):
        assert codes > {"0", "1"}


def test_the_colours_of_progress_and_of_the_check_are_legible_on_white_and_on_black() -> None:
    from io import StringIO

    from rich.color import Color

    from ortopt.cli.check_display import _COLOURS

    out = report.console(StringIO())
    legible = {None, *map(Color.parse, ("red", "green", "magenta"))}
    by_rich = ("progress.elapsed", "progress.spinner", "bar.complete", "bar.finished", "bar.pulse", "table.header")
    own = {getattr(Style, name) for name in vars(Style) if name.isupper()}
    assert set(_COLOURS.values()) <= own
    for name in (*by_rich, *own):
        style = out.get_style(name)
        assert style.color in legible
        assert style.bgcolor is None
        assert not style.dim


@pytest.mark.parametrize("screen", WIDTHS, indirect=True)
def test_a_profile_fits(screen: int) -> None:
    from io import StringIO

    from ortopt.reporting import profiles

    rows = [{"op": f"com.microsoft::Op{i}", "count": 1, "ms": 1234.5678 / (i + 1), "share": 0.1} for i in range(8)]
    reasons = [{"pass": "some_fusion", "count": 12, "reason": "no operand comes from " + "Conv or " * 20 + "Gemm"}]
    changed = [{"op": f"com.microsoft::Op{i}", "file": i, "loaded": 2 * i} for i in range(9)]
    data = {
        "original": rows, "result": rows[::-1], "fused_at_load": {"original": changed, "result": []},
        "left": [{**rows[0], "nodes": 3, "reasons": reasons, "relevant": 1}],
    }  # fmt: skip
    stream = StringIO()
    profiles.show(data, report.console(stream))
    assert max(map(len, stream.getvalue().splitlines())) <= screen
    assert all(f"{row['ms']:.3f}" in stream.getvalue() for row in rows)


@pytest.mark.parametrize("screen", WIDTHS, indirect=True)
def test_every_cell_of_a_table_is_whole(screen: int) -> None:
    from io import StringIO

    from ortopt.reporting.tables import table

    rows = [(f"{NAME}.{i}", "1.2345 to 2.3456", f"{i}00.125 MB", "some words that say what it is") for i in range(3)]
    stream = StringIO()
    report.console(stream).print(table(("name", "quartiles", "memory", "why"), rows, prose="why"))
    shown = " ".join(stream.getvalue().split())
    for name, quartiles, memory, _ in rows:
        assert name in shown
        assert quartiles in shown
        assert memory in shown
    assert max(map(len, stream.getvalue().splitlines())) <= screen


@pytest.mark.parametrize("screen", WIDTHS, indirect=True)
def test_a_narrow_screen_leaves_out_what_can_be_spared_first(screen: int) -> None:
    from io import StringIO

    from ortopt.reporting.tables import table

    stream = StringIO()
    headers = ("name", "first", "second")
    report.console(stream).print(table(headers, [("n" * 30, "1" * 20, "2" * 25)], spare=("first",)))
    assert ("1" * 20 in stream.getvalue()) == (screen >= 81)
    assert "2" * 25 in stream.getvalue()
