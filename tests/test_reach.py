"""What `make reach` counts, and that some of the zoo's blocks are single ops in results."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from rich.console import Console

from benchmarks.exports.architecture import activation, attention, is_set_aside, layer_norm, rotary
from benchmarks.exports.catalog import ARCHITECTURES
from benchmarks.reach import tables
from benchmarks.reach.__main__ import report
from benchmarks.reach.comparison import Share, compare
from benchmarks.reach.expectation import Expected, of_folder, of_zoo
from benchmarks.reach.fused import KINDS, Fused, Head, fused
from benchmarks.reach.measure import Outcome, Setting, before, measure
from ortopt import zoo
from ortopt.testing import parse

CPU = Setting("cpu all", ("cpu",), {"fusions": "all"})
SKELETONS = [name for name in zoo.names() if not name.startswith("light_")]
REACHED = ("bert_small__ts17", "llama_past__ts17", "t5_encoder__ts17", "vit_tiny__dyn20raw")
BLOCKS = json.loads((zoo.skeleton(SKELETONS[0]).parent / "blocks.json").read_text(encoding="utf-8"))

ATTENTIONS = """
main (float[1,2,8] q, float[1,3,8] k, float[1,1,2,3] mask, float[1,2,5,4] past, float[1,4,2,2] h,
      int32[1] s, int32 t, int64[1] i, float[9,4] j, float[8] w) => (float[1,2,8] y) {
  a = Attention<q_num_heads=2, kv_num_heads=1>(q, k, k, mask)
  b = com.microsoft.MultiHeadAttention<num_heads=4>(q, k, k)
  c, d, e = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2, do_rotary=1>(q, k, k, past, past, s, t)
  f = Attention<is_causal=1>(h, h, h)
  g = Softmax(q)
  r = com.microsoft.RotaryEmbedding(q, i, j, j)
  y = Gelu<approximate="tanh">(q)
  z = com.microsoft.QuickGelu<alpha=1.0>(q)
  l = com.microsoft.SkipLayerNormalization(q, q, w)
}
"""


def test_each_op_is_counted_as_what_it_is() -> None:
    found = fused(parse(ATTENTIONS, opset=23))
    assert found.attention == (
        Head(2, 1, masked=True, past=False),
        Head(4, 4, masked=False, past=False),
        Head(4, 2, masked=True, past=True),
        Head(4, 4, masked=True, past=False),
    )
    assert found.counts == {"rotary": 3, "activation gelu_tanh": 1, "activation silu": 1, "layer_norm": 1}


def test_nested_graphs_are_counted() -> None:
    inner = "then_branch = t () => (float[2] a) { a = Gelu (x) }, else_branch = e () => (float[2] b) { b = Relu (x) }"
    model = parse(f"main (bool c, float[2] x) => (float[2] y) {{ y = If (c) <{inner}> }}", opset=20)
    assert fused(model).counts == {"activation gelu": 1}


def test_attention_is_compared_by_heads_and_then_by_the_rest() -> None:
    blocks = [attention(2, 4, kv=2, mask="causal", past=True), attention(1, 8)]
    whole = Head(4, 2, masked=True, past=True)
    assert compare(blocks, Fused((whole, whole, Head(8, 8, False, False)), {})) == {"attention": Share(3, 3, 3, 0)}
    repeated = Head(4, 4, masked=True, past=True)
    assert compare(blocks, Fused((whole, repeated), {})) == {"attention": Share(3, 2, 1, 0)}
    assert compare(blocks, Fused((Head(2, 2, False, False),), {})) == {"attention": Share(3, 0, 0, 1)}


def test_heads_may_differ_by_block() -> None:
    assert compare([attention(2, [2, 4])], Fused((Head(4, 4, False, False),), {})) == {"attention": Share(2, 1, 1, 0)}


def test_activations_are_compared_by_their_function() -> None:
    blocks = [activation(2, "gelu"), activation(1, "silu"), layer_norm(1), rotary(2)]
    shares = compare(blocks, Fused((), {"activation gelu": 3, "activation gelu_tanh": 1, "layer_norm": 1}))
    assert shares["activation"] == Share(3, 2, 2, 2)
    assert shares["layer_norm"] == Share(1, 1, 1, 0)
    assert shares["rotary"] == Share(2, 0, 0, 0)


@pytest.fixture
def unfused(tmp_path: Path) -> Expected:
    """An attention whose probabilities are read twice: no pass may take it."""
    text = """main (float[2,4,8,16] q, float[2,4,16,8] k, float[2,4,8,16] v) => (float[2,4,8,16] y, float[2,4,8,8] p) {
      s = MatMul (q, k)
      p = Softmax <axis = -1> (s)
      y = MatMul (p, v)
    }"""
    path = tmp_path / "model.onnx"
    header = '<ir_version: 10, opset_import: ["" : 17]>'
    onnx.save(onnx.parser.parse_model(header + text), path)
    return Expected("model", "some", "by_hand", 17, "fp32", False, path, [attention(1, 4), layer_norm(1)])


def test_a_missed_block_has_the_reason_of_the_pass(unfused: Expected) -> None:
    outcome = measure(unfused, CPU)
    assert outcome.shares == {"attention": Share(1, 0, 0, 0), "layer_norm": Share(1, 0, 0, 0)}
    ((reason, places),) = outcome.reasons["attention"].items()
    assert reason.startswith("attention_fusion: ")
    assert "(" not in reason
    assert places == 1
    assert tables.by_reason([outcome], "attention") == ({reason: 1}, {reason: ["model"]})
    assert tables.by_reason([outcome], "layer_norm")[0] == {tables.UNEXPLAINED: 1}


def test_a_file_that_cannot_be_read_has_none_of_its_blocks(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"nonsense")
    broken = Expected("broken", "some", "by_hand", 17, "fp32", False, tmp_path / "model.onnx", [attention(2)])
    outcome = measure(broken, CPU)
    assert outcome.shares == before(broken).shares == {"attention": Share(2, 0, 0, 0)}
    (counted, _) = tables.by_reason([outcome], "attention")
    assert list(counted.values()) == [2]
    assert next(iter(counted)).startswith("failed: ")


def test_the_report_shows_shares_reasons_and_surplus(unfused: Expected) -> None:
    console = Console(record=True, width=160)
    bert = next(iter(of_zoo(["bert_small__ts17"])))
    few = Expected(
        bert.name, bert.family, bert.exporter, 17, "fp32", False, bert.path, [attention(3, 4, mask="padding")]
    )
    report([before(unfused), measure(unfused, CPU), measure(few, CPU)], console)
    text = console.export_text()
    assert "3 of 4, 75 %" in text
    assert "attention_fusion: " in text
    assert "bert_small__ts17 (cpu all): 1 attention more than expected" in text


def test_a_folder_of_exports_says_what_is_set_aside(tmp_path: Path) -> None:
    one = {"name": "a", "family": "a", "exporter": "dynamo", "opset": 18, "variant": "fp32", "blocks": []}
    listed = {"models": [{**one, "set_aside": False}, {**one, "name": "b", "set_aside": True}], "failed": {}}
    (tmp_path / "expected.json").write_text(json.dumps(listed), encoding="utf-8")
    assert [model.name for model in of_folder(tmp_path)] == ["a", "b"]
    assert [model.path for model in of_folder(tmp_path, set_aside=True)] == [tmp_path / "b.onnx"]
    assert [model.name for model in of_folder(tmp_path, set_aside=False)] == ["a"]


def test_about_a_third_of_the_architectures_is_set_aside_with_their_variants() -> None:
    aside = [name for name in ARCHITECTURES if is_set_aside(name)]
    assert 0.3 < len(aside) / len(ARCHITECTURES) < 0.45
    assert is_set_aside("gptj")
    assert is_set_aside("gptj-past")
    assert not is_set_aside("bert")


def test_expectations_are_of_known_kinds() -> None:
    for one in ARCHITECTURES.values():
        assert one.blocks, one.name
        check(one.blocks)


def check(blocks: tuple[dict[str, object], ...] | list[dict[str, object]]) -> None:
    assert {str(block["kind"]) for block in blocks} <= set(KINDS)
    compare(blocks, Fused((), {}))


def test_the_blocks_of_every_skeleton_are_written_down() -> None:
    assert sorted(BLOCKS) == SKELETONS
    for blocks in BLOCKS.values():
        check(blocks)


@pytest.mark.parametrize("name", REACHED)
def test_all_blocks_of_these_models_are_single_ops(name: str) -> None:
    (model,) = of_zoo([name])
    outcome = measure(model, CPU)
    assert {kind: share for kind, share in outcome.shares.items() if share.found < share.expected or share.more} == {}


def test_brackets_of_a_reason_are_shown(unfused: Expected) -> None:
    shares = {"attention": Share(1, 0, 0, 0)}
    outcome = Outcome(unfused, "cpu all", shares, {"attention": {"a table is not [batch, 1]": 1}})
    console = Console(record=True, width=160)
    console.print(tables.missed([outcome], "cpu all"))
    assert "a table is not [batch, 1]" in console.export_text()
