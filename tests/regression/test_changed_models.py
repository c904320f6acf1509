"""Models whose file or options are not the baseline's, and models that have vanished."""

from __future__ import annotations

import copy
import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from ortopt import zoo as shipped
from ortopt.regression.comparison import compare
from ortopt.regression.facts import Facts
from ortopt.regression.results import Finding
from ortopt.regression.thresholds import DEFAULTS, parse_all
from ortopt.serialization.save import save
from ortopt.testing import parse
from tests.regression.conftest import MODELS
from tests.regression.facts import WHOLE

BASE = ("zoo", "--baseline", "b.json")
OLDER = {key: value for key, value in WHOLE.items() if key not in ("original", "blocks")}


@pytest.fixture
def baseline(check: Any, zoo: Path) -> Path:
    check(*BASE, "--update", "-q")
    return zoo.parent / "b.json"


def statuses(path: str = "r.json") -> dict[str, str]:
    return {row["name"]: row["status"] for row in json.loads(Path(path).read_text())["models"]}


def found(before: Facts = WHOLE, thresholds: Any = DEFAULTS, **now: Any) -> dict[str, Finding]:
    """What is said of a re-exported model, by fact."""
    facts = {**copy.deepcopy(WHOLE), "model": "c" * 64, **now}
    return {row.fact: row for row in compare(facts, before, thresholds, same_versions=True)}


def worse(**now: Any) -> set[str]:
    return {row.fact for row in found(**now).values() if row.kind == "worse"}


def test_another_export_that_gives_the_same_is_no_regression() -> None:
    assert {fact: row.kind for fact, row in found().items()} == {"model": "note"}
    again = found(original={"nodes": 1800, "weights": 1_000_000}, rewrites={"constant_folding": 900})
    assert {row.kind for row in again.values()} <= {"note", "better"}
    half = found(original={"nodes": 200, "weights": 1_000_000})  # an exporter that leaves less to do
    assert {row.kind for row in half.values()} == {"note"}


LOST = {"Add": 100, "MatMul": 30, "Erf": 10, "Mul": 20}


def test_lost_fusions_are_worse_and_told_with_their_pass() -> None:
    rows = found(nodes=160, ops=LOST, fused={}, rewrites={"constant_folding": 9})
    assert rows["fused.com.microsoft::Gelu"].kind == "worse"
    says = rows["fused.com.microsoft::Gelu"].says
    assert says == "fused op com.microsoft::Gelu: 0, baseline 10: 10 lost; gelu_fusion no longer fires (10 times)"
    assert rows["node_share"].kind == "worse"
    assert rows["node_share"].says.startswith("nodes 160 of 400 before (40.0%), baseline 100 of 400 before (25.0%)")
    assert "Add +40" in rows["node_share"].says


def test_lost_fusions_are_worse_where_the_exporter_wrote_more_nodes() -> None:
    """The share of nodes is less than before, and the fused ops are gone all the same."""
    assert worse(nodes=160, ops=LOST, fused={}, original={"nodes": 1800, "weights": 1_000_000}) == {
        "fused.com.microsoft::Gelu"
    }


def test_a_model_of_half_the_layers_is_no_regression() -> None:
    half = found(
        nodes=52,
        ops={"Add": 32, "MatMul": 15, "com.microsoft::Gelu": 5},
        fused={"com.microsoft::Gelu": 5},
        original={"nodes": 205, "weights": 500_000},
        blocks={"attention": {"found": 6, "fused": 6}, "normalization": {"found": 13, "fused": 12}},
        size=508_000,
    )
    assert "worse" not in {row.kind for row in half.values()}
    assert half["fused.com.microsoft::Gelu"].kind == "note"


def test_a_model_of_twice_the_layers_is_none_unless_the_new_ones_are_spelled_out() -> None:
    twice: dict[str, Any] = {"original": {"nodes": 800, "weights": 2_000_000}, "size": 2_020_000}
    ops = {"Add": 120, "MatMul": 60, "com.microsoft::Gelu": 20}
    blocks = {"attention": {"found": 24, "fused": 24}, "normalization": {"found": 50, "fused": 48}}
    assert worse(**twice, nodes=200, ops=ops, fused={"com.microsoft::Gelu": 20}, blocks=blocks) == set()
    ops = {"Add": 240, "MatMul": 60, "com.microsoft::Gelu": 10}
    blocks = {"attention": {"found": 24, "fused": 12}, "normalization": {"found": 50, "fused": 48}}
    assert worse(**twice, nodes=310, ops=ops, blocks=blocks) == {"node_share", "blocks.attention"}


