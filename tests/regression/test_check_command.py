"""``ortopt check`` from nothing to a baseline to a caught regression; what it says, writes, and exits with."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ortopt.cli import check_run
from ortopt.regression.latency import Latency
from ortopt.serialization.save import save
from ortopt.testing import parse
from tests.regression.conftest import Failing, Inexact, More, Wrong
from tests.reporting.test_page import data_of

BASE = ("zoo", "--baseline", "b.json")


@pytest.fixture
def baseline(check: Any, zoo: Path) -> Path:
    check(*BASE, "--update", "-q")
    return zoo.parent / "b.json"


def models(path: str = "r.json") -> dict[str, Any]:
    return {row["name"]: row for row in json.loads(Path(path).read_text())["models"]}


def test_a_first_baseline_reads_well_and_the_same_run_is_as_good(check: Any, baseline: Path) -> None:
    data = json.loads(baseline.read_text())
    assert list(data["models"]) == ["zoo/abs.onnx", "zoo/gelu.onnx", "zoo/relu.onnx"]
    assert set(data["versions"]) == {"ortopt", "onnx", "onnx-ir", "onnxruntime", "costs"}
    facts = data["models"]["zoo/gelu.onnx"]
    assert (facts["nodes"], facts["fused"], facts["verified"]) == (1, facts["ops"], "verified")
    assert len(facts["model"]) == len(facts["result"]) == 64
    lines = baseline.read_text().splitlines()
    assert not [line for line in lines if line.count('": ') > 1]  # one fact a line
    before = baseline.read_text()
    assert "3 same" in check(*BASE).stdout
    check(*BASE, "--update")
    assert baseline.read_text() == before  # what was measured is kept while it stays near


def test_more_nodes_are_a_regression(check: Any, baseline: Path, passes: Any) -> None:
    passes(More)
    said = check(*BASE, "--json", "r.json", code=3).stdout
    assert "zoo/abs.onnx: worse" in said
    assert "nodes 3, baseline 2 (Abs -1, Max +1, Neg +1)" in said
    assert "more fires 1 times (baseline 0)" in said
    assert models()["zoo/relu.onnx"]["status"] == "same"
    assert "zoo/abs.onnx: accepted" in check(*BASE, "--update").stdout
    check(*BASE, "-q")  # accepted: what is compared from now on


def test_a_lost_fusion_is_a_regression_that_names_the_pass(check: Any, baseline: Path, passes: Any) -> None:
    passes(without=["gelu_fusion", "bias_gelu_fusion"])
    said = check(*BASE, code=3).stdout
    assert "zoo/gelu.onnx: worse" in said
    assert "fused op Gelu: 0, baseline 1: 1 lost; gelu_fusion no longer fires (1 times)" in said.replace(
        "com.microsoft::", ""
    )


def test_an_error_within_its_bound_and_above_the_threshold_is_a_regression(
    check: Any, baseline: Path, passes: Any
) -> None:
    passes(Inexact)
    said = check(*BASE, "--json", "r.json", code=3).stdout
    assert "zoo/relu.onnx: worse" in said
    (worse,) = [row for row in models()["zoo/relu.onnx"]["findings"] if row["kind"] == "worse"]
    assert worse["fact"] == "error"
    assert models()["zoo/relu.onnx"]["facts"]["verified"] == "verified"
    assert 0 == worse["baseline"] < worse["limit"] < worse["value"] < models()["zoo/relu.onnx"]["facts"]["bound"]
    assert "inexact fires 1 times" in worse["says"]


def test_a_repair_that_the_baseline_does_not_have_is_a_regression(check: Any, baseline: Path, passes: Any) -> None:
    passes(Wrong)
    said = check(*BASE, code=3).stdout
    assert "zoo/relu.onnx: worse" in said
    assert "wrong was left out because the result differed, baseline: not" in said


def test_a_slower_result_is_a_regression_where_the_interval_says_so(
    check: Any, baseline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ratios = [0.8, 0.79, 0.81, 0.8, 0.8, 0.82, 0.78, 0.8, 0.8]

    def latency(*_: Any, **__: Any) -> Latency:
        return Latency(measure=lambda *_: ratios)

    monkeypatch.setattr(check_run, "Latency", latency)
    only = ("zoo/relu.onnx", "--baseline", "b.json", "--latency")
    check(*only, "--update", "-q")
    assert json.loads(baseline.read_text())["models"]["zoo/relu.onnx"]["latency"]["ratio"] == 0.8
    ratios[:] = [0.7, 0.9, 1.2, 0.95, 0.75, 0.8, 1.1, 0.99, 0.85]  # slower by its median alone
    check(*only)
    ratios[:] = [1.0, 0.98, 1.02, 1.0, 1.01, 1.3, 0.97, 1.0, 1.0]
    said = check(*only, "--markdown", "r.md", code=3).stdout
    assert "latency 1.00× the original's (95 %: 0.98× to 1.02×) at N=1, baseline 0.80× (allowed: 0.84×)" in said
    assert " | 1.00× | " in Path("r.md").read_text()
    ratios[:] = [0.5, 0.51, 0.49] * 3
    assert "zoo/relu.onnx: better" in check(*only).stdout
    ratios[:] = [0.8] * 9
    assert ", latency 0.80×, " in check(*only).stdout


def test_better_is_told_and_kept(check: Any, zoo: Path, passes: Any) -> None:
    passes(More)
    check(*BASE, "--update", "-q")
    passes()
    said = check(*BASE).stdout
    assert "zoo/abs.onnx: better" in said
    assert "1 are better than the baseline: --update keeps that" in said
    check(*BASE, "--update", "-q")
    passes(More)
    check(*BASE, "-q", code=3)


def test_a_broken_model_costs_only_itself(check: Any, zoo: Path) -> None:
    (zoo / "broken.onnx").write_bytes(b"nonsense")
    done = check("zoo", "zoo/none.onnx", "--baseline", "b.json", "--update", "--json", "r.json", code=2)
    rows = models()
    assert [rows[f"zoo/{name}.onnx"]["status"] for name in ("abs", "broken", "none", "relu")] == [
        "new", "broken", "broken", "new",
    ]  # fmt: skip
    assert rows["zoo/broken.onnx"]["facts"] is None
    assert "not an ONNX model" in rows["zoo/broken.onnx"]["error"]
    assert "without a result, so not in the baseline: zoo/broken.onnx, zoo/none.onnx" in done.stderr
    assert len(json.loads(Path("b.json").read_text())["models"]) == 3


def test_of_several_codes_the_first_of_2_and_3(check: Any, baseline: Path, zoo: Path, passes: Any) -> None:
    passes(More)
    check(*BASE, "-q", code=3)
    (zoo / "broken.onnx").write_bytes(b"")
    check(*BASE, "-q", code=2)


def test_an_expected_failure_has_a_reason_until_it_passes(check: Any, zoo: Path) -> None:
    good = (zoo / "abs.onnx").read_bytes()
    (zoo / "abs.onnx").write_bytes(b"nonsense")
    (zoo / "ortopt-zoo.toml").write_text(
        'baseline = "base.json"\n[[model]]\nmatch = "abs.onnx"\nexpect_failure = "the exporter is broken"\n'
    )
    assert "abs.onnx: expected failure" in check("zoo", "--update").stdout
    (zoo / "abs.onnx").write_bytes(good)
    said = check("zoo").stdout
    assert "abs.onnx: fixed" in said
    assert "the exporter is broken" in said
    check("zoo", "--update")
    (zoo / "abs.onnx").write_bytes(b"nonsense")
    check("zoo", "-q", code=2)  # from now on it is a failure


UNSHOWN = "main (float[N] x) => (float[N] y) { z = Sub (x, x) y = Div (z, z) }"


def test_what_cannot_be_verified_is_told_and_a_failure_with_strict(check: Any, zoo: Path) -> None:
    from ortopt.serialization.save import save
    from ortopt.testing import parse

    save(parse(UNSHOWN), zoo / "nan.onnx")
    assert "zoo/nan.onnx: new" in check("zoo/nan.onnx", "--baseline", "n.json", "--update").stdout
    assert "could not be verified" in check("zoo/nan.onnx").stdout
    assert "zoo/nan.onnx: not verified" in check("zoo/nan.onnx", "--strict", code=3).stdout


def test_strict_and_a_provider_that_is_missing(check: Any, zoo: Path) -> None:
    for more in ((), ("--strict",)):
        done = check("zoo/abs.onnx", "--provider", "cann,cpu", *more)
        assert "CANNExecutionProvider does not work here" in done.stderr
        assert "results are verified on CPUExecutionProvider" in done.stderr
        assert "could not be verified" not in done.stdout


def test_a_configuration_is_a_case_of_its_own(check: Any, zoo: Path) -> None:
    Path("z.toml").write_text(
        'models = ["zoo"]\n[configurations.portable]\nlevel = 1\ntarget = "onnx"\n'
        '[configurations.fast]\nlevel = 3\n[[model]]\nmatch = "zoo/a*"\nconfiguration = "fast"\nskip = "too slow"\n'
    )
    check("z.toml", "--json", "r.json")
    rows = models()
    assert len(rows) == 6
    assert rows["zoo/abs.onnx [fast]"]["status"] == "skipped"
    assert rows["zoo/gelu.onnx [portable]"]["facts"]["options"] == "-O1 --target onnx"
    assert rows["zoo/gelu.onnx [fast]"]["facts"]["options"] == ""


def test_junit_and_markdown(check: Any, baseline: Path, passes: Any, zoo: Path) -> None:
    passes(More)
    (zoo / "a <b>|c.onnx").write_bytes(b"")
    check(*BASE, "--junit", "r.xml", "--markdown", "r.md", code=2)
    suite = ET.parse("r.xml").getroot()[0]
    assert [suite.get(key) for key in ("tests", "errors", "failures")] == ["4", "1", "1"]
    page = Path("r.md").read_text()
    assert page.startswith("## ortopt check failed")
    assert "nodes 3, baseline 2" in page
    assert "a &lt;b&gt;\\|c.onnx" in page


def test_shards_are_the_whole_and_merge_to_the_same(check: Any, baseline: Path, passes: Any) -> None:
    passes(More)
    whole = check(*BASE, "--json", "whole.json", code=3)
    codes = []
    for number in (1, 2):
        Path(f"{number}.json").unlink(missing_ok=True)
        try:
            check(*BASE, "--shard", f"{number}/2", "--json", f"{number}.json")
            codes.append(0)
        except AssertionError:
            codes.append(3)
    assert sorted(codes) == [0, 3]
    assert not models("1.json").keys() & models("2.json").keys()
    check("merge", "1.json", "2.json", "--json", "all.json", "--junit", "all.xml", code=3)
    assert models("all.json").keys() == models("whole.json").keys()
    assert "part 2/2 is missing" in check("merge", "1.json", code=2).stderr
    assert "twice" in check("merge", "1.json", "1.json", "2.json", code=1).stderr
    Path("3.json").write_text(Path("1.json").read_text())
    assert "twice" in check("merge", "1.json", "3.json", "2.json", code=2).stderr
    assert "3 models" in whole.stdout


def test_what_is_done_is_not_done_again(check: Any, zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.regression.conftest import InProcess

    runners: list[InProcess] = []
    monkeypatch.setattr(check_run, "Pool", lambda *_, **__: runners.append(InProcess()) or runners[-1])
    check("zoo/abs.onnx", "--resume", "j.jsonl", "-q")
    with Path("j.jsonl").open("a") as file:
        file.write('{"cut o')
    check("zoo", "--resume", "j.jsonl", "--json", "r.json")
    check("zoo", "--resume", "j.jsonl")
    assert [sorted(runner.ran) for runner in runners] == [
        ["zoo/abs.onnx"],
        ["zoo/gelu.onnx", "zoo/relu.onnx"],
        [],
    ]
    assert models()["zoo/abs.onnx"]["facts"]["nodes"] == 2
    (zoo / "abs.onnx").write_bytes((zoo / "relu.onnx").read_bytes())
    check("zoo", "--resume", "j.jsonl")
    assert runners[-1].ran == ["zoo/abs.onnx"]


def test_an_interrupted_run_leaves_what_is_known_and_goes_on(
    check: Any, zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.regression.conftest import InProcess

    class Interrupted(InProcess):
        def run(self, jobs: Any, done: Any, begun: Any) -> None:
            super().run(jobs[:2], done, begun)
            raise KeyboardInterrupt

    monkeypatch.setattr(check_run, "Pool", Interrupted)
    done = check("zoo", "--resume", "j.jsonl", "--json", "r.json", code=130)
    assert done.stderr == "ortopt: cancelled\n"
    assert json.loads(Path("r.json").read_text())["stopped"]
    assert len(models()) == 2
    assert "was interrupted" in check("merge", "r.json", code=2).stderr
    runner = InProcess()
    monkeypatch.setattr(check_run, "Pool", lambda *_, **__: runner)
    check("zoo", "--resume", "j.jsonl", "--json", "r.json")
    assert len(runner.ran) == 1
    assert len(models()) == 3


def test_only_what_changed_runs(check: Any, baseline: Path, zoo: Path) -> None:
    (zoo / "abs.onnx").write_bytes((zoo / "relu.onnx").read_bytes())
    check(*BASE, "--changed-since", "b.json", "--json", "r.json")
    statuses = {name: row["status"] for name, row in models().items()}
    assert statuses == {"zoo/abs.onnx": "changed", "zoo/gelu.onnx": "not run", "zoo/relu.onnx": "not run"}
    check(*BASE, "--changed-since", "b.json", "--json", "r.json", "-O2")
    assert {row["status"] for row in models().values()} == {"changed"}


USAGE: dict[str, Callable[[Path], list[object]]] = {
    "no model": lambda _: ["empty"],
    "an empty name": lambda _: [""],
    "no such pattern": lambda _: ["zoo/*.nothing"],
    "no such zoo model": lambda _: ["zoo:bert_smal"],
    "update without a file": lambda _: ["zoo", "--update"],
    "update of a part": lambda _: ["zoo", "--update", "--baseline", "b.json", "--shard", "1/2"],
    "shard": lambda _: ["zoo", "--shard", "3/2"],
    "shard text": lambda _: ["zoo", "--shard", "half"],
    "level": lambda _: ["zoo", "-O9"],
    "pass": lambda _: ["zoo", "--disable", "no_such_pass"],
    "two to stdout": lambda _: ["zoo", "--json", "-", "--junit", "-"],
    "report over a model": lambda _: ["zoo", "--json", "zoo/abs.onnx"],
    "memory": lambda _: ["zoo", "--max-memory", "1MB"],
}


@pytest.mark.parametrize("name", USAGE)
def test_usage(check: Any, zoo: Path, name: str) -> None:
    (zoo.parent / "empty").mkdir()
    done = check(*USAGE[name](zoo), code=1)
    assert done.stderr.startswith("ortopt: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_baseline_that_is_missing_or_none(check: Any, zoo: Path) -> None:
    assert "--update writes a first baseline" in check("zoo", "--baseline", "none.json", code=2).stderr
    Path("bad.json").write_text("[1]")
    assert "no baseline" in check("zoo", "--baseline", "bad.json", code=2).stderr


def test_a_result_that_differs_is_not_in_a_baseline(check: Any, zoo: Path, passes: Any) -> None:
    passes(Wrong)
    (zoo / "ortopt-zoo.toml").write_text('baseline = "b.json"\n[defaults]\nrepair = false\n')
    said = check("zoo", "--update", code=3).stdout
    assert "relu.onnx: differs: the result differs from the original" in said
    assert "zoo/relu.onnx" not in json.loads((zoo / "b.json").read_text())["models"]


def test_the_first_layer_that_differs_is_in_all_reports(check: Any, zoo: Path, passes: Any) -> None:
    passes(Wrong)
    text = "main (float[N,8] x) => (float[N,8] y) { r = Relu (x) y = Exp (r) }"
    model = parse(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    model.graph[0].name = "/net/block.0/Relu"
    save(model, zoo / "relu.onnx")
    (zoo / "ortopt-zoo.toml").write_text("[defaults]\nrepair = false\n")
    reports = ("--json", "r.json", "--markdown", "r.md", "--html", "r.html", "--junit", "r.xml")
    said = check("zoo", "--layers", *reports, code=3).stdout
    told = "the first intermediate value that differs: 'r' (Relu, in B Neg of wrong; layer net/block.0): "
    assert told in said.replace("\n", " ")
    row = models()["relu.onnx"]
    layers = row["facts"]["layers"]
    assert (row["status"], layers["first"]["value"], layers["first"]["made_by"]) == ("differs", "r", "wrong")
    assert [(layer["layer"], layer["differing"]) for layer in layers["by_layer"]] == [("net/block.0", 2)]
    assert "rows" not in layers
    assert "layers" not in models()["abs.onnx"]["facts"]
    assert "the first intermediate value that differs: 'r'" in Path("r.md").read_text()
    assert "the first intermediate value that differs: 'r'" in Path("r.xml").read_text()
    assert any(told in line for one in data_of(Path("r.html").read_text())["rows"] for line in one["says"])
    assert "intermediate" not in check("zoo", code=3).stdout


def test_models_that_are_not_named_stay_in_the_baseline(check: Any, baseline: Path, zoo: Path) -> None:
    check("zoo/abs.onnx", "--baseline", "b.json", "--update", "-q")
    assert len(json.loads(baseline.read_text())["models"]) == 3
    (zoo / "relu.onnx").unlink()
    said = check("zoo/abs.onnx", "zoo/gelu.onnx", "--baseline", "b.json", "--update").stdout
    assert "1 of the baseline were not checked: zoo/relu.onnx" in said
    assert len(json.loads(baseline.read_text())["models"]) == 3
    check(*BASE, "--update", "--prune", "-q")
    assert list(json.loads(baseline.read_text())["models"]) == ["zoo/abs.onnx", "zoo/gelu.onnx"]
    assert "--prune works with --update only" in check(*BASE, "--prune", code=1).stderr


def test_shards_write_a_baseline(check: Any, zoo: Path) -> None:
    for number in (1, 2):
        check("zoo", "--shard", f"{number}/2", "--json", f"{number}.json", "-q")
    check("merge", "1.json", "2.json", "--baseline", "b.json", "--update", "-q")
    assert "3 same" in check(*BASE).stdout
    assert "--update needs --baseline" in check("merge", "1.json", "2.json", "--update", code=1).stderr
    Path("3.json").write_text("{}")
    assert "no results of ortopt check" in check("merge", "1.json", "3.json", code=2).stderr


def test_a_pass_that_fails(check: Any, baseline: Path, passes: Any) -> None:
    passes(Failing)
    said = check(*BASE, code=3).stdout
    assert "failing was left out because it failed, baseline: not" in said
    assert "zoo/abs.onnx: failed pass" in check("zoo/abs.onnx", "--strict", code=4).stdout


def test_what_the_manifest_expects_is_in_the_files_for_others(check: Any, zoo: Path) -> None:
    (zoo / "abs.onnx").write_bytes(b"nonsense")
    (zoo / "ortopt-zoo.toml").write_text(
        '[[model]]\nmatch = "abs.onnx"\nexpect_failure = "old"\n[[model]]\nmatch = "gelu*"\nskip = "slow"\n'
    )
    check("zoo", "--junit", "r.xml", "--json", "r.json", "--markdown", "r.md")
    suite = ET.parse("r.xml").getroot()[0]
    assert [suite.get(key) for key in ("tests", "errors", "failures", "skipped")] == ["3", "0", "0", "2"]
    rows = models()
    assert (rows["abs.onnx"]["status"], rows["abs.onnx"]["reason"]) == ("expected failure", "old")
    assert rows["abs.onnx"]["error"]
    assert (rows["gelu.onnx"]["status"], rows["gelu.onnx"]["reason"]) == ("skipped", "slow")
    assert Path("r.md").read_text().startswith("## ortopt check passed")
