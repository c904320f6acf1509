"""Embeddings, their sum and its normalization become one EmbedLayerNormalization."""

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.testing import check_rewrites, parse
from tests.sessions import unoptimized

PASS = "embed_layer_norm_fusion"
TABLES = "float[11,8] w, float[5,8] p, float[2,8] t, float[8] g, float[8] b"
NORM = "y = LayerNormalization <epsilon = 0.001> (n, g, b)"


def model(
    body: str, *, inputs: str = "int64[B,S] i, int64[B,S] s", outputs: str = "float[B,S,8] y", more: str = ""
) -> str:
    """Embeddings whose ids are inputs, with the tables as inputs too: they may be computed."""
    return f"main ({inputs}, {TABLES}) => ({outputs}) <{more}> {{ {body} }}"


WORDS = "a = Gather (w, i)"
SEGMENTS = "c = Gather (t, s)"
POSITIONS = """h = Shape <start = 1, end = 2> (i) l = Squeeze (h) r = Range (zero, l, one) q = Unsqueeze (r, first)
    e = Gather (p, q)"""
RANGE = "int64 zero = {0}, int64 one = {1}, int64[1] first = {0}"


def compare(text: str, result: ir.Model, extra: dict[str, np.ndarray], opset: int = 18) -> None:
    """Run the original and the result."""
    draw = np.random.default_rng(0)
    sizes = {"w": (11, 8), "p": (5, 8), "t": (2, 8), "g": (8,), "b": (8,)}
    feeds = {name: draw.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    feeds |= {"s": np.zeros((1, 1), np.int64)} | extra
    outputs = []
    for model_ in (parse(text, opset), result):
        session = unoptimized(model_)
        names = {one.name for one in session.get_inputs()}
        outputs.append(session.run(None, {name: value for name, value in feeds.items() if name in names}))
    for expected, got in zip(*outputs, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "total",
    [
        "m = Add (a, e) n = Add (m, c)",
        "m = Add (a, c) n = Add (e, m)",
        "m = Add (c, e) n = Add (a, m)",
    ],
)
def test_fuses_in_any_order(total: str) -> None:
    text = model(f"{WORDS} {SEGMENTS} {POSITIONS} {total} {NORM}", more=RANGE)
    ops = {"com.microsoft::EmbedLayerNormalization": 1, "Gather": 0, "Add": 0, "LayerNormalization": 0, "Mod": 2}
    result = check_rewrites(PASS, text, ops=ops)
    draw = np.random.default_rng(1)
    for batch, length in ((2, 5), (1, 1), (3, 0), (0, 4)):  # ids count from the end too
        ids, segments = draw.integers(-11, 11, (batch, length)), draw.integers(-2, 2, (batch, length))
        compare(text, result, {"i": ids, "s": segments})


def test_two_embeddings() -> None:
    text = model(f"{WORDS} {POSITIONS} n = Add (a, e) {NORM}", inputs="int32[B,S] i", more=RANGE)
    ops = {"com.microsoft::EmbedLayerNormalization": 1, "Gather": 0, "Cast": 1, "Mod": 1}
    result = check_rewrites(PASS, text, ops=ops)
    compare(text, result, {"i": np.array([[-1, 0, 10]], np.int32)})


def test_positions_for_each_sequence() -> None:
    text = model(f"{WORDS} e = Gather (p, s) n = Add (a, e) {NORM}")
    result = check_rewrites(PASS, text, ops={"com.microsoft::EmbedLayerNormalization": 1, "Gather": 0})
    compare(text, result, {"i": np.array([[3, 4], [0, 10]]), "s": np.array([[1, 4], [-1, 2]])})


def test_the_sum_is_an_output_of_its_own() -> None:
    text = model(f"{WORDS} {POSITIONS} n = Add (a, e) {NORM}", outputs="float[B,S,8] y, float[B,S,8] n", more=RANGE)
    result = check_rewrites(PASS, text, ops={"com.microsoft::EmbedLayerNormalization": 1, "Add": 0})
    compare(text, result, {"i": np.array([[3, 4], [0, 10]])})


def test_before_opset_13_axes_are_attributes() -> None:
    """ONNX Runtime has its own LayerNormalization in all opsets."""
    text = model(f"{WORDS} n = Add (a, x) {NORM}", inputs="int64[B,S] i, float[1,S,8] x")
    result = check_rewrites(PASS, text, ops={"com.microsoft::EmbedLayerNormalization": 1, "Squeeze": 1}, opset=11)
    ids = np.array([[1, 2, 10]])
    x = np.random.default_rng(2).standard_normal((1, 3, 8)).astype(np.float32)
    compare(text, result, {"i": ids, "x": x}, opset=11)
