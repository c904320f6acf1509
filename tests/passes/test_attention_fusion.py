"""Attention in any spelling becomes one node."""

import functools

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from ortopt.analysis import releases
from ortopt.api import optimize
from ortopt.options import Numerics
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse
from tests.sessions import unoptimized

PASS = "attention_fusion"
Q = "qs = Reshape (q, split) qh = Transpose <perm = [0, 2, 1, 3]> (qs)"
K = "ks = Reshape (k, split) kt = Transpose <perm = [0, 2, 3, 1]> (ks)"
V = "vs = Reshape (v, split) vh = Transpose <perm = [0, 2, 1, 3]> (vs)"
OUT = "c = MatMul (p, vh) j = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape (j, merge)"
CONSTANTS = {
    "split": "int64[4] split = {0, 0, 2, 4}",
    "merge": "int64[3] merge = {0, 0, 8}",
    "zero": "float zero = {0}",
    "one": "float one = {1}",
    "low": "float low = {-3.4028234663852886e38}",
}
STATIC = "float[2,3,8] q, float[2,5,8] k, float[2,5,8] v"


def model(
    scores: str = "z = MatMul (qh, kt) p = Softmax <axis = -1> (z)",
    *,
    inputs: str = STATIC,
    outputs: str = "float[2,3,8] y",
    q: str = Q,
    k: str = K,
    v: str = V,
    out: str = OUT,
    more: str = "",
) -> str:
    """A block, with the constants that it names."""
    body = f"{q} {k} {v} {scores} {out}"
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = [text for name, text in CONSTANTS.items() if name in words] + ([more] if more else [])
    return f"main ({inputs}) => ({outputs}) <{', '.join(used)}> {{ {body} }}"


ADDED = "d = MatMul (qh, kt) z = Add (d, m) p = Softmax <axis = -1> (z)"


@pytest.mark.parametrize("shape", ["2,2,3,5", "2,1,3,5", "1,2,3,5", "2,3,5", "1,3,5", "3,5"])
@pytest.mark.parametrize("order", ["d, m", "m, d"])
def test_an_unknown_mask_keeps_what_a_masked_row_gives(shape: str, order: str) -> None:
    text = model(ADDED.replace("d, m", order), inputs=f"{STATIC}, float[{shape}] m")
    result = check_rewrites(PASS, text, ops={"Attention": 1, "ReduceMax": 1, "Where": 2, "Softmax": 0}, opset=23)
    check_rows(text, result, np.zeros([int(size) for size in shape.split(",")], np.float32))


@pytest.mark.parametrize(("shape", "op"), [("2,2,3,5", "MultiHeadAttention"), ("2,1,3,5", "Attention")])
def test_as_many_numbers_as_scores_are_not_looked_through(shape: str, op: str) -> None:
    """Layers that add the scores of the one before (Realformer): other masks are the same for all heads."""
    text = model(ADDED, inputs=f"{STATIC}, float[{shape}] m")
    result = optimize(parse(text, 23), only=[PASS])
    assert result.verified
    assert [node.op_type for node in result.model.graph if node.op_type.endswith("Attention")] == [op]


@pytest.mark.parametrize("shape", ["2,1,1,5", "1,5", "5"])
def test_a_mask_alike_for_all_queries_gets_a_row_for_each(shape: str) -> None:
    text = model(ADDED, inputs=f"{STATIC}, float[{shape}] m")
    result = check_rewrites(PASS, text, ops={"Attention": 1, "Expand": 1, "Softmax": 0}, opset=23)
    check_rows(text, result, np.zeros([int(size) for size in shape.split(",")], np.float32))


BOOLEAN = "m = Where (b, zero, {fill}) d = MatMul (qh, kt) z = Add (d, m) p = Softmax <axis = -1> (z)"


def test_a_finite_mask_is_kept_above_what_the_kernel_takes_for_nothing() -> None:
    text = model(BOOLEAN.format(fill="low"), inputs=f"{STATIC}, bool[2,1,3,5] b")
    after = """f = Constant <value_float = -3.4028232635611926e38> () o = Constant <value_float = 0.0> ()
        w = Where (b, o, f) y = Attention <q_num_heads = 2, kv_num_heads = 2, scale = 1.0> (q, k, v, w)"""
    result = check_rewrites(PASS, text, after, opset=23)
    check_rows(text, result, np.ones((2, 1, 3, 5), bool))


