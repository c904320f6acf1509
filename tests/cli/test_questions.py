"""The commands that change nothing: passes, info, explain, zoo."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ortopt.serialization.save import save
from ortopt.testing import parse


def test_passes_are_listed_with_their_formulas(ortopt: Any) -> None:
    lines = ortopt("passes").stdout.splitlines()
    assert re.split("  +", lines[0].strip()) == ["pass", "what becomes what", "levels", "marks"]
    rows = {cells[0]: cells[1:] for line in lines if (cells := re.split("  +", line.strip()))}
    assert rows["matmul_add_fusion"] == ["`Add(MatMul(a, b), c)` → `Gemm(a, b, c)`, also of a `Sum`", "1", "reordered"]
    assert rows["gelu_fusion"][1:] == ["1, 2", "reordered"]
    assert rows["identity_elimination"][1:] == ["1"]
    assert rows["approximation"][1:] == ["1", "approximate, off"]
    assert "off: runs only if --enable names it" in lines


def test_passes_are_listed_by_a_part_of_their_names(ortopt: Any) -> None:
    listed = json.loads(ortopt("passes", "qdq", "--json").stdout)
    assert [row["name"] for row in listed] == ["double_qdq_pairs_remover", "qdq_final_cleanup", "qdq_propagation"]
    assert json.loads(ortopt("passes", "QdqPro", "--json").stdout)[0]["name"] == "qdq_propagation"
    names = [line.split()[0] for line in ortopt("passes", "reshape_").stdout.splitlines() if line.startswith("reshape")]
    assert names == [
        *("reshape_elimination", "reshape_fusion", "reshape_merging", "reshape_transpose_fusion"),
        "reshape_transpose_reordering",
    ]
    assert "pre_shape_node_elimination" not in ortopt("passes", "reshape").stdout
    assert ortopt("passes", "gelu_fusion").stdout.startswith("gelu_fusion: "), "a whole name is one pass"


def test_a_pass_says_what_its_fused_ops_cost(ortopt: Any) -> None:
    row = json.loads(ortopt("passes", "skip_layer_norm_fusion", "--json").stdout)
    assert row["fuses"] == ["com.microsoft::SkipLayerNormalization"]
    assert {(cost["provider"], cost["verdict"]) for cost in row["costs"]} == {
        ("CPUExecutionProvider", "loses"),
        ("CUDAExecutionProvider", "pays"),
    }
    said = ortopt("passes", "skip_layer_norm_fusion").stdout
    assert "SkipLayerNormalization on CPU: loses, 2.50× to 7.69× slower than Add and LayerNormalization" in said
    assert "SkipLayerNormalization on CUDA: pays, not measured" in said


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("level", {"level 1": ["rms_norm_fusion"], "level 2": ["rms_norm_fusion", "skip_rms_norm_fusion"]}),
        (
            "root",
            {
                "Pow": ["rms_norm_fusion"],
                "RMSNormalization": ["skip_rms_norm_fusion"],
                "SimplifiedLayerNormalization": ["skip_rms_norm_fusion"],
                "Sqrt": ["rms_norm_fusion"],
            },
        ),
        ("numerics", {"reordered": ["rms_norm_fusion", "skip_rms_norm_fusion"]}),
    ],
)
def test_passes_are_listed_in_groups(ortopt: Any, by: str, expected: dict[str, list[str]]) -> None:
    data = json.loads(ortopt("passes", "rms_norm", "--by", by, "--json").stdout)
    groups = {group["group"]: [row["name"] for row in group["passes"]] for group in data}
    assert groups == expected
    shown = re.findall("^(.*): [0-9]+$", ortopt("passes", "rms_norm", "--by", by).stdout, re.MULTILINE)
    assert shown == list(expected)
    markdown = ortopt("passes", "rms_norm", "--by", by, "--markdown").stdout
    assert re.findall("^## (.*)$", markdown, re.MULTILINE) == list(expected)


def test_every_pass_is_in_a_group(ortopt: Any) -> None:
    names = {row["name"] for row in json.loads(ortopt("passes", "--json").stdout)}
    for by in ("level", "root", "numerics"):
        data = json.loads(ortopt("passes", "--by", by, "--json").stdout)
        assert {row["name"] for group in data for row in group["passes"]} == names


@pytest.mark.parametrize("name", ["matmul_add_fusion", "MatMulAddFusion"])
def test_one_pass(ortopt: Any, name: str) -> None:
    done = ortopt("passes", name)
    assert done.stdout.startswith("matmul_add_fusion: ")
    assert "ortopt.transformers.linear.matmul_add_fusion" in done.stdout
    assert "offered one by one" in done.stdout
    assert "a whole run is one rewrite" in ortopt("passes", "failure").stdout


def test_passes_as_data(ortopt: Any) -> None:
    found = {one["name"]: one for one in json.loads(ortopt("passes", "--json").stdout)}
    assert found["contrib"]["levels"] == [2, 3]
    assert found["contrib"]["produces"] == ["com.microsoft::QuickGelu"]
    assert found["contrib"]["origin"] == "a test"
    assert found["approximation"]["default"] is False
    assert found["approximation"]["numerics"] == "approximate"
    assert found["failure"]["offers_rewrites"] is False
    assert found["matmul_add_fusion"]["offers_rewrites"] is True
    one = json.loads(ortopt("passes", "constant_folding", "--json").stdout)
    assert one == found["constant_folding"]
    assert set(one["options"].get("max_growth", {"type", "default"})) == {"type", "default"}


def test_passes_as_markdown(ortopt: Any) -> None:
    lines = ortopt("passes", "--markdown").stdout.splitlines()
    assert lines[1] == "| --- | --- | --- | --- | --- |"
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines)
    assert any(line.startswith("| `matmul_add_fusion` | 1 |") for line in lines)


CONTROL = """
<ir_version: 10, opset_import: ["" : 17, "pkg" : 1], producer_name: "me", producer_version: "2">
main (float[N,M] x, bool c) => (float[N,?] y) <float[2,3] w = {1,2,3,4,5,6}> {
    k = Constant <value = float[3] {1.0, 2.0, 3.0}> ()
    t = pkg.Twice (x)
    y = If (c) <
        then_branch = one () => (float[N,?] a) { a = Identity (t) },
        else_branch = two () => (float[N,?] b) { b = MatMul (t, w) }
    >
}
<domain: "pkg", opset_import: ["" : 17]>
Twice (x) => (y) { y = Add (x, x) }"""


def test_info(ortopt: Any, model: Path) -> None:
    save(parse(CONTROL), model)
    data = json.loads(ortopt("info", model, "--json").stdout)
    assert data["opsets"] == {"ai.onnx": 17, "pkg": 1}
    assert data["ir_version"] == 10
    assert data["producer"] == {"name": "me", "version": "2"}
    assert data["inputs"] == [
        {"name": "x", "type": "FLOAT", "shape": ["N", "M"], "inferred": ["N", "M"]},
        {"name": "c", "type": "BOOL", "shape": [], "inferred": []},
    ]
    assert data["outputs"][0]["shape"] == ["N", None]
    assert data["by_op"] == {"Add": 1, "Constant": 1, "Identity": 1, "If": 1, "MatMul": 1, "pkg::Twice": 1}
    assert data["nodes"] == 6
    assert data["parameters"] == 9
    assert data["initializers"] == 1
    assert data["constant_bytes"] == 36
    assert data["file_bytes"] == model.stat().st_size
    assert data["functions"] == {"pkg::Twice": 1}
    assert data["subgraphs"] == 2
    shown = ortopt("info", model).stdout
    for text in ("ai.onnx 17", "[N, M]", "[N, ?]", "2 subgraphs", "1 functions", "pkg::Twice", "me 2"):
        assert text in shown


def test_info_reads_a_stream(ortopt: Any, model: Path) -> None:
    assert json.loads(ortopt("info", "-", "--json", stdin=model.read_bytes()).stdout)["nodes"] == 5


def test_names_in_a_model_cannot_write_to_the_terminal(ortopt: Any, model: Path) -> None:
    made = parse("main (float[N] x) => (float[N] y) { y = Relu (x) }")
    made.graph.inputs[0].name = "x\x1b]0;gotcha\x07\n[bold]"
    made.producer_name = "\x1b[2J"
    save(made, model)
    for command in (("info",), ("explain",)):
        more = ("matmul_add_fusion",) if command == ("explain",) else ()
        assert "\x1b" not in ortopt(*command, model, *more).output
    assert "[bold]" in ortopt("info", model).stdout


def test_explain_shows_rewrites_and_refusals(ortopt: Any, model: Path) -> None:
    text = """main (float[N,8] x, float[8,4] w, float[4] b, float[3,8,4] v) => (float[N,4] y, float[3,N,4] z) {
        i = Identity (x)
        m = MatMul (i, w)
        y = Add (m, b)
        n = MatMul (x, v)
        z = Add (n, b)
    }"""
    save(parse(text), model)
    data = json.loads(ortopt("explain", model, "MatMulAddFusion", "--json").stdout)
    assert data["pass"] == "matmul_add_fusion"
    assert [[node["op"] for node in one["nodes"]] for one in data["rewrites"]] == [["MatMul", "Add"]]
    assert data["rewrites"][0]["number"] == 2, "the Identity went first"
    ((refusal),) = data["refusals"]
    assert refusal["op"] == "Add"
    assert refusal["node"] == "z"
    assert "rank" in refusal["reason"]
    done = ortopt("explain", model, "matmul_add_fusion")
    assert "would make 1 rewrites and refuses 1 candidates" in done.stdout
    assert refusal["clause"] in done.stdout
    assert refusal["reason"] == f"{refusal['clause']} ({refusal['about']})"
    assert refusal["code"] == "absent"
    assert [path.name for path in model.parent.iterdir()] == ["m.onnx"]


def test_explain_without_a_pass_sums_all_up(ortopt: Any, model: Path) -> None:
    data = json.loads(ortopt("explain", model, "--json").stdout)
    assert (data["schema"], data["model"], data["level"]) == (1, str(model), 3)
    rows = {row["pass"]: row for row in data["passes"]}
    assert rows["matmul_add_fusion"]["rewrites"] == 1
    assert rows["identity_elimination"]["rewrites"] >= 1 or rows["noop_elimination"]["rewrites"] >= 1
    for row in data["passes"]:
        assert row["refusals"] == sum(reason["count"] for reason in row["reasons"])
    done = ortopt("explain", model)
    assert re.split("  +", done.stdout.splitlines()[0].strip()) == ["pass", "rewrites", "refused", "why"]
    assert "more passes ran and found no candidate" in done.stdout


def test_explain_alone_leaves_the_passes_before_it_out(ortopt: Any, model: Path) -> None:
    data = json.loads(ortopt("explain", model, "matmul_add_fusion", "--alone", "--json").stdout)
    assert [one["number"] for one in data["rewrites"]] == [1]


def test_explain_runs_up_to_the_pass_and_turns_it_on(ortopt: Any, model: Path) -> None:
    data = json.loads(ortopt("explain", model, "contrib", "--level", "2", "--json").stdout)
    assert data["level"] == 2
    assert len(data["rewrites"]) == 1
    assert json.loads(ortopt("explain", model, "contrib", "--json").stdout)["level"] == 3


def test_explain_takes_what_optimize_takes(ortopt: Any, model: Path) -> None:
    with_target = json.loads(ortopt("explain", model, "contrib", "--target", "onnx", "--json").stdout)
    assert with_target["rewrites"] == []
    assert [one["op"] for one in with_target["refusals"]] == ["Relu"]


def test_explain_says_what_failed(ortopt: Any, model: Path) -> None:
    said = ortopt("explain", model, "failure").stderr
    assert "failure failed at level 1" in said
    assert said.count("\n") == 1
    assert "\x1b" not in said


ATTENTION = """main (float[2,N,32] x, float[2,N,32] u) => (float[2,N,32] y, float[2,N,32] z)
    <int64[4] s = {0, 0, 4, 8}, int64[3] m = {0, 0, 32}, float c = {0.25}> {
        h1 = Reshape (x, s) q1 = Transpose <perm = [0, 2, 1, 3]> (h1) t1 = Transpose <perm = [0, 2, 3, 1]> (h1)
        a1 = MatMul (q1, t1) b1 = Mul (a1, c) p1 = Softmax <axis = -1> (b1) o1 = MatMul (p1, q1)
        w1 = Transpose <perm = [0, 2, 1, 3]> (o1) y = Reshape (w1, m)
        h2 = Reshape (u, s) q2 = Transpose <perm = [0, 2, 1, 3]> (h2) t2 = Transpose <perm = [0, 2, 3, 1]> (h2)
        a2 = MatMul (q2, t2) b2 = Mul (a2, c) p2 = Softmax <axis = 2> (b2) o2 = MatMul (p2, q2)
        w2 = Transpose <perm = [0, 2, 1, 3]> (o2) z = Reshape (w2, m)
    }"""
"""Two blocks; the softmax of the second is over the queries."""


@pytest.fixture
def attention(tmp_path: Path) -> Path:
    path = tmp_path / "attention.onnx"
    save(parse(ATTENTION), path)
    return path


def test_explain_lists_blocks_and_what_became_of_them(ortopt: Any, attention: Path) -> None:
    data = json.loads(ortopt("explain", attention, "attention", "--json").stdout)
    assert (data["family"], data["level"], data["fused"], data["spelled_out"]) == ("attention", 3, 1, 1)
    one, other = data["blocks"]
    assert one["op"] == "com.microsoft::MultiHeadAttention"
    facts = {name: one[name] for name in ("heads", "kv_heads", "head_size", "queries", "keys", "mask", "past")}
    assert facts == {
        "heads": 4, "kv_heads": 4, "head_size": 8, "queries": "N", "keys": "N", "mask": "none", "past": False,
    }  # fmt: skip
    assert (other["op"], other["node"], other["heads"], other["fused"]) == ("Softmax", "p2", 4, False)
    reason = next(reason for reason in other["reasons"] if reason["pass"] == "attention_fusion")
    assert reason["node"] == "o2"
    said = ortopt("explain", attention, "attention").stdout
    assert "1 of 2 attention blocks are one op at level 3" in said
    assert "4 of 8   N x N" in said
    assert "1 spelled out: the softmax is not over the keys" in said
    assert "Softmax p2: 4 heads, N x N (b2)" in said


def test_explain_says_why_blocks_are_left_by_request(ortopt: Any, attention: Path) -> None:
    for arguments, reason in (
        (("--fusions", "none"), "--fusions none takes no such op"),
        (("--level", "1"), "no pass that ran has looked at it"),
    ):
        said = ortopt("explain", attention, "attention", *arguments).stdout
        assert "0 of" in said
        assert reason in said


def test_explain_of_blocks_that_are_not_there(ortopt: Any, model: Path, attention: Path) -> None:
    assert "the model has no rotary embeddings" in ortopt("explain", model, "rotary").stdout


def test_blocks_are_counted_where_there_are_any(ortopt: Any, model: Path, attention: Path) -> None:
    assert "0 of 2 attention blocks" in ortopt("info", attention).stdout
    assert json.loads(ortopt("info", attention, "--json").stdout)["blocks"]["attention"] == {
        "fused": 0,
        "spelled_out": 2,
    }
    assert "fused" not in ortopt("info", model).stdout
    said = ortopt("optimize", attention, "-o", attention.with_name("out.onnx")).stdout
    assert "\nfused     1 attention block" in said
    assert "1 of 2 attention blocks in several ops (ortopt explain MODEL attention)" in " ".join(said.split())
    verbose = ortopt("optimize", attention, "-v", "-o", attention.with_name("out.onnx")).stdout
    assert "fused: 1 of 2 attention blocks\n" in verbose
    assert "attention" not in ortopt("optimize", model, "-o", model.with_name("out.onnx")).stdout


@pytest.mark.parametrize("command", [["explain", "identity_elimination"], ["bisect"]])
def test_what_the_time_limit_cut_short_is_said(ortopt: Any, model: Path, command: list[str]) -> None:
    done = ortopt(command[0], model, *command[1:], "--timeout", "1e-9")
    assert "stopped by the time limit" in done.stderr


def test_the_zoo_is_listed(ortopt: Any) -> None:
    found = {one["name"]: one for one in json.loads(ortopt("zoo", "list", "--json").stdout)}
    assert found["bert_small__ts17"]["opset"] == {"ai.onnx": 17}
    assert found["bert_small__ts17"]["inputs"]["input_ids"] == {"dtype": "int64", "shape": [2, 16]}
    assert "bert_small__ts17" in ortopt("zoo", "list").stdout


def test_a_zoo_model_is_grown(ortopt: Any, tmp_path: Path) -> None:
    assert ortopt("zoo", "grow", "lstm_tagger__ts13", "grown.onnx").output == ""
    assert json.loads(ortopt("info", "grown.onnx", "--json").stdout)["nodes"] > 0
    ortopt("zoo", "grow", "lstm_tagger__ts13", tmp_path, code=2)
    streamed = ortopt("zoo", "grow", "zoo:lstm_tagger__ts13", "-").stdout_bytes
    assert streamed == (tmp_path / "grown.onnx").read_bytes()


def test_explain_layout(ortopt: Any, tmp_path: Path) -> None:
    numbers = ", ".join(str(place % 5 - 2) for place in range(256))
    text = f"""main (float[1,16,4,4] x) => (float[1,16,4,4] y) <float[16,16,1,1] w = {{{numbers}}}> {{
        a = Conv (x, w) b = Erf (a) y = Conv (b, w) }}"""
    save(parse(text), tmp_path / "m.onnx")
    data = json.loads(ortopt("explain", tmp_path / "m.onnx", "layout", "--json").stdout)
    assert (data["kernels"], len(data["reordered_in"]), len(data["reordered_out"])) == (2, 2, 2)
    assert data["reordered_in"][1]["by"] == "Erf"
    assert [user["op"] for user in data["reordered_out"][0]["for"]] == ["Erf"]
    told = ortopt("explain", tmp_path / "m.onnx", "layout").stdout
    assert "2 nodes run in ONNX Runtime's blocked layout at level 3, with 4 reorders and 0 reshapes" in told
    assert "an input x [1x16x4x4], for Conv" in told