def test_blocks_that_nothing_finds_any_more() -> None:
    rows = found(blocks={"normalization": {"found": 25, "fused": 24}})
    assert rows["blocks.attention"].kind == "worse"
    assert rows["blocks.attention"].says == "attention: 0 of 0 blocks are one op, baseline 12 of 12"
    part = {"attention": {"found": 12, "fused": 11}, "normalization": {"found": 25, "fused": 25}}
    rows = found(blocks=part)
    assert (rows["blocks.attention"].kind, rows["blocks.normalization"].kind) == ("worse", "better")
    assert found(blocks=part, thresholds={**DEFAULTS, **parse_all({"blocks": 0.1})})["blocks.attention"].kind == "note"


def test_an_op_of_the_original_is_not_lost() -> None:
    """A new exporter writes Gelu itself: the result has it, and has not gained it."""
    assert worse(fused={}) == set()
    rows = found(ops={"Add": 60, "MatMul": 30, "com.microsoft::FastGelu": 10}, fused={"com.microsoft::FastGelu": 10})
    assert rows["fused.com.microsoft::Gelu"].kind == "note"


def test_bytes_relative_to_the_weights() -> None:
    assert worse(size=2_020_000, original={"nodes": 400, "weights": 2_000_000}) == set()
    assert worse(size=2_020_000) == {"size_share"}
    assert worse(size=1_025_000, original={"nodes": 400, "weights": 900_000}) == set()  # hardly more bytes


@pytest.mark.parametrize(
    ("inputs", "outputs", "kind"),
    [
        (["x: float[batch,8]"], ["y: float[s0,8]"], "note"),
        (["x: float[N,M]"], ["y: float[N,M]"], "note"),
        (["x: float[4,8]"], ["y: float[N,8]"], "worse"),
        (["x: float[N,9]"], ["y: float[N,8]"], "worse"),
        (["x: float[N,8]"], ["y: float[N,9]"], "worse"),
        (["x: float[N,8]"], ["y: float[4,8]"], "note"),
        (["x: float[N,8,1]"], ["y: float[N,8]"], "worse"),
        (["x: float16[N,8]"], ["y: float[N,8]"], "worse"),
        (["z: float[N,8]"], ["y: float[N,8]"], "worse"),
        (["x: float[N,8]", "z: float[N]"], ["y: float[N,8]"], "worse"),
        (["x: float[N,8]"], [], "worse"),
        (["x: float"], ["y: float[N,8]"], "note"),
        (["x: float[N,8]"], ["y: float"], "note"),
        (["x: float[N,8]"], ["y: double[N,8]"], "worse"),
    ],
)
def test_the_interface(inputs: list[str], outputs: list[str], kind: str) -> None:
    rows = found(inputs=inputs, outputs=outputs)
    kinds = {row.kind for fact, row in rows.items() if fact in ("inputs", "outputs")}
    assert ("worse" if "worse" in kinds else "note") == kind


def test_repairs_verification_and_speed_count_and_error_and_time_do_not() -> None:
    assert worse(verified="impossible") == {"verified"}
    assert worse(repairs={"gelu_fusion": 1}) == {"repairs.gelu_fusion"}
    assert worse(failures={"gelu_fusion": 1}) == {"failures.gelu_fusion"}
    assert worse(latency={"ratio": 1.0, "low": 0.95, "high": 1.05, "rounds": 9}) == {"latency"}
    assert worse(error=1e-5, seconds=900.0, memory=9_000_000_000) == set()


def test_a_baseline_of_an_older_ortopt_compares_what_it_has() -> None:
    rows = found(OLDER)
    assert {fact: row.kind for fact, row in rows.items()} == {"model": "note"}
    assert "which an older ortopt wrote: shares of nodes, bytes and blocks are not compared" in rows["model"].says
    assert worse(before=OLDER, nodes=111) == {"nodes"}
    assert worse(before=OLDER, size=1_100_000) == {"size"}
    assert worse(before=OLDER, nodes=99, ops={"Add": 99}, fused={}) == {"fused.com.microsoft::Gelu"}
    assert worse(before=OLDER, inputs=["x: double[N,8]"]) == {"inputs"}


