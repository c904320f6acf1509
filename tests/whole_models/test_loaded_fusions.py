"""What ONNX Runtime's own optimizations make of our fused ops when it loads a result: nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import parse, run

HEADS = """qh = Transpose <perm = [0, 2, 1, 3]> (qs) kt = Transpose <perm = [0, 2, 3, 1]> (ks)
    vh = Transpose <perm = [0, 2, 1, 3]> (vs)"""
SPLIT = f"qs = Reshape (q, split) ks = Reshape (k, split) vs = Reshape (v, split) {HEADS}"
SCORES = "d = MatMul (qh, kt) e = Mul (d, half) z = Add (e, m) p = Softmax <axis = -1> (z) c = MatMul (p, vh)"
JOIN = "j = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape (j, merge)"
CONSTANTS = "int64[4] split = {0, 0, 2, 8}, int64[3] merge = {0, 0, 16}, float half = {0.5}"
MASK = "float[1,1,3,3] m"


def weights(*shape: int) -> str:
    return ", ".join(str((7 * index) % 11 / 10 - 0.5) for index in range(int(np.prod(shape))))


CORE = f"""main (float[2,3,16] q, float[2,3,16] k, float[2,3,16] v, {MASK}) => (float[2,3,16] y) <{CONSTANTS}> {{
    {SPLIT} {SCORES} {JOIN} }}"""
PROJECTED = f"""main (float[2,3,8] x, {MASK}) => (float[2,3,16] y)
    <{CONSTANTS}, float[8,16] w = {{{weights(8, 16)}}}, float[16] b = {{{weights(16)}}}> {{
    a = MatMul (x, w) q = Add (a, b) g = MatMul (x, w) k = Add (g, b) h = MatMul (x, w) v = Add (h, b)
    {SPLIT} {SCORES} {JOIN} }}"""
GROUPED = """main (float[2,3,32] q, float[2,3,16] k, float[2,3,16] v, float[1,1,3,3] m) => (float[2,3,32] y)
    <int64[4] four = {0, 0, 4, 8}, int64[4] split = {0, 0, 2, 8}, int64[1] axis = {2}, int64[5] wide = {2, 2, 2, 3, 8},
    int64[4] joint = {2, 4, 3, 8}, int64[3] merge = {0, 0, 32}, float half = {0.5}> {
    qs = Reshape (q, four) ks = Reshape (k, split) vs = Reshape (v, split) qh = Transpose <perm = [0, 2, 1, 3]> (qs)
    kh = Transpose <perm = [0, 2, 1, 3]> (ks) vn = Transpose <perm = [0, 2, 1, 3]> (vs)
    ku = Unsqueeze (kh, axis) ke = Expand (ku, wide) kr = Reshape (ke, joint) vu = Unsqueeze (vn, axis)
    ve = Expand (vu, wide) vh = Reshape (ve, joint) kt = Transpose <perm = [0, 1, 3, 2]> (kr)
    d = MatMul (qh, kt) e = Mul (d, half) z = Add (e, m) p = Softmax <axis = -1> (z) c = MatMul (p, vh)
    j = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape (j, merge) }"""
EMBEDDED = """main (int64[2,3] i, float[11,8] w, float[5,8] p, float[8] g, float[8] b) => (float[2,3,8] y)
    <int64[1,3] q = {0, 1, 2}> { a = Gather (w, i) e = Gather (p, q) n = Add (a, e)
    y = LayerNormalization <epsilon = 0.001> (n, g, b) }"""
FORMS = {
    "Attention": (CORE, ("attention_fusion",), 23),
    "Attention of groups": (GROUPED, ("attention_fusion",), 23),
    "com.microsoft::MultiHeadAttention": (CORE, ("attention_fusion",), 17),
    "com.microsoft::Attention": (PROJECTED, ("attention_fusion", "packed_attention_fusion"), 17),
    "com.microsoft::GroupQueryAttention": (GROUPED, ("group_query_attention_fusion",), 17),
    "com.microsoft::EmbedLayerNormalization": (EMBEDDED, ("embed_layer_norm_fusion",), 17),
    "MatMul": (GROUPED, ("grouped_heads_merging",), 17),
}


def counts(model: onnx.ModelProto) -> Counter[str]:
    return Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in model.graph.node)


@pytest.mark.parametrize("form", FORMS)
def test_a_fused_op_is_left_alone(form: str, tmp_path: Path) -> None:
    text, passes, opset = FORMS[form]
    model = parse(text, opset)
    for name in passes:
        changed, _ = run(name, model)
        assert changed
    result = to_bytes(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(result, options, providers=["CPUExecutionProvider"])
    before, after = counts(onnx.load_from_string(result)), counts(onnx.load(tmp_path / "loaded.onnx"))
    op = form.partition(" ")[0]
    assert after[op] == before[op] > 0
    assert not after - before, f"ONNX Runtime made {after - before} of it"