@pytest.mark.parametrize("order", ["m, e", "e, m"])
def test_a_mask_is_lifted_before_small_numbers_are_added(order: str) -> None:
    """Such as a bias for distances: the mask has fewer elements than the sum."""
    small = "m = Where (b, zero, low) e = Gather (table, i) n = Add ({order}) d = MatMul (qh, kt) z = Add (d, n)"
    text = model(
        f"{small.format(order=order)} p = Softmax <axis = -1> (z)",
        inputs=f"{STATIC}, bool[2,1,1,5] b, int64[2,3,5] i",
        more="float[2] table = {1.5, -2.5}",
    )
    result = check_rewrites(PASS, text, ops={"Attention": 1, "Where": 1, "Equal": 0, "Add": 1}, opset=23)
    check_rows(text, result, np.ones((2, 1, 1, 5), bool), i=np.arange(30).reshape(2, 3, 5) % 2)


GUARD = "s = Softmax <axis = -1> (z) t = IsNaN (s) p = Where (t, zero, s)"


ITSELF = "float[2,3,8] x"


WEIGHTS = ", ".join(str((7 * index) % 11 / 10 - 0.5) for index in range(64))


def itself(scores: str, more: str = "", mask: str = "bool[2,1,3,3] b") -> str:
    """A block whose queries and keys are one value, and whose values are a product with it."""
    parts = {name: text.replace(f"({name},", "(x,") for name, text in (("q", Q), ("k", K))}
    weights = f"float[8,8] w = {{{WEIGHTS}}}"
    constants = f"{weights}, {more}" if more else weights
    return model(scores, inputs=f"{ITSELF}, {mask}", more=constants, v=f"v = MatMul (x, w) {V}", **parts)


def test_a_guard_against_nan() -> None:
    scores = f"m = Where (b, zero, i) d = MatMul (qh, kt) z = Add (d, m) {GUARD}"
    text = itself(scores, "float i = {-inf}")
    result = check_rewrites(PASS, text, ops={"Attention": 1, "IsNaN": 0, "Softmax": 0}, opset=23)
    check_rows(text, result, np.ones((2, 1, 3, 3), bool))


def test_a_result_without_its_guard_says_what_it_needs() -> None:
    scores = f"m = Where (b, zero, i) d = MatMul (qh, kt) z = Add (d, m) {GUARD}"
    result = check_rewrites(PASS, itself(scores, "float i = {-inf}"), opset=23)
    assert releases.requirement(load(to_bytes(result))).onnxruntime == "1.28"
    plain = check_rewrites(
        PASS, itself(scores.replace(GUARD, "p = Softmax <axis = -1> (z)"), "float i = {-inf}"), opset=23
    )
    assert releases.requirement(plain).onnxruntime == "1.23"


PAST = "float[2,3,8] q, float[2,3,8] k, float[2,3,8] v, float[2,2,6,4] pk, float[2,2,6,4] pv"
PAST_OUT = "float[2,3,8] y, float[2,2,9,4] kk, float[2,2,9,4] vv"
PAST_K = """ks = Reshape (k, split) kh = Transpose <perm = [0, 2, 1, 3]> (ks) kk = Concat <axis = 2> (pk, kh)
    kt = Transpose <perm = [0, 1, 3, 2]> (kk)"""
PAST_V = "vs = Reshape (v, split) vn = Transpose <perm = [0, 2, 1, 3]> (vs) vv = Concat <axis = -2> (pv, vn)"


def guarded_with_a_past() -> str:
    parts = {"q": Q.replace("(q,", "(x,"), "k": PAST_K.replace("(k,", "(x,"), "v": f"v = MatMul (x, w) {PAST_V}"}
    inputs, scores = f"float[2,3,8] x, {PAST.split('v, ', 1)[1]}", f"z = MatMul (qh, kt) {GUARD}"
    weights = f"float[8,8] w = {{{WEIGHTS}}}"
    return model(scores, inputs=inputs, outputs=PAST_OUT, more=weights, out=OUT.replace("vh", "vv"), **parts)


