"""``ortopt check diff``: two baselines, judged as a check judges what it has run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ortopt.regression.baseline import Baseline
from ortopt.regression.facts import Facts
from tests.regression.conftest import More
from tests.regression.facts import WHOLE
from tests.reporting.test_page import data_of

OTHER_FILE = {"model": "e" * 64, "result": "f" * 64}


def write(path: str, versions: dict[str, str] | None = None, **models: Facts) -> None:
    Path(path).write_text(Baseline(versions or {"onnx": "1"}, models).text(), encoding="utf-8")


def statuses(path: str = "r.json") -> dict[str, str]:
    return {row["name"]: row["status"] for row in json.loads(Path(path).read_text())["models"]}


@pytest.fixture
def pair(check: Any) -> None:
    """Two baselines, a.json and b.json."""
    write("a.json", same=WHOLE, worse=WHOLE, better=WHOLE, changed=WHOLE, vanished=WHOLE)
    worse, better = {**WHOLE, "nodes": 101}, {**WHOLE, "nodes": 99}
    write("b.json", same=WHOLE, worse=worse, better=better, changed={**WHOLE, **OTHER_FILE}, new=WHOLE)


@pytest.mark.usefixtures("pair")
def test_what_has_become_of_each_model(check: Any) -> None:
    reports = ("--json", "r.json", "--markdown", "r.md", "--html", "r.html")
    said = check("diff", "a.json", "b.json", *reports, code=3).stdout
    assert said.splitlines() == [
        "worse: worse, error 1e-07, latency 0.80×, 1.5 s: nodes 101, baseline 100",
        "vanished: vanished: it is in the baseline, and there is no such model any more",
        "new: new, 100 nodes, error 1e-07, latency 0.80×, 1.5 s",
        "changed: changed, 100 nodes, error 1e-07, latency 0.80×, 1.5 s: the model's file has changed since the"
        " baseline",
        "better: better, error 1e-07, latency 0.80×, 1.5 s: nodes 99, baseline 100",
        "6 models of b.json against a.json: 1 worse, 1 vanished, 1 new, 1 changed, 1 better, 1 same",
    ]
    data = json.loads(Path("r.json").read_text())
    assert (data["baseline"], data["compared"], data["exit_code"]) == ("a.json", "b.json", 3)
    assert all(name == status for name, status in statuses().items())
    page = Path("r.md").read_text()
    assert page.startswith("## ortopt check diff failed\n\n6 models of b.json against a.json: 1 worse")
    assert "--update" not in page
    shown = data_of(Path("r.html").read_text())
    assert (shown["title"], shown["subtitle"]) == ("ortopt check diff failed", "6 models of b.json against a.json")
    assert check("diff", "a.json", "b.json", "-q", code=3).stdout.splitlines() == said.splitlines()[:2]


@pytest.mark.usefixtures("pair")
def test_nothing_that_is_worse_is_no_failure(check: Any) -> None:
    write("c.json", {"onnx": "2"}, same=WHOLE, new=WHOLE)
    write("a.json", same=WHOLE)
    assert check("diff", "a.json", "c.json").stdout.splitlines()[-2:] == [
        "note: other versions than the baseline's, so results may have other bytes: onnx 2 (baseline 1)",
        "2 models of c.json against a.json: 1 new, 1 same",
    ]
    assert "1 model of a.json against a.json: 1 same" in check("diff", "a.json", "a.json").stdout


def test_it_judges_as_a_check_does(check: Any, zoo: Path, passes: Any) -> None:
    check("zoo", "--baseline", "a.json", "--update", "-q")
    (zoo / "abs.onnx").rename(zoo / "moved.onnx")
    passes(without=["gelu_fusion", "bias_gelu_fusion"])
    check("zoo", "--baseline", "a.json", "--json", "checked.json", code=3)
    check("zoo", "--baseline", "b.json", "--update", "-q")
    check("diff", "a.json", "b.json", "--json", "r.json", code=3)
    assert statuses() == statuses("checked.json")
    assert set(statuses().values()) == {"worse", "vanished", "new", "same"}
    findings = [
        {row["name"]: row["findings"] for row in json.loads(Path(path).read_text())["models"]}
        for path in ("r.json", "checked.json")
    ]
    assert findings[0] == findings[1]


@pytest.mark.parametrize("folder", [True, False])
def test_thresholds_and_accepted_changes_of_a_manifest_hold(check: Any, zoo: Path, *, folder: bool) -> None:
    worse = {**WHOLE, "nodes": 103}
    write(
        "a.json", **{"x.onnx [fast]": WHOLE, "x.onnx [slow]": WHOLE, "y.onnx": WHOLE, "z.onnx": WHOLE, "w.onnx": WHOLE}
    )
    other = {**worse, **OTHER_FILE, "fused": {}, "ops": {}, "inputs": []}
    write("b.json", **{"x.onnx [fast]": worse, "x.onnx [slow]": worse, "y.onnx": other, "z.onnx": worse})
    (zoo / "ortopt-zoo.toml").write_text(
        '[configurations.fast]\nthresholds = { nodes = "5%" }\n[configurations.slow]\n'
        '[[model]]\nmatch = "y.onnx"\naccept_changes = "exported anew"\n'
        '[[model]]\nmatch = "z.onnx"\nskip = "too large"\n[[model]]\nmatch = "w.onnx"\nremoved = "it is old"\n'
    )
    check("diff", "a.json", "b.json", "zoo" if folder else "zoo/ortopt-zoo.toml", "--json", "r.json", code=3)
    assert statuses() == {
        "w.onnx": "skipped",
        "x.onnx [fast]": "same",
        "x.onnx [slow]": "worse",
        "y.onnx": "accepted",
        "z.onnx": "skipped",
    }


USAGE = {
    "takes two baselines and at most one manifest": ("a.json",),
    "at most one manifest": ("a.json", "b.json", "zoo/m.toml", "more"),
    "runs no model, so it takes no --update, --latency": ("a.json", "b.json", "--latency", "--update"),
    "takes no -O": ("a.json", "b.json", "-O1"),
    "--json would write over a baseline": ("a.json", "b.json", "--json", "b.json"),
}


@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize("because", USAGE)
def test_usage(check: Any, because: str) -> None:
    assert because in check("diff", *USAGE[because], code=1).stderr


@pytest.mark.usefixtures("pair")
def test_what_is_no_baseline(check: Any) -> None:
    assert "there is no such file" in check("diff", "a.json", "none.json", code=2).stderr
    Path("none.json").write_text("{}")
    assert "no baseline of ortopt check" in check("diff", "none.json", "a.json", code=2).stderr


@pytest.mark.usefixtures("pair")
def test_annotations_stand_at_the_second_baseline(check: Any) -> None:
    lines = check("diff", "a.json", "b.json", "--annotations", code=3).stdout.splitlines()
    worse, vanished = [line for line in lines if line.startswith("::")]
    at = Path("b.json").read_text().splitlines().index('  "worse": {') + 1
    assert worse.startswith(f"::error file=b.json,line={at},title=ortopt check%3A worse::worse: worse%0Anodes 101")
    assert vanished.startswith("::error title=ortopt check%3A vanished::vanished: vanished%0Ait is in the baseline")


def test_merge_takes_no_options_of_runs(check: Any, zoo: Path, passes: Any) -> None:
    check("zoo", "--baseline", "b.json", "--update", "-q")
    passes(More)
    check("zoo", "--baseline", "b.json", "--json", "1.json", "-q", code=3)
    assert (
        "`ortopt check merge` runs no model, so it takes no --strict"
        in check("merge", "1.json", "--strict", code=1).stderr
    )
    lines = check("merge", "1.json", "-q", code=3).stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["zoo/abs.onnx: worse"]
