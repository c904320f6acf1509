"""Blocks that one op can stand for are told by their shape, whatever a pass can do with them."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from ortopt.analysis import blocks
from ortopt.analysis.attention_facts import AttentionFacts, facts_of
from ortopt.analysis.blocks import FAMILIES, BlockCount
from ortopt.testing import parse
from tests.texts import Case, rows

QKV = "float[2,4,S,8] q, float[2,4,8,T] k, float[2,4,T,8] v"
M = "com.microsoft"
WEIGHT = f"float[8,8] weight = {{{', '.join(['1.0'] * 64)}}}"
CONSTANTS = f"<float two = {{2.0}}, float half = {{-0.5}}, {WEIGHT}>"


@pytest.mark.parametrize(("family", "row"), rows(Path(__file__).parent / "cases" / "blocks.txt"))
def test_blocks_are_counted(family: Case, row: list[str]) -> None:
    expected, _, inputs, body = row
    model = parse(f"main ({inputs}) => (float[] y) {CONSTANTS} {{ {body} }}", 23)
    count = blocks.count(blocks.blocks(model, family.title))[family.title]
    assert f"{count.fused} {count.spelled_out}" == expected


def test_nodes_without_their_inputs_are_no_blocks() -> None:
    x = ir.Value(name="x")
    for op in sorted({root for family in FAMILIES.values() for root in family.roots} | {"Neg", "Mul"}):
        inner = ir.node(op, [])
        for node in (inner, ir.node(op, [x]), ir.node("Softmax", inner.outputs), ir.node("Sqrt", inner.outputs)):
            assert not list(blocks.blocks_at(node))
        assert not list(blocks.blocks_at(ir.node("Concat", [*inner.outputs, x])))


def test_counts() -> None:
    assert blocks.count([]) == dict.fromkeys(FAMILIES, BlockCount(0, 0))
    assert BlockCount(2, 3).all == 5


FLAT = "float[2,S,32] q, float[2,T,16] k, float[2,T,16] v, float[2,1,S,T] m, float[2,2,P,8] pk, float[2,2,P,8] pv"


@pytest.mark.parametrize(
    ("inputs", "body", "expected"),
    [
        (QKV, "s = MatMul (q, k) p = Softmax (s) y = MatMul (p, v)", (None, None, None, None, None, None, None)),
        (
            FLAT,
            "y = Attention <q_num_heads = 4, kv_num_heads = 2, is_causal = 1> (q, k, v)",
            (4, 2, None, "S", "T", "causal", False),
        ),
        (
            FLAT,
            "y, a, b = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v, m, pk, pv)",
            (4, 2, None, "S", "P + T", "given", True),
        ),
        (
            FLAT.replace("16", "32"),
            f"y = {M}.MultiHeadAttention <num_heads = 4, unidirectional = 1> (q, k, v, , , m)",
            (4, 4, None, "S", "T", "causal and given", False),
        ),
        ("float[2,4,S,8] q, float[2,2,T,8] v", "y = Attention (q, v, v)", (4, 2, None, "S", "T", "none", False)),
    ],
)
def test_facts_that_an_op_shows(inputs: str, body: str, expected: tuple[object, ...]) -> None:
    model = parse(f"main ({inputs}) => (float[] y) {{ {body} }}", 23)
    (block,) = blocks.blocks(model, "attention")
    assert facts_of(block) == AttentionFacts(*expected)  # type: ignore[arg-type]