def test_options_compare_every_figure_as_ever() -> None:
    now = {**WHOLE, "options": "-O1", "nodes": 101}
    rows = {row.fact: row for row in compare(now, WHOLE, DEFAULTS, same_versions=True)}
    assert rows["nodes"].kind == "worse"
    assert rows["options"].says == "the options have changed since the baseline: -O1, baseline -O2"


# The command line, from file to report


def other_gelu(zoo: Path) -> None:
    """The same model from another exporter, and a form of Gelu that nothing recognises."""
    save(
        parse(MODELS["gelu"].replace("Div (x, two)", "Neg (x)").replace("Mul (x, p)", "Mul (p, p)")), zoo / "gelu.onnx"
    )


def test_every_report_shows_a_changed_model_that_is_worse(check: Any, baseline: Path, zoo: Path) -> None:
    other_gelu(zoo)
    reports = ("--json", "r.json", "--junit", "r.xml", "--markdown", "r.md", "--html", "r.html")
    said = check(*BASE, *reports, code=3).stdout
    assert "zoo/gelu.onnx: worse" in said
    assert "fused op com.microsoft::Gelu: 0, baseline 1: 1 lost; gelu_fusion no longer fires (1 times)" in said
    assert "the model's file has changed since the baseline" in said
    assert "to accept what is worse: --update, or accept_changes in the manifest" in said
    assert statuses() == {"zoo/abs.onnx": "same", "zoo/gelu.onnx": "worse", "zoo/relu.onnx": "same"}
    suite = ET.parse("r.xml").getroot()[0]
    (failure,) = suite.findall("testcase/failure")
    assert (failure.get("message") or "").startswith("fused op com.microsoft::Gelu: 0")
    assert "| <code>zoo/gelu.onnx</code> | worse | " in Path("r.md").read_text()
    assert "1 worse" in Path("r.md").read_text()
    assert Path("r.html").stat().st_size > 10_000
    assert "zoo/gelu.onnx: accepted" in check(*BASE, "--update").stdout
    check(*BASE, "-q")


@pytest.mark.parametrize("where", ["[defaults]\n", '[[model]]\nmatch = "gelu*"\n'])
def test_a_manifest_accepts_changes(check: Any, zoo: Path, where: str, passes: Any) -> None:
    (zoo / "ortopt-zoo.toml").write_text(f'baseline = "../b.json"\n{where}accept-changes = "exported each night"\n')
    check("zoo", "--update", "-q")
    other_gelu(zoo)
    said = check("zoo", "--json", "r.json").stdout
    assert "gelu.onnx: accepted" in said
    assert "exported each night" in said
    assert statuses()["gelu.onnx"] == "accepted"
    save(parse(MODELS["gelu"]), zoo / "gelu.onnx")
    check("zoo", "-q")
    passes(without=["gelu_fusion", "bias_gelu_fusion"])
    check("zoo", "-q", code=3)  # the model is the baseline's: what has changed is ortopt


def test_a_pass_left_out_by_an_option_is_worse(check: Any, baseline: Path) -> None:
    said = check(*BASE, "--disable", "gelu_fusion,bias_gelu_fusion", "--json", "r.json", code=3).stdout
    assert "fused op com.microsoft::Gelu: 0, baseline 1: 1 lost; gelu_fusion no longer fires (1 times)" in said
    assert "the options have changed since the baseline: --disable gelu_fusion,bias_gelu_fusion, baseline none" in said
    assert statuses() == {"zoo/abs.onnx": "changed", "zoo/gelu.onnx": "worse", "zoo/relu.onnx": "changed"}


def test_a_baseline_of_an_older_ortopt_is_told_of(check: Any, baseline: Path) -> None:
    data = json.loads(baseline.read_text())
    for facts in data["models"].values():
        del facts["original"], facts["blocks"]
    baseline.write_text(json.dumps(data))
    assert "note: 3 models of the baseline were written by an older ortopt" in check(*BASE).stdout
    check(*BASE, "--update", "-q")
    assert "older" not in check(*BASE).stdout