def test_a_guard_that_hides_a_nan_of_the_past_goes_for_finite_numbers() -> None:
    """The value at the position of a NaN among the past keys may be a number."""
    feeds = {"x": numbers("x", (2, 3, 8))} | {name: numbers(name, (2, 2, 6, 4)) for name in ("pk", "pv")}
    feeds["pk"][1, 0, 2, 3] = np.nan
    result = optimize(parse(guarded_with_a_past(), 23), only=[PASS], fusions="all", inputs=feeds)
    assert result.verification is not None
    assert (result.verification.status, result.verification.spread) == ("verified", 12)
    assert [(total.transformer, total.numerics) for total in result.summary.passes] == [(PASS, Numerics.FINITE)]


# ONNX Runtime's own op


@pytest.mark.parametrize("shape", ["2,2,3,5", "1,1,3,5", "3,5", "2,1,1,5", "5"])
def test_the_own_op_with_a_mask(shape: str) -> None:
    text = model(ADDED, inputs=f"{STATIC}, float[{shape}] m")
    result = check_rewrites(PASS, text, ops={"com.microsoft::MultiHeadAttention": 1, "Softmax": 0}, opset=17)
    check_rows(text, result, np.zeros([int(size) for size in shape.split(",")], np.float32))


# What is left as it is


@pytest.mark.parametrize("shape", ["5", "2,1,1,5", "3,5"])
@pytest.mark.parametrize("opset", [11, 13, 14])
def test_the_own_op_with_a_mask_in_the_words_of_an_old_opset(shape: str, opset: int) -> None:
    text = model(ADDED.replace("axis = -1", "axis = 3"), inputs=f"{STATIC}, float[{shape}] m")
    result = check_rewrites(PASS, text, ops={"com.microsoft::MultiHeadAttention": 1, "Softmax": 0}, opset=opset)
    check_rows(text, result, np.zeros([int(size) for size in shape.split(",")], np.float32))


# Numbers


def numbers(seed: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(ord(seed[0])).standard_normal(shape).astype(np.float32)


@functools.lru_cache(maxsize=2)  # of the original and of the result: rows by rows are compared
def session(model: bytes) -> ort.InferenceSession:
    return unoptimized(model)


def compare(text: str, result: ir.Model, feeds: dict[str, np.ndarray]) -> None:
    """Results of the original and of the rewritten model are equal, NaNs included."""
    original = parse(text, result.graph.opset_imports[""])
    expected, got = (session(to_bytes(each)).run(None, feeds) for each in (original, result))
    for wanted, found in zip(expected, got, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def check_rows(text: str, result: ir.Model, mask: np.ndarray, **more: np.ndarray) -> None:
    """Compare with rows that are masked in part and as a whole, by every number that masks."""
    sizes = {"q": (2, 3, 8), "k": (2, 5, 8), "v": (2, 5, 8)} if mask.shape[-1] == 5 else {"x": (2, 3, 8)}
    feeds = {name: numbers(name, size) for name, size in sizes.items()} | more
    name = "b" if mask.dtype == bool else "m"
    fills = [False] if mask.dtype == bool else [-np.inf, np.finfo(np.float32).min, -1e9, -1e38, -3e38]
    for fill in fills:
        part, row, whole = mask.copy(), mask.copy(), mask.copy()
        part[..., 1:3], whole[...] = fill, fill
        row.reshape(-1, mask.shape[-1])[0] = fill
        mixed = whole.copy()
        if mask.dtype != bool:
            mixed[..., :2] = np.finfo(np.float32).min
        for drawn in (mask, part, row, whole, mixed):
            compare(text, result, feeds | {name: drawn})


@pytest.mark.parametrize("shape", ["3,1,4,4", "1,3,1,4,4"])
def test_a_mask_of_windows_is_repeated_for_each_image(shape: str) -> None:
    """Shifted windows (Swin): six of two images, whose scores get a dimension for the image while they are masked."""
    scores = (
        "d = MatMul (qh, kt) w = Reshape (d, windows) a = Add (w, m) z = Reshape (a, whole) p = Softmax <axis = -1> (z)"
    )
    text = model(
        scores,
        inputs=f"float[6,4,8] q, float[6,4,8] k, float[6,4,8] v, float[{shape}] m",
        outputs="float[6,4,8] y",
        more="int64[5] windows = {2, 3, 2, 4, 4}, int64[4] whole = {6, 2, 4, 4}",
    )
    check_rewrites(PASS, text, ops={"Attention": 1, "Expand": 1, "Softmax": 0}, opset=23)
