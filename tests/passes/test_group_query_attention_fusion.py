"""Attention with fewer heads of keys than of queries becomes one GroupQueryAttention."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites

PASS = "group_query_attention_fusion"
MASKED = """main (float[1,3,32] q, float[1,3,16] k, float[1,3,16] v, float[1,2,{past},8] pk, float[1,2,{past},8] pv,
    float[{mask}] m) => (float[1,3,32] y, float[1,2,{all},8] kk, float[1,2,{all},8] vv)
    <int64[4] four = {{0, 0, 4, 8}}, int64[4] two = {{0, 0, 2, 8}}, int64[1] axis = {{2}}, int64[2] groups = {{2, 2}},
    int64[1] size = {{8}}, int64[1] heads = {{4}}, int64[3] merge = {{0, 0, 32}}, float half = {{0.5}}> {{
        qs = Reshape (q, four) qh = Transpose <perm = [0, 2, 1, 3]> (qs)
        ks = Reshape (k, two) kh = Transpose <perm = [0, 2, 1, 3]> (ks) kk = Concat <axis = 2> (pk, kh)
        vs = Reshape (v, two) vh = Transpose <perm = [0, 2, 1, 3]> (vs) vv = Concat <axis = 2> (pv, vh)
        h = Shape <start = 0, end = 1> (q) l = Shape <start = 2, end = 3> (kk)
        w = Concat <axis = 0> (h, groups, l, size) r = Concat <axis = 0> (h, heads, l, size)
        ku = Unsqueeze (kk, axis) ke = Expand (ku, w) kr = Reshape (ke, r) kt = Transpose <perm = [0, 1, 3, 2]> (kr)
        vu = Unsqueeze (vv, axis) ve = Expand (vu, w) vr = Reshape (ve, r)
        d = MatMul (qh, kt) e = Mul (d, half) z = Add (e, m) p = Softmax <axis = -1> (z) c = MatMul (p, vr)
        j = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape (j, merge) }}"""
"""A block with four heads of queries and two of keys, each of size 8."""


@pytest.mark.parametrize("shape", ["1,1,3,A", "1,4,3,A", "3,A", "1,1,1,A"])
@pytest.mark.parametrize("fill", [-1.0, -np.inf, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("past", [0, 4])
def test_a_mask(shape: str, fill: float, past: int) -> None:
    sizes = shape.replace("A", str(3 + past))
    mask = np.zeros([int(size) for size in sizes.split(",")], np.float32)
    mask[..., 1:2] = fill
    mask[..., -1, :] = fill  # a row that is masked as a whole
    shapes = {"q": (1, 3, 32), "k": (1, 3, 16), "v": (1, 3, 16), "pk": (1, 2, past, 8), "pv": (1, 2, past, 8)}
    draw = np.random.default_rng(0)
    feeds = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    check_rewrites(
        PASS,
        MASKED.format(past=past, all=3 + past, mask=sizes),
        ops={"com.microsoft::GroupQueryAttention": 1, "Softmax": 0},
        inputs=feeds | {"m": mask},
    )