def test_a_model_that_has_vanished(check: Any, baseline: Path, zoo: Path) -> None:
    (zoo / "relu.onnx").unlink()
    for named in ("zoo", "zoo/*.onnx", "z*/**/*.onnx", "z*", str(zoo)):
        done = check(named, "--baseline", "b.json", "--json", "r.json", "--junit", "r.xml", code=3)
        assert "zoo/relu.onnx: vanished: it is in the baseline, and there is no such model any more" in done.stdout
        assert statuses() == {"zoo/abs.onnx": "same", "zoo/gelu.onnx": "same", "zoo/relu.onnx": "vanished"}
        assert len(ET.parse("r.xml").getroot()[0].findall("testcase/failure")) == 1
    assert "vanished" not in check("zoo/abs.onnx", "zoo/gelu.onnx", "--baseline", "b.json").stdout
    assert "vanished" not in check("zoo/a*.onnx", "--baseline", "b.json").stdout
    check(*BASE, "--update", "-q", code=3)
    assert "zoo/relu.onnx" in json.loads(baseline.read_text())["models"]
    assert "zoo/relu.onnx: accepted" in check(*BASE, "--update", "--prune").stdout
    assert "zoo/relu.onnx" not in json.loads(baseline.read_text())["models"]
    check(*BASE, "-q")


def test_a_manifest_says_that_a_model_was_removed(check: Any, zoo: Path) -> None:
    manifest = zoo / "ortopt-zoo.toml"
    manifest.write_text('baseline = "../b.json"\n[configurations.low]\nlevel = 1\n[configurations.high]\nlevel = 3\n')
    check("zoo", "--update", "-q")
    said = '[[model]]\nmatch = "relu.onnx"\nremoved = "abs.onnx takes its place"\n'
    (zoo / "relu.onnx").unlink()
    assert "2 vanished" in check("zoo", code=3).stdout
    text = manifest.read_text()
    manifest.write_text(text + said)
    assert "relu.onnx [low]: skipped: abs.onnx takes its place" in check("zoo").stdout
    check("zoo", "--update", "--prune", "-q")
    assert len(json.loads(Path("b.json").read_text())["models"]) == 4
    manifest.write_text(text.replace("[configurations.low]\nlevel = 1\n", "") + said)
    done = check("zoo", code=3).stdout
    assert "abs.onnx [low]: vanished: it is in the baseline, and there is no such configuration of it any more" in done


def test_shards_tell_of_a_vanished_model_once(check: Any, baseline: Path, zoo: Path) -> None:
    (zoo / "relu.onnx").unlink()
    for number, code in ((1, 3), (2, 0)):
        check(*BASE, "--shard", f"{number}/2", "--json", f"{number}.json", "-q", code=code)
    said = check("merge", "1.json", "2.json", code=3).stdout
    assert said.count("zoo/relu.onnx: vanished") == 1
    done = check("merge", "1.json", "2.json", "--baseline", "b.json", "--update", "--prune")
    assert "zoo/relu.onnx: accepted" in done.stdout
    assert len(json.loads(baseline.read_text())["models"]) == 2


def test_models_of_the_zoo_vanish_too(check: Any, baseline: Path) -> None:
    data = json.loads(baseline.read_text())
    row = data["models"]["zoo/abs.onnx"]
    data["models"] = {"zoo:lstm_gone__ts13": row, "zoo:bert_gone__ts17": row}
    baseline.write_text(json.dumps(data))
    one = "zoo:lstm_tagger__ts13"
    assert "vanished" not in check(one, "--baseline", "b.json").stdout
    said = check("zoo:lstm*", "--baseline", "b.json", code=3).stdout
    assert "zoo:lstm_gone__ts13: vanished" in said
    assert "1 of the baseline were not checked: zoo:bert_gone__ts17" in said


@pytest.mark.parametrize(
    ("first", "second", "is_worse"),
    [("bert_small__ts17", "bert_small__dyn20raw", False), ("bert_small__dyn20raw", "bert_small__ts17", True)],
)
def test_two_exports_of_one_network(check: Any, zoo: Path, first: str, second: str, is_worse: bool) -> None:
    """One exporter's graph ends with 59 nodes, the other's with 74; both keep all of their attention blocks."""
    only = ("zoo/net.onnx", "--baseline", "b.json")
    shutil.copy(shipped.cached(first), zoo / "net.onnx")
    check(*only, "--update", "-q")
    shutil.copy(shipped.cached(second), zoo / "net.onnx")
    said = check(*only, "--json", "r.json", code=3 if is_worse else 0).stdout
    assert statuses() == {"zoo/net.onnx": "worse" if is_worse else "changed"}
    assert ("nodes 74 of 480 before" in said) == is_worse
    lost = check(*only, "--disable", "attention_fusion", code=3).stdout
    assert "attention: 0 of 4 blocks are one op, baseline 4 of 4; attention_fusion no longer fires (4 times)" in lost
