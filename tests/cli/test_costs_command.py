"""``ortopt costs``, and what ``--costs`` and ``--dim-hint`` do to a run."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ortopt.analysis import costs
from ortopt.analysis.costs import Form
from ortopt.cli.group import commands
from ortopt.measurement import costs as measuring
from ortopt.measurement.forms import catalog
from ortopt.measurement.forms.entry import Entry
from ortopt.measurement.pairs import Pair, Sample
from ortopt.serialization.save import save
from ortopt.testing import parse

FORM = Form("com.microsoft", "BiasGelu")
ENTRY = Entry(
    op=str(FORM), instead_of="Add and Gelu", sizes={"rows": (1, 128)}, values="x = normal(rows, 4)",
    before="y = Neg (x)", after="y = Abs (x)",
)  # fmt: skip
WEIGHTS = ",".join(["0.5"] * 8)
TABLE = ",".join(["0.25"] * 32)
MODEL = f"""main (int64[batch,seq] ids) => (float[batch,seq,8] y)
    <float[8] b = {{{WEIGHTS}}}, float[4,8] w = {{{TABLE}}}, float h = {{0.5}}, float o = {{1.0}},
    float r = {{1.4142135}}> {{
    x = Gather (w, ids) t = Add (x, b) d = Div (t, r) e = Erf (d) a = Add (e, o) p = Mul (t, a) y = Mul (p, h)
}}"""


def invoke(*words: str) -> Result:
    return CliRunner().invoke(commands, words)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(parse(MODEL), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def table(path: Path, verdict: str, speed: list[float], **more: Any) -> Path:
    row = {
        "op": str(FORM),
        "provider": "CPUExecutionProvider",
        "verdict": verdict,
        "speed": speed,
        "instead_of": "Add and Gelu",
        "source": "s",
        **more,
    }
    path.write_text(json.dumps({"name": path.stem, "sources": {"s": "made up"}, "costs": [row]}))
    return path


def answers(ratio: float) -> Any:
    def sample(pairs: Sequence[Pair], *_: Any, **__: Any) -> list[Sample]:
        return [Sample((ratio,) * 20, 1e-5) for _ in pairs]

    return sample


def test_measure_writes_a_table_that_a_run_takes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "ENTRIES", (ENTRY,))
    monkeypatch.setattr(measuring, "sample", answers(1.5))
    done = invoke("costs", "measure", "-o", "mine.json", "--name", "mine")
    assert done.exit_code == 0, done.output
    assert "[1/1] com.microsoft::BiasGelu: rows 2 or more: 1.50× faster, rows 0 to 1: 1.50× faster" in done.output
    assert "written: mine.json: 1 forms" in done.output
    report = optimized("--costs", "mine.json")
    assert (report["table"], report["over"]["table"]) == ("mine", costs.shipped().name)
    assert [row["op"] for row in report["taken"]] == [str(FORM)] * 2


def optimized(*flags: str) -> dict[str, Any]:
    """What a run says about costs."""
    done = invoke("optimize", "m.onnx", "out.onnx", "--overwrite", "--no-verify", "-q", "--json", "-", *flags)
    assert done.exit_code == 0, done.output
    costs_of: dict[str, Any] = json.loads(done.stdout)["costs"]
    return costs_of


def test_measuring_that_is_not_clear_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalog, "ENTRIES", (ENTRY,))

    def noisy(pairs: Sequence[Pair], *_: Any, **__: Any) -> list[Sample]:
        return [Sample((0.5, 1.7), 1e-5) for _ in pairs]

    monkeypatch.setattr(measuring, "sample", noisy)
    done = invoke("costs", "measure", "--seconds", "0.05", "-o", "mine.json")
    assert done.exit_code == 0, done.output
    assert f"not clear in this time, and left out: {FORM}" in done.output
    assert json.loads(Path("mine.json").read_bytes())["costs"] == []


def test_what_is_expected_decides(model: Path) -> None:
    usual = optimized()
    assert usual["sizes"] == [{"batch": [1, 1], "seq": [length, length]} for length in (16, 128)]
    assert [(row["op"], row["count"]) for row in usual["declined"]] == [(str(FORM), 1)]
    one = optimized("--dim-hint", "seq=1")
    assert one["sizes"] == [{"batch": [1, 1], "seq": [1, 1]}]
    assert str(FORM) in {row["op"] for row in one["taken"]}
    many = optimized("--dim-hint", "seq=1..64")
    assert [row["op"] for row in many["declined"]] == [str(FORM)]


def test_the_report_names_the_table_and_what_was_expected(model: Path) -> None:
    done = invoke(
        "optimize", "m.onnx", "out.onnx", "--no-verify", "--dim-hint", "seq=1..64", "--html", "page.html", "-v"
    )
    assert f"costs: {costs.shipped().name} (sha256 {costs.shipped().digest[:16]}), for seq 1 to 64" in done.output
    found = re.search(r'id="data">([^<]*)</script>', Path("page.html").read_text(encoding="utf-8"))
    assert found
    page = json.loads(zlib.decompress(base64.b64decode(found[1])))
    assert page["report"]["costs"]["sha256"] == costs.shipped().digest


def test_explain_gives_the_numbers_that_decided(model: Path) -> None:
    done = invoke("explain", "m.onnx", "bias_gelu_fusion")
    assert f"chosen by the table of costs {costs.shipped().name}" in done.output
    assert "here rows 16; or rows 128; AVX-512: 1.23× slower to 1.05× faster" in done.output
    data = json.loads(invoke("explain", "m.onnx", "--dim-hint", "seq=1", "--json").stdout)
    (row,) = [row for row in data["choices"] if row["pass"] == "bias_gelu_fusion"]
    assert (row["form"], row["taken"], row["count"]) == (str(FORM), True, 1)
    assert row["cost"]["at"] == {"rows": [0, 1]}
    assert row["asked"][0]["rows"] == [1, 1]


def test_show(tmp_path: Path) -> None:
    mine = table(tmp_path / "mine.json", "loses", [0.5, 0.6], sizes="one row", at={"rows": [0, 1]})
    done = invoke("costs", "show", "--costs", str(mine))
    assert "mine (sha256" in done.output
    assert f"over {costs.shipped().name}" in done.output
    data = json.loads(invoke("costs", "show", "--costs", str(mine), "--json").stdout)
    assert [(row["op"], row["at"]) for row in data["costs"] if row["own"]] == [(str(FORM), {"rows": [0, 1]})]


def test_show_has_a_column_for_each_kind_of_processor_and_for_several_threads() -> None:
    done = invoke("costs", "show")
    assert re.search(r"AVX-512 [^,]+, AVX2 [^,]+, several threads [^,]+, sizes ", done.output)
    assert "and with ONNX Runtime 1.31.1 on AMD EPYC, its AVX-512 hidden from ONNX Runtime, 1 thread" in done.output
    data = json.loads(invoke("costs", "show", "--json").stdout)
    speeds = next(row for row in data["costs"] if (row["op"], row["at"]) == (str(FORM), {"rows": [2, None]}))["speeds"]
    assert list(speeds) == ["AVX-512", "AVX2", "several threads"]
    assert [column["kernels"] for column in data["columns"]] == ["AVX2", "several threads"]
    alone = json.loads(invoke("costs", "show", "--for-threads", "1", "--json").stdout)
    assert [column["kernels"] for column in alone["columns"]] == ["AVX2"]


def test_compare(tmp_path: Path) -> None:
    slow = table(tmp_path / "slow.json", "loses", [0.5, 0.6])
    fast = table(tmp_path / "fast.json", "pays", [1.5, 1.6])
    done = invoke("costs", "compare", str(slow), str(fast))
    assert "loses, 1.67× to 2.00× slower" in done.output
    assert "pays, 1.50× to 1.60× faster" in done.output
    assert "no verdict differs" in invoke("costs", "compare", str(slow), str(slow)).output
    assert "only B knows" in invoke("costs", "compare", str(slow), "shipped").output
