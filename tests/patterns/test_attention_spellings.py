"""Attention as exporters spell it: one node, whatever the reshapes, transposes and products."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.graph.match import Refusal
from ortopt.patterns.attention.contraction import contraction
from ortopt.testing import check_rewrites
from tests.passes import example_files
from tests.passes.test_attention_fusion import compare, numbers

PASS = "attention_fusion"
EXAMPLES = example_files.read_file(Path(__file__).with_name("attention_spellings.txt"))
SPLIT = "qs = Reshape (q, split) qh = Transpose <perm = [0, 2, 1, 3]> (qs) "
SPLIT += "ks = Reshape (k, split) kh = Transpose <perm = [0, 2, 1, 3]> (ks) "
SPLIT += "vs = Reshape (v, split) vh = Transpose <perm = [0, 2, 1, 3]> (vs) "
JOIN = "j = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape (j, merge)"
CONSTANTS = {
    "split": "int64[4] split = {0, 0, 2, 4}",
    "merge": "int64[3] merge = {0, 0, 8}",
    "three": "int64[3] three = {-1, 3, 4}",
    "five": "int64[3] five = {-1, 5, 4}",
    "four": "int64[4] four = {2, 2, 3, 5}",
    "flat": "int64[3] flat = {4, 3, 5}",
    "back": "int64[4] back = {2, 2, 3, 4}",
    "half": "float half = {0.5}",
    "two": "float two = {2}",
    "one": "float one = {1}",
    "zero": "float zero = {0}",
    "low": "float low = {-3.4028234663852886e38}",
    "bottom": "float bottom = {-inf}",
    "minus": "float minus = {-10000}",
}
INPUTS = "float[2,3,8] q, float[2,5,8] k, float[2,5,8] v"
FUSED = {"Attention": 1, "Softmax": 0, "MatMul": 0, "Einsum": 0}


def model(body: str, inputs: str = INPUTS, output: str = "float[2,3,8] y", more: str = "") -> str:
    """A model with the constants that its text names."""
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    used = [text for name, text in CONSTANTS.items() if name in words] + ([more] if more else [])
    return f"main ({inputs}) => ({output}) <{', '.join(used)}> {{ {body} }}"


def attention_of(result: ir.Model) -> ir.Node:
    return next(node for node in result.graph if "Attention" in node.op_type)


# Products of three dimensions


# Layouts


# Scores

PLAIN = f"{SPLIT} kt = Transpose <perm = [0, 1, 3, 2]> (kh) d = MatMul (qh, kt)"
REST = f"p = Softmax <axis = -1> (z) c = MatMul (p, vh) {JOIN}"


WEIGHTS = ", ".join(str((7 * index) % 11 / 10 - 0.5) for index in range(64))
ITSELF = f"v = MatMul (x, w) {PLAIN.replace('(q,', '(x,').replace('(k,', '(x,')}"
ITSELF_INPUTS = "float[2,3,8] x, bool[2,1,3,3] b"
ITSELF_MORE = f"float[8,8] w = {{{WEIGHTS}}}"


@pytest.mark.parametrize("fill", ["low", "bottom"])
@pytest.mark.parametrize("order", ["b, d, {}", "b, {}, d"])
def test_scores_whose_place_a_number_takes(fill: str, order: str) -> None:
    text = model(f"{ITSELF} z = Where ({order.format(fill)}) {REST}", ITSELF_INPUTS, more=ITSELF_MORE)
    result = check_rewrites(PASS, text, ops=FUSED | {"MatMul": 1}, opset=23)
    for chosen in ("none", "all", "row", "some"):
        mask = np.full((2, 1, 3, 3), chosen == "all")
        if chosen == "row":
            mask[0, 0, 1] = True
        if chosen == "some":
            mask[...] = np.random.default_rng(3).random(mask.shape) < 0.5
        compare(text, result, {"x": numbers("x", (2, 3, 8)), "b": mask})
        compare(text, result, {"x": numbers("x", (2, 3, 8)), "b": ~mask})


def test_a_number_that_takes_the_place_of_scores_after_a_bias() -> None:
    """The bias of what is masked does not count: a row that is masked as a whole is uniform all the same."""
    body = f"{ITSELF} a = Add (d, m) z = Where (b, low, a) {REST}"
    text = model(body, f"{ITSELF_INPUTS}, float[1,2,3,3] m", more=ITSELF_MORE)
    result = check_rewrites(PASS, text, ops=FUSED | {"MatMul": 1, "Add": 0}, opset=23)
    for share in (0, 0.5, 1):
        mask = np.random.default_rng(4).random((2, 1, 3, 3)) < share
        compare(text, result, {"x": numbers("x", (2, 3, 8)), "m": numbers("m", (1, 2, 3, 3)), "b": mask})


# Groups

GROUPS = "float[2,3,16] q, float[2,5,8] k, float[2,5,8] v"
READ = "qs = Reshape (q, four) qh = Transpose <perm = [0, 2, 1, 3]> (qs) "
READ += "ks = Reshape (k, split) kh = Transpose <perm = [0, 2, 1, 3]> (ks) "
READ += "vs = Reshape (v, split) vn = Transpose <perm = [0, 2, 1, 3]> (vs) "
MORE = "int64[4] four = {0, 0, 4, 4}, int64[3] wide = {0, 0, 16}"
LAST = """d = MatMul (qh, kt) p = Softmax <axis = -1> (d) c = MatMul (p, vh)
    j = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape (j, wide)"""
GROUPED = "y = Attention <q_num_heads = 4, kv_num_heads = 2, scale = 1.0> (q, k, v)"


@pytest.mark.parametrize(("indices", "heads"), [("0, 0, 1, 1", 2), ("0, 1, 0, 1", 4)])
def test_groups_by_gather(indices: str, heads: int) -> None:
    body = READ + """kg = Gather <axis = 1> (kh, which) kt = Transpose <perm = [0, 1, 3, 2]> (kg)
        vh = Gather <axis = 1> (vn, which) """ + LAST  # fmt: skip
    text = model(body, GROUPS, "float[2,3,16] y", f"{MORE}, int64[4] which = {{{indices}}}")
    result = check_rewrites(PASS, text, ops=FUSED | {"Gather": 0 if heads == 2 else 2}, opset=23)
    assert heads == (attention_of(result).attributes["kv_num_heads"].value if heads == 2 else 4)


def test_one_head_for_all_queries() -> None:
    body = """qs = Reshape (q, four) qh = Transpose <perm = [0, 2, 1, 3]> (qs) ku = Unsqueeze (k, axis)
        kt = Transpose <perm = [0, 1, 3, 2]> (ku) vh = Unsqueeze (v, axis) """ + LAST  # fmt: skip
    text = model(body, "float[2,3,16] q, float[2,5,4] k, float[2,5,4] v", "float[2,3,16] y",
                 f"{MORE}, int64[1] axis = {{1}}")  # fmt: skip
    check_rewrites(PASS, text, GROUPED.replace("kv_num_heads = 2", "kv_num_heads = 1"), opset=23)
    own = {"com.microsoft::MultiHeadAttention": 1, "Gather": 2, "Softmax": 0}
    result = check_rewrites(PASS, text, ops=own, opset=17)
    k, v = numbers("k", (2, 5, 4)), numbers("v", (2, 5, 4))
    compare(text, result, {"q": numbers("q", (2, 3, 16)), "k": k, "v": v})


# The past


def test_a_mask_that_is_computed_from_past_and_new_keys() -> None:
    """The op that gives these cannot take a mask that needs them."""
    body = f"""{SPLIT} kk = Concat <axis = 2> (pk, kh) vv = Concat <axis = 2> (pv, vh)
        kt = Transpose <perm = [0, 1, 3, 2]> (kk) d = MatMul (qh, kt) n = Shape <start = 2, end = 3> (kk)
        o = ConstantOfShape (n) z = Add (d, o) p = Softmax <axis = -1> (z) c = MatMul (p, vv) {JOIN}"""
    text = model(body, f"{INPUTS}, float[2,2,6,4] pk, float[2,2,6,4] pv",
                 "float[2,3,8] y, float[2,2,11,4] kk, float[2,2,11,4] vv")  # fmt: skip
    result = check_rewrites(PASS, text, ops=FUSED | {"Concat": 3}, opset=23)
    assert len(attention_of(result).outputs) == 1


def test_a_past_on_another_axis_is_none() -> None:
    body = f"""{SPLIT} kk = Concat <axis = 1> (pk, kh) vv = Concat <axis = 1> (pv, vh) qq = Concat <axis = 1> (pk, kh)
        kt = Transpose <perm = [0, 1, 3, 2]> (kk) d = MatMul (qq, kt) p = Softmax <axis = -1> (d) c = MatMul (p, vv)
        j = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape (j, wide)"""
    text = model(
        body, f"{INPUTS}, float[2,2,5,4] pk, float[2,2,5,4] pv", "float[2,5,16] y", "int64[3] wide = {0, 0, 16}"
    )
    result = check_rewrites(PASS, text, ops=FUSED | {"Concat": 3}, opset=23)
    assert len(attention_of(result).outputs) == 1


# Guards

GUARD = "s = Softmax <axis = -1> (z) t = IsNaN (s) p = Where (t, zero, s)"
CROSS = f"""q = MatMul (x, w) v = MatMul (k, w) {SPLIT} kt = Transpose <perm = [0, 1, 3, 2]> (kh)
    d = MatMul (qh, kt) m = Where (b, zero, bottom) z = Add (d, m) {GUARD} c = MatMul (p, vh)
    j = Transpose <perm = [0, 2, 1, 3]> (c) o = Reshape (j, merge) l = MatMul (o, w) r = Add (x, l) """
CROSS_INPUTS = "float[2,3,8] x, float[2,5,8] k, bool[2,1,1,5] b"
CROSS_MORE = f"float[8,8] w = {{{WEIGHTS}}}, float[8] g = {{1, 1, 1, 1, 1, 1, 1, 1}}"


def test_a_guard_of_cross_attention_whose_result_is_normalized_with_what_the_queries_are_of() -> None:
    text = model(f"{CROSS} y = LayerNormalization (r, g)", CROSS_INPUTS, more=CROSS_MORE)
    result = check_rewrites(PASS, text, ops={"Attention": 1, "IsNaN": 0}, opset=23)
    x, k = numbers("x", (2, 3, 8)), numbers("k", (2, 5, 8))
    x[0, 1, 2] = np.nan
    for mask in (np.ones((2, 1, 1, 5), bool), np.zeros((2, 1, 1, 5), bool)):
        compare(text, result, {"x": x, "k": k, "b": mask})


# Sizes


def test_sizes_that_are_inferred_beside_a_batch_that_may_be_0() -> None:
    """With allowzero, what is inferred beside a 0 is no size of the source: it is 1 where both are 0."""
    body = """b = Shape <start = 0, end = 1> (q) a = Concat <axis = 0> (b, rest) qs = Reshape <allowzero = 1> (q, a)
        qh = Transpose <perm = [0, 2, 1, 3]> (qs) ks = Reshape <allowzero = 1> (k, a)
        kt = Transpose <perm = [0, 2, 3, 1]> (ks) vs = Reshape <allowzero = 1> (v, a)
        vh = Transpose <perm = [0, 2, 1, 3]> (vs) d = MatMul (qh, kt) z = Add (d, m) p = Softmax <axis = -1> (z)
        c = MatMul (p, vh) j = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape (j, merge)"""
    text = model(body, "float[B,S,8] q, float[B,S,8] k, float[B,S,8] v, float[B,1,S,S] m", "float[B,S,8] y",
                 "int64[3] rest = {-1, 2, 4}")  # fmt: skip
    result = check_rewrites(PASS, text, ops={"com.microsoft::MultiHeadAttention": 1, "Softmax": 0}, opset=18)
    for batch, length in ((2, 3), (0, 3), (2, 0), (1, 1)):
        feeds = {name: numbers(name, (batch, length, 8)) for name in "qkv"}
        compare(text, result, feeds | {"m": numbers("m", (batch, 1, length, length))})


def test_a_mask_that_is_not_proven_to_have_an_element_for_each_key() -> None:
    body = f"{SPLIT} kt = Transpose <perm = [0, 1, 3, 2]> (kh) d = MatMul (qh, kt) z = Add (d, m) {REST}"
    text = model(body, "float[2,S,8] q, float[2,T,8] k, float[2,T,8] v, float[2,1,S,M] m", "float[2,S,8] y")
    result = check_rewrites(PASS, text, ops={"com.microsoft::MultiHeadAttention": 1, "Expand": 1}, opset=17)
    feeds = {"q": numbers("q", (2, 3, 8)), "k": numbers("k", (2, 5, 8)), "v": numbers("v", (2, 5, 8))}
    for size in (1, 5):
        compare(text, result, feeds | {"m": numbers("m", (2, 1, 3, size))})


# A scale for each head

BY_HEAD = "d = MatMul (qh, kt) z = {scaled} p = Softmax <axis = -1> (z) c = MatMul (p, vh)"
OF_HEADS = f"{SPLIT} kt = Transpose <perm = [0, 1, 3, 2]> (kh) {BY_HEAD} {JOIN}"
FACTORS = {"Mul (d, f)": 2.0, "Mul (f, d)": 2.0, "Div (d, f)": 4.0}


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("scaled", FACTORS)
def test_a_scale_for_each_head_is_that_of_its_queries(scaled: str, opset: int) -> None:
    text = model(OF_HEADS.format(scaled=scaled), more="float[2,1,1] f = {2, 0.25}")
    op = "Attention" if opset == 23 else "com.microsoft::MultiHeadAttention"
    result = check_rewrites(PASS, text, ops={op: 1, "Softmax": 0, "Mul": 1, "Div": 0}, opset=opset)
    assert attention_of(result).attributes["scale"].as_float() == FACTORS[scaled]


def test_a_scale_for_each_head_before_a_mask_and_a_number() -> None:
    scaled = "Mul (d, f) a = Mul (z, half) b = Add (a, m)"
    text = model(OF_HEADS.format(scaled=scaled).replace("(z) c", "(b) c"), f"{INPUTS}, float[2,1,3,5] m",
                 more="float[1,2,1,1] f = {2, 0.25}")  # fmt: skip
    result = check_rewrites(PASS, text, ops={"Attention": 1, "Softmax": 0}, opset=23)
    assert attention_of(result).attributes["scale"].as_float() == 1.0


# Guards of parts of one projection


def test_a_guard_of_parts_that_are_chosen_by_number() -> None:
    body = """w = MatMul (x, g) s = Reshape (w, apart) q = Gather <axis = 2> (s, i0) k = Gather <axis = 2> (s, i1)
        v = Gather <axis = 2> (s, i2) qh = Transpose <perm = [0, 2, 1, 3]> (q) kt = Transpose <perm = [0, 2, 3, 1]> (k)
        vh = Transpose <perm = [0, 2, 1, 3]> (v) d = MatMul (qh, kt) m = Where (b, zero, low) a = Add (d, m)
        p = Softmax <axis = -1> (a) n = IsNaN (p) u = Where (n, zero, p) c = MatMul (u, vh) """ + JOIN  # fmt: skip
    weights = ", ".join(f"{number:.3}" for number in numbers("g", (192,)))
    more = f"float[8,24] g = {{{weights}}}, int64[5] apart = {{0, 0, 3, 2, 4}}, "
    more += "int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}"
    text = model(body, "float[2,3,8] x, bool[2,1,3,3] b", more=more)
    result = check_rewrites(PASS, text, ops={"Attention": 1, "IsNaN": 0}, opset=23)
    x = numbers("x", (2, 3, 8))
    x[0, 1, 2] = np.nan
    compare(text, result, {"x": x, "b": np.ones((2, 1, 3, 3), bool)})


SUMMED = "y = LayerNormalization (r, g) more = Add (r, x) z2 = LayerNormalization (more, g)"


def test_a_guard_of_cross_attention_whose_sum_goes_on_and_is_normalized_again() -> None:
    text = model(f"{CROSS} {SUMMED}", CROSS_INPUTS, "float[2,3,8] y, float[2,3,8] z2", more=CROSS_MORE)
    result = check_rewrites(PASS, text, ops={"Attention": 1, "IsNaN": 0}, opset=23)
    x, k = numbers("x", (2, 3, 8)), numbers("k", (2, 5, 8))
    x[0, 1, 2] = np.nan
    for mask in (np.ones((2, 1, 1, 5), bool), np.zeros((2, 1, 1, 5), bool)):
        compare(text, result, {"x": x, "k": k, "b": mask})


# Products that another pass, or ONNX Runtime, has fused


def test_a_product_that_transposes_the_batch() -> None:
    operands = [ir.Value(name=name, shape=ir.Shape((2, 2, 4, 4))) for name in "qk"]
    node = ir.node("FusedMatMul", operands, {"transBatchB": 1}, domain="com.microsoft")
    with pytest.raises(Refusal, match="the batch is transposed"):
        contraction(node)


# Sizes that a Reshape infers beside a batch

INFERRED = """b = Shape <end = 1> (q) n = Mul (b, two_heads) t = Concat <axis = 0> (n, rest, size)
    qs = Reshape (q, split) qh = Transpose <perm = [0, 2, 1, 3]> (qs) q3 = Reshape <allowzero = 1> (qh, t)
    ks = Reshape (k, split) kh = Transpose <perm = [0, 2, 1, 3]> (ks) k3 = Reshape <allowzero = 1> (kh, t)
    vs = Reshape (v, split) vh = Transpose <perm = [0, 2, 1, 3]> (vs) v3 = Reshape <allowzero = 1> (vh, t)
    kt = Transpose <perm = [0, 2, 1]> (k3) d = MatMul (q3, kt) s = Reshape (d, four) a = Add (s, m)
    f = Reshape (a, flat) p = Softmax <axis = -1> (f) c3 = MatMul (p, v3) c = Reshape (c3, back)
    j = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape (j, merge)"""
INFERRED_MORE = """int64[1] two_heads = {2}, int64[1] rest = {-1}, int64[1] size = {4}, int64[4] split = {0, 0, 2, 4},
    int64[4] four = {-1, 2, 3, 5}, int64[3] flat = {-1, 3, 5}, int64[4] back = {-1, 2, 3, 4},
    int64[3] merge = {0, 0, 8}"""
OPEN = "float[B,3,8] q, float[B,5,8] k, float[B,5,8] v, float[B,1,3,5] m"


@pytest.mark.parametrize("batch", [1, 2])
def test_positions_that_a_reshape_infers_beside_a_batch_that_may_be_none(batch: int) -> None:
    text = f"main ({OPEN}) => (float[B,3,8] y) <{INFERRED_MORE}> {{ {INFERRED} }}"
    result = check_rewrites(PASS, text, ops={"com.microsoft::MultiHeadAttention": 1, "Softmax": 0}, opset=18)
    shapes = {"q": (batch, 3, 8), "k": (batch, 5, 8), "v": (batch, 5, 8), "m": (batch, 1, 3, 5)}
    compare(text, result, {name: numbers(name, shape) for name, shape in shapes.items()})


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.title for example in EXAMPLES])
def test_examples(example: example_files.Example) -> None:
    example.check(PASS)
