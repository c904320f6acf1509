"""Attention with fewer heads of keys than of queries becomes one GroupQueryAttention."""

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.testing import check_rewrites, parse
from tests.sessions import unoptimized

PASS = "group_query_attention_fusion"
GQA = "com.microsoft::GroupQueryAttention"
Q = "qs = Reshape (q, four) qh = Transpose <perm = [0, 2, 1, 3]> (qs)"
K = "ks = Reshape (k, two) kh = Transpose <perm = [0, 2, 1, 3]> (ks)"
V = "vs = Reshape (v, two) vh = Transpose <perm = [0, 2, 1, 3]> (vs)"
PAST = "kk = Concat <axis = 2> (pk, kh) vv = Concat <axis = 2> (pv, vh)"
REPEAT = """h = Shape <start = 0, end = 1> (q) l = Shape <start = 2, end = 3> ({k})
    w = Concat <axis = 0> (h, groups, l, size) r = Concat <axis = 0> (h, heads, l, size)
    ku = Unsqueeze ({k}, axis) ke = Expand (ku, w) kr = Reshape (ke, r) kt = Transpose <perm = [0, 1, 3, 2]> (kr)
    vu = Unsqueeze ({v}, axis) ve = Expand (vu, w) vr = Reshape (ve, r)"""
SCORES = "d = MatMul (qh, kt) z = Mul (d, half) p = Softmax <axis = -1> (z)"
MASKED = "d = MatMul (qh, kt) e = Mul (d, half) z = Add (e, m) p = Softmax <axis = -1> (z)"
OUT = "c = MatMul (p, vr) j = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape (j, merge)"
CONSTANTS = """int64[4] four = {0, 0, 4, 8}, int64[4] two = {0, 0, 2, 8}, int64[1] axis = {2}, int64[2] groups = {2, 2},
    int64[1] size = {8}, int64[1] heads = {4}, int64[3] merge = {0, 0, 32}, float half = {0.5}"""


def model(
    scores: str = SCORES, *, past: bool = False, batch: str = "2", length: str = "3", mask: str = "", more: str = ""
) -> str:
    """A block with four heads of queries and two of keys, each of size 8."""
    inputs = f"float[{batch},{length},32] q, float[{batch},{length},16] k, float[{batch},{length},16] v"
    outputs = f"float[{batch},{length},32] y"
    if past:
        inputs += f", float[{batch},2,P,8] pk, float[{batch},2,P,8] pv"
        outputs += f", float[{batch},2,A,8] kk, float[{batch},2,A,8] vv"
    if mask:
        inputs += f", float[{mask}] m"
    keys, values = ("kk", "vv") if past else ("kh", "vh")
    body = f"{Q} {K} {V} {PAST if past else ''} {REPEAT.format(k=keys, v=values)} {scores} {OUT}"
    return f"main ({inputs}) => ({outputs}) <{CONSTANTS}{more}> {{ {body} }}"


def compare(text: str, result: ir.Model, feeds: dict[str, np.ndarray], opset: int = 17) -> None:
    outputs = []
    for one in (parse(text, opset), result):
        session = unoptimized(one)
        outputs.append(session.run(None, feeds))
    for expected, got in zip(*outputs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def drawn(batch: int, length: int, past: int | None = None) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    shapes = {"q": (batch, length, 32), "k": (batch, length, 16), "v": (batch, length, 16)}
    if past is not None:
        shapes |= {"pk": (batch, 2, past, 8), "pv": (batch, 2, past, 8)}
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("shape", ["1,1,3,A", "1,4,3,A", "3,A", "1,1,1,A"])
@pytest.mark.parametrize("fill", [-1.0, -np.inf, float(np.finfo(np.float32).min)])
def test_a_mask(shape: str, fill: float) -> None:
    for past in (0, 4):
        sizes = shape.replace("A", str(3 + past))
        text = (
            model(MASKED, past=True, batch="1", mask=sizes).replace("P,8", f"{past},8").replace("A,8", f"{3 + past},8")
        )
        result = check_rewrites(PASS, text, ops={GQA: 1, "Softmax": 0})
        mask = np.zeros([int(size) for size in sizes.split(",")], np.float32)
        mask[..., 1:2] = fill
        mask[..., -1, :] = fill  # a row that is masked as a whole
        compare(text, result, drawn(1, 3, past) | {"m": mask})
