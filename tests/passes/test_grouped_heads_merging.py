"""A product with heads that are repeated becomes one with each of them once."""

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.testing import check_rewrites, parse
from tests.sessions import unoptimized

PASS = "grouped_heads_merging"
CONSTANTS = """int64[1] axis = {2}, int64[2] groups = {2, 3}, int64[1] size = {8}, int64[1] heads = {6}"""
SHAPES = """b = Shape <start = 0, end = 1> (k) l = Shape <start = 2, end = 3> (k)
    w = Concat <axis = 0> (b, groups, l, size) r = Concat <axis = 0> (b, heads, l, size)"""
REPEATED = f"{SHAPES} ku = Unsqueeze (k, axis) ke = Expand (ku, w) kr = Reshape <allowzero = 1> (ke, r)"


def model(body: str, inputs: str, outputs: str, more: str = "") -> str:
    return f"main ({inputs}) => ({outputs}) <{CONSTANTS}{more}> {{ {body} }}"


def compare(text: str, result: ir.Model, feeds: dict[str, np.ndarray], opset: int = 17) -> None:
    outputs = [unoptimized(one).run(None, feeds) for one in (parse(text, opset), result)]
    for expected, got in zip(*outputs, strict=True):
        assert got.shape == expected.shape
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


SCORES = f"{REPEATED} t = Transpose <perm = [0, 1, 3, 2]> (kr) y = MatMul (q, t)"
CONTEXT = f"{REPEATED} y = MatMul (q, kr)"


@pytest.mark.parametrize("batch", ["2", "B"])
@pytest.mark.parametrize("length", ["4", "S"])
def test_scores(batch: str, length: str) -> None:
    inputs = f"float[{batch},6,{length},8] q, float[{batch},2,T,8] k"
    text = model(SCORES, inputs, f"float[{batch},6,{length},T] y")
    result = check_rewrites(PASS, text, ops={"Expand": 0, "Unsqueeze": 0, "Reshape": 2, "MatMul": 1, "Transpose": 1})
    batches = (2,) if batch == "2" else (1, 2, 0)
    for size in batches:
        for rows in (4,) if length == "4" else (1, 4, 0):
            for keys in (0, 1, 5):
                compare(text, result, {"q": drawn(size, 6, rows, 8), "k": drawn(size, 2, keys, 8)})


@pytest.mark.parametrize("length", ["4", "S"])
def test_the_context(length: str) -> None:
    text = model(CONTEXT, f"float[B,6,{length},T] q, float[B,2,T,8] k", f"float[B,6,{length},8] y")
    result = check_rewrites(PASS, text, ops={"Expand": 0, "Reshape": 2, "MatMul": 1, "Transpose": 0})
    for batch in (0, 2):
        for rows in (4,) if length == "4" else (0, 1, 4):
            for keys in (0, 5):
                compare(text, result, {"q": drawn(batch, 6, rows, keys), "k": drawn(batch, 2, keys, 8)})


TRANSPOSED = """x = Transpose <perm = [0, 1, 3, 2]> (k) ku = Unsqueeze (x, axis) ke = Expand (ku, w)
    kr = Reshape <allowzero = 1> (ke, r)"""


def test_keys_that_are_transposed_before_they_are_repeated() -> None:
    shapes = SHAPES.replace("l, size", "size, l")
    text = model(f"{shapes} {TRANSPOSED} y = MatMul (q, kr)", "float[B,6,S,8] q, float[B,2,T,8] k", "float[B,6,S,T] y")
    result = check_rewrites(PASS, text, ops={"Expand": 0, "Unsqueeze": 0, "Reshape": 2, "MatMul": 1, "Transpose": 1})
    for batch, rows, keys in ((2, 3, 5), (0, 3, 5), (2, 0, 5), (2, 3, 0)):
        compare(text, result, {"q": drawn(batch, 6, rows, 8), "k": drawn(batch, 2, keys, 8)})


def test_an_attention_with_a_mask() -> None:
    body = f"""{SHAPES} ku = Unsqueeze (k, axis) ke = Expand (ku, w) kr = Reshape <allowzero = 1> (ke, r)
        vu = Unsqueeze (v, axis) ve = Expand (vu, w) vr = Reshape <allowzero = 1> (ve, r)
        t = Transpose <perm = [0, 1, 3, 2]> (kr) d = MatMul (q, t) e = Add (d, m) p = Softmax <axis = -1> (e)
        y = MatMul (p, vr)"""
    inputs = "float[B,6,S,8] q, float[B,2,T,8] k, float[B,2,T,8] v, float[B,1,S,T] m"
    text = model(body, inputs, "float[B,6,S,8] y")
    result = check_rewrites(PASS, text, ops={"Expand": 0, "MatMul": 2, "Add": 1})
    mask = np.zeros((2, 1, 3, 5), np.float32)
    mask[0, :, :, 3:] = -np.inf
    compare(text, result, {"q": drawn(2, 6, 3, 8), "k": drawn(2, 2, 5, 8), "v": drawn(2, 2, 5, 8), "m": mask})


FUSED = {
    "turned": (f"{REPEATED} y = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (q, kr)", 0),
    "transposed before": (SCORES.replace("MatMul (q", "com.microsoft.FusedMatMul <alpha = 0.5> (q"), 1),
}


@pytest.mark.parametrize("case", FUSED)
def test_a_product_with_a_scale(case: str) -> None:
    nodes, transposes = FUSED[case]
    text = model(nodes, "float[2,6,S,8] q, float[2,2,T,8] k", "float[2,6,S,T] y")
    ops = {"Expand": 0, "com.microsoft::FusedMatMul": 1, "MatMul": 0, "Transpose": transposes}
    result = check_rewrites(PASS, text, ops=ops)
    for keys in (1, 5):
        compare(text, result, {"q": drawn(2, 6, 4, 8), "k": drawn(2, 2, keys, 8)})
