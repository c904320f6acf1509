"""Attention over a long sequence, without a mask, becomes MultiHeadAttention."""

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "long_attention_conversion"
LONG = "float[B,1024,8]"
HEAD = f'<ir_version: 10, opset_import: ["" : 23]> main ({LONG} q, {LONG} k, {LONG} v) => ({LONG} y)'
HEADS = "q_num_heads = 2, kv_num_heads = 2"


def text(attributes: str = HEADS, operands: str = "q, k, v", head: str = HEAD) -> str:
    return f"{head} {{ y = Attention <{attributes}> ({operands}) }}"


@pytest.mark.parametrize("scale", ["", ", scale = 0.3"])
def test_a_long_sequence(scale: str) -> None:
    check_rewrites(
        PASS,
        text(HEADS + scale),
        f"y = com.microsoft.MultiHeadAttention <num_heads = 2{scale}> (q, k, v)",
    )


KEPT = {
    "a short sequence": ("than Attention of ai.onnx", text(head=HEAD.replace("1024", "128"))),
    "any length": ("than Attention of ai.onnx", text(head=HEAD.replace("1024", "S"))),
    "another length": (
        "the lengths are not known",
        text(
            head=HEAD.replace("(float[B,1024,8] q", "(float[B,2048,8] q").replace(
                "=> (float[B,1024", "=> (float[B,2048"
            )
        ),
    ),
    "other values": (
        "the sizes are not known",
        text(head=HEAD.replace("1024,8] v", "1024,4] v").replace("1024,8] y", "1024,4] y")),
    ),
    "a mask": (
        "it has a mask, or a past",
        text(operands="q, k, v, m", head=HEAD.replace(" v)", " v, float[1024,1024] m)")),
    ),
    "shared keys": (
        "query heads share keys",
        text(
            "q_num_heads = 2, kv_num_heads = 1",
            head=HEAD.replace("1024,8] k", "1024,4] k").replace("1024,8] v", "1024,4] v"),
        ),
    ),
    "causal": ("no is_causal", text(HEADS + ", is_causal = 1")),
    "a cap": ("no softcap", text(HEADS + ", softcap = 2.0")),
    "no scale": ("such a scale for none", text(HEADS + ", scale = 0.0")),
    "heads first": ("heads come first", text("scale = 0.3", head=HEAD.replace("B,1024", "1,2,1024"))),
    "doubles": ("single precision only", text(head=HEAD.replace("float[", "double["))),
    "half precision": ("single precision only", text(head=HEAD.replace("float[", "float16["))),
    "other runtimes have no such op": ("serves ONNX Runtime", text(), {"target": "onnx"}),
}


test_keeps = keeps(PASS, KEPT)


def test_presents_are_asked_for() -> None:
    head = HEAD.replace("=> (", "=> (float[B,2,1024,4] p, ")
    check_keeps(PASS, f"{head} {{ y, p = Attention <{HEADS}> (q, k, v) }}", "more is asked of it")
