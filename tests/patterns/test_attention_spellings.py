"""Attention as exporters spell it: one node, whatever the reshapes, transposes and products."""

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.graph.match import Refusal
from ortopt.patterns.attention.contraction import contraction
from ortopt.testing import check_keeps, check_rewrites
from tests.passes.test_attention_fusion import compare, numbers

PASS = "attention_fusion"
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

BMM = f"""{SPLIT} q3 = Reshape (qh, three) k3 = Reshape (kh, five) v3 = Reshape (vh, five)
    t = Transpose <perm = [0, 2, 1]> (k3) """


def test_products_over_heads_and_batch_at_once() -> None:
    body = f"{BMM} d = MatMul (q3, t) p = Softmax <axis = -1> (d) c3 = MatMul (p, v3) c = Reshape (c3, back) {JOIN}"
    after = "y = Attention <q_num_heads = 2, kv_num_heads = 2, scale = 1.0> (q, k, v)"
    check_rewrites(PASS, model(body), after, opset=23)


@pytest.mark.parametrize("opset", [17, 23])
def test_a_mask_between_reshapes_of_the_scores(opset: int) -> None:
    body = f"""{BMM} d = MatMul (q3, t) s = Mul (d, half) r = Reshape (s, four) a = Add (r, m) f = Reshape (a, flat)
        p = Softmax <axis = -1> (f) c3 = MatMul (p, v3) c = Reshape (c3, back) {JOIN}"""
    ops = FUSED if opset == 23 else {"com.microsoft::MultiHeadAttention": 1, "Softmax": 0}
    check_rewrites(PASS, model(body, f"{INPUTS}, float[2,1,3,5] m"), ops=ops, opset=opset)


def test_a_bias_of_three_dimensions() -> None:
    body = f"{BMM} d = MatMul (q3, t) a = Add (d, m) p = Softmax (a) c3 = MatMul (p, v3) c = Reshape (c3, back) {JOIN}"
    check_rewrites(PASS, model(body, f"{INPUTS}, float[4,1,5] m"), ops=FUSED, opset=23)


def test_a_bias_of_three_dimensions_that_may_be_broadcast() -> None:
    body = f"{BMM} d = MatMul (q3, t) a = Add (d, m) p = Softmax (a) c3 = MatMul (p, v3) c = Reshape (c3, back) {JOIN}"
    check_keeps(PASS, model(body, f"{INPUTS}, float[M,3,5] m"), "the mask may be broadcast", opset=23)


def test_products_of_three_dimensions_that_nobody_split() -> None:
    body = "t = Transpose <perm = [0, 2, 1]> (k) d = MatMul (q, t) p = Softmax <axis = -1> (d) y = MatMul (p, v)"
    after = "y = Attention <q_num_heads = 1, kv_num_heads = 1, scale = 1.0> (q, k, v)"
    check_rewrites(PASS, model(body), after, opset=23)


def test_keys_that_are_transposed_between_reshapes() -> None:
    body = f"""{SPLIT} k3 = Reshape (kh, five) t = Transpose <perm = [0, 2, 1]> (k3) kt = Reshape (t, ready)
        d = MatMul (qh, kt) p = Softmax <axis = -1> (d) c = MatMul (p, vh) {JOIN}"""
    check_rewrites(PASS, model(body, more="int64[4] ready = {2, 2, 4, 5}"), ops=FUSED | {"Transpose": 0}, opset=23)


def test_heads_that_only_look_split() -> None:
    """Positions become heads: no layout of the queries has these side by side, but the products are the same."""
    body = "d = MatMul (qh, kt) p = Softmax <axis = -1> (d) y = MatMul (p, vh)"
    text = model(body, "float[2,2,3,4] qh, float[2,2,4,5] kt, float[2,2,5,4] vh", "float[2,2,3,4] y")
    check_rewrites(PASS, text, ops=FUSED, opset=23)


# Layouts


def test_sequence_first() -> None:
    body = """qs = Reshape (q, split) qh = Transpose <perm = [1, 2, 0, 3]> (qs) ks = Reshape (k, split)
        kt = Transpose <perm = [1, 2, 3, 0]> (ks) vs = Reshape (v, split) vh = Transpose <perm = [1, 2, 0, 3]> (vs)
        d = MatMul (qh, kt) p = Softmax <axis = -1> (d) c = MatMul (p, vh)
        j = Transpose <perm = [2, 0, 1, 3]> (c) y = Reshape (j, merge)"""
    text = model(body, "float[3,2,8] q, float[5,2,8] k, float[5,2,8] v", "float[3,2,8] y")
    check_rewrites(PASS, text, ops=FUSED, opset=23)
    own = {"com.microsoft::MultiHeadAttention": 1, "Softmax": 0}
    check_rewrites(PASS, text, ops=own, opset=17)


@pytest.mark.parametrize(
    ("scores", "result"),
    [
        ("bhid,bhjd->bhij", "bhij,bhjd->bhid"),
        ("bnfh,bnth->bnft", "bnft,bnth->bnfh"),
    ],
)
def test_einsum(scores: str, result: str) -> None:
    body = f"""{SPLIT} d = Einsum <equation = "{scores}"> (qh, kh) p = Softmax <axis = -1> (d)
        c = Einsum <equation = "{result}"> (p, vh) {JOIN}"""
    check_rewrites(
        PASS, model(body), "y = Attention <q_num_heads = 2, kv_num_heads = 2, scale = 1.0> (q, k, v)", opset=23
    )


def test_einsum_on_rows() -> None:
    body = """qs = Reshape (q, split) ks = Reshape (k, split) vs = Reshape (v, split)
        d = Einsum <equation = "bihd,bjhd->bhij"> (qs, ks) p = Softmax <axis = -1> (d)
        j = Einsum <equation = "bhij,bjhd->bihd"> (p, vs) y = Reshape (j, merge)"""
    check_rewrites(
        PASS, model(body), "y = Attention <q_num_heads = 2, kv_num_heads = 2, scale = 1.0> (q, k, v)", opset=23
    )


def test_an_einsum_that_sums_over_the_heads() -> None:
    body = f"""{SPLIT} d = Einsum <equation = "bhid,bhjd->bij"> (qh, kh) p = Softmax <axis = -1> (d)
        y = MatMul (p, v)"""
    check_keeps(PASS, model(body), "is over no single axis", opset=23)


def test_transposed_products() -> None:
    body = f"""{SPLIT} qt = Transpose <perm = [0, 1, 3, 2]> (qh) vt = Transpose <perm = [0, 1, 3, 2]> (vh)
        d = MatMul (kh, qt) p = Softmax <axis = 2> (d) c = MatMul (vt, p)
        j = Transpose <perm = [0, 3, 1, 2]> (c) y = Reshape (j, merge)"""
    check_rewrites(
        PASS, model(body), "y = Attention <q_num_heads = 2, kv_num_heads = 2, scale = 1.0> (q, k, v)", opset=23
    )


def test_transposed_products_with_a_softmax_over_the_queries() -> None:
    body = f"""{SPLIT} qt = Transpose <perm = [0, 1, 3, 2]> (qh) vt = Transpose <perm = [0, 1, 3, 2]> (vh)
        d = MatMul (kh, qt) p = Softmax <axis = 3> (d) c = MatMul (vt, p)
        j = Transpose <perm = [0, 3, 1, 2]> (c) y = Reshape (j, merge)"""
    check_keeps(PASS, model(body), "the softmax is not over the keys", opset=23)


def test_an_old_softmax_without_an_axis_is_over_all_but_the_batch() -> None:
    body = f"{SPLIT} kt = Transpose <perm = [0, 1, 3, 2]> (kh) d = MatMul (qh, kt) p = Softmax (d) c = MatMul (p, vh) "
    body += JOIN
    check_keeps(PASS, model(body), "the softmax is not over the keys", opset=12)
    named = body.replace("Softmax (d)", "Softmax <axis = 3> (d)")
    check_rewrites(PASS, model(named), ops={"com.microsoft::MultiHeadAttention": 1, "Softmax": 0}, opset=12)


@pytest.mark.parametrize(("queries", "keys"), [(1, 5), (3, 1), (1, 1)])
def test_one_query_or_one_key(queries: int, keys: int) -> None:
    body = f"{SPLIT} kt = Transpose <perm = [0, 1, 3, 2]> (kh) z = MatMul (qh, kt) "
    body += f"p = Softmax <axis = -1> (z) c = MatMul (p, vh) {JOIN}"
    text = model(body, f"float[2,{queries},8] q, float[2,{keys},8] k, float[2,{keys},8] v", f"float[2,{queries},8] y")
    check_rewrites(PASS, text, ops=FUSED | {"Transpose": 0}, opset=23)


# Scores

PLAIN = f"{SPLIT} kt = Transpose <perm = [0, 1, 3, 2]> (kh) d = MatMul (qh, kt)"
REST = f"p = Softmax <axis = -1> (z) c = MatMul (p, vh) {JOIN}"


def test_a_mask_that_is_scaled_with_the_scores() -> None:
    body = f"{PLAIN} a = Add (d, m) z = Div (a, two) {REST}"
    check_rewrites(PASS, model(body, f"{INPUTS}, float[2,1,3,5] m"), ops=FUSED | {"Mul": 1}, opset=23)


def test_what_is_subtracted() -> None:
    body = f"{PLAIN} z = Sub (d, m) {REST}"
    check_rewrites(PASS, model(body, f"{INPUTS}, float[2,1,3,5] m"), ops=FUSED | {"Mul": 1}, opset=23)


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


def test_a_number_that_takes_the_place_of_scores_which_may_be_nan() -> None:
    body = f"{PLAIN} z = Where (b, d, bottom) {REST}"
    check_keeps(PASS, model(body, f"{INPUTS}, bool[2,1,3,5] b"), "would hide a NaN", opset=23)


def test_a_number_that_is_not_low_enough() -> None:
    body = f"{PLAIN} z = Where (b, d, minus) {REST}"
    check_keeps(PASS, model(body, f"{INPUTS}, bool[2,1,3,5] b"), "is not the lowest number", opset=23)


def test_scores_that_are_at_least_the_lowest_number() -> None:
    body = f"{PLAIN} a = Add (d, m) z = Max (a, low) {REST}"
    check_rewrites(PASS, model(body, f"{INPUTS}, float[2,1,3,5] m"), ops=FUSED | {"Max": 1}, opset=23)


def test_scores_that_are_clipped() -> None:
    check_keeps(PASS, model(f"{PLAIN} z = Max (d, minus) {REST}"), "the scores are clipped", opset=23)


CAPPED = f"{PLAIN} s = Mul (d, half) e = Div (s, two) h = Tanh (e) z = Mul (h, two) {REST}"


def test_a_soft_cap() -> None:
    after = "y = Attention <q_num_heads = 2, kv_num_heads = 2, scale = 0.5, softcap = 2.0> (q, k, v)"
    check_rewrites(PASS, model(CAPPED), after, opset=23)


def test_a_soft_cap_and_a_mask_after_it() -> None:
    body = CAPPED.replace("z = Mul (h, two)", "l = Mul (h, two) z = Add (l, m)")
    check_rewrites(PASS, model(body, f"{INPUTS}, float[2,1,3,5] m"), ops=FUSED | {"Tanh": 0}, opset=23)


def test_a_soft_cap_after_the_mask() -> None:
    body = CAPPED.replace("e = Div (s, two)", "a = Add (s, m) e = Div (a, two)")
    check_keeps(PASS, model(body, f"{INPUTS}, float[2,1,3,5] m"), "scores are capped after a mask", opset=23)


def test_a_soft_cap_without_an_op_for_it() -> None:
    check_keeps(PASS, model(CAPPED), "MultiHeadAttention has no cap", opset=17)


def test_half_precision_with_a_softmax_in_single_precision() -> None:
    body = f"{PLAIN} z = Cast <to = 1> (d) p = Softmax <axis = -1> (z) n = Cast <to = 10> (p) c = MatMul (n, vh) {JOIN}"
    text = model(body).replace("float[2,", "float16[2,")
    check_rewrites(PASS, text, "y = Attention <q_num_heads = 2, kv_num_heads = 2, scale = 1.0> (q, k, v)", opset=23)


def test_queries_of_another_type_than_values() -> None:
    body = f"{PLAIN} p = Softmax <axis = -1> (d) n = Cast <to = 10> (p) c = MatMul (n, vh) {JOIN}"
    text = model(body).replace("[2,5,8] v", "16[2,5,8] v").replace("float[2,3,8] y", "float16[2,3,8] y")
    check_keeps(PASS, text, "of different types", opset=23)


def test_a_mask_of_windows_for_each_image() -> None:
    body = (
        """qs = Reshape (q, split) qh = Transpose <perm = [0, 2, 1, 3]> (qs) ks = Reshape (k, split)
        kt = Transpose <perm = [0, 2, 3, 1]> (ks) vs = Reshape (v, split) vh = Transpose <perm = [0, 2, 1, 3]> (vs)
        d = MatMul (qh, kt) a = Reshape (d, windows) b = Add (a, m) z = Reshape (b, again) """
        + REST
    )
    text = model(body, "float[6,3,8] q, float[6,5,8] k, float[6,5,8] v, float[1,3,1,3,5] m", "float[6,3,8] y",
                 "int64[5] windows = {-1, 3, 2, 3, 5}, int64[4] again = {6, 2, 3, 5}")  # fmt: skip
    check_rewrites(PASS, text, ops=FUSED | {"Expand": 1}, opset=23)


# Groups

GROUPS = "float[2,3,16] q, float[2,5,8] k, float[2,5,8] v"
READ = "qs = Reshape (q, four) qh = Transpose <perm = [0, 2, 1, 3]> (qs) "
READ += "ks = Reshape (k, split) kh = Transpose <perm = [0, 2, 1, 3]> (ks) "
READ += "vs = Reshape (v, split) vn = Transpose <perm = [0, 2, 1, 3]> (vs) "
MORE = "int64[4] four = {0, 0, 4, 4}, int64[3] wide = {0, 0, 16}"
LAST = """d = MatMul (qh, kt) p = Softmax <axis = -1> (d) c = MatMul (p, vh)
    j = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape (j, wide)"""
GROUPED = "y = Attention <q_num_heads = 4, kv_num_heads = 2, scale = 1.0> (q, k, v)"


def test_groups_by_tile() -> None:
    body = READ + """ku = Unsqueeze (kh, axis) ke = Tile (ku, times) kj = Reshape (ke, join)
        kt = Transpose <perm = [0, 1, 3, 2]> (kj) vu = Unsqueeze (vn, axis) ve = Tile (vu, times)
        vh = Reshape (ve, join) """ + LAST  # fmt: skip
    more = f"{MORE}, int64[1] axis = {{2}}, int64[5] times = {{1, 1, 2, 1, 1}}, int64[4] join = {{2, 4, 5, 4}}"
    check_rewrites(PASS, model(body, GROUPS, "float[2,3,16] y", more), GROUPED, opset=23)


@pytest.mark.parametrize(("indices", "heads"), [("0, 0, 1, 1", 2), ("0, 1, 0, 1", 4)])
def test_groups_by_gather(indices: str, heads: int) -> None:
    body = READ + """kg = Gather <axis = 1> (kh, which) kt = Transpose <perm = [0, 1, 3, 2]> (kg)
        vh = Gather <axis = 1> (vn, which) """ + LAST  # fmt: skip
    text = model(body, GROUPS, "float[2,3,16] y", f"{MORE}, int64[4] which = {{{indices}}}")
    result = check_rewrites(PASS, text, ops=FUSED | {"Gather": 0 if heads == 2 else 2}, opset=23)
    assert heads == (attention_of(result).attributes["kv_num_heads"].value if heads == 2 else 4)


def test_groups_in_products_of_five_dimensions() -> None:
    body = """qs = Reshape (q, parted) qh = Transpose <perm = [0, 2, 3, 1, 4]> (qs) ks = Reshape (k, single)
        kt = Transpose <perm = [0, 2, 3, 4, 1]> (ks) vs = Reshape (v, single)
        vh = Transpose <perm = [0, 2, 3, 1, 4]> (vs) d = MatMul (qh, kt) p = Softmax <axis = -1> (d)
        c = MatMul (p, vh) j = Transpose <perm = [0, 3, 1, 2, 4]> (c) y = Reshape (j, wide)"""
    more = "int64[5] parted = {0, 0, 2, 2, 4}, int64[5] single = {0, 0, 2, 1, 4}, int64[3] wide = {0, 0, 16}"
    check_rewrites(PASS, model(body, GROUPS, "float[2,3,16] y", more), GROUPED, opset=23)


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


def test_one_head_for_all_queries_in_products_of_three_dimensions() -> None:
    body = """qs = Reshape (q, four) qh = Transpose <perm = [0, 2, 1, 3]> (qs) q3 = Reshape (qh, rows)
        kt = Transpose <perm = [0, 2, 1]> (k) d = MatMul (q3, kt) s = Reshape (d, apart)
        p = Softmax <axis = -1> (s) f = Reshape (p, again) c3 = MatMul (f, v) c = Reshape (c3, context)
        j = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape (j, wide)"""
    more = f"{MORE}, int64[3] rows = {{2, 12, 4}}, int64[4] apart = {{2, 4, 3, 5}}, int64[3] again = {{2, 12, 5}}"
    more += ", int64[4] context = {2, 4, 3, 4}"
    text = model(body, "float[2,3,16] q, float[2,5,4] k, float[2,5,4] v", "float[2,3,16] y", more)
    check_rewrites(PASS, text, GROUPED.replace("kv_num_heads = 2", "kv_num_heads = 1"), opset=23)


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


def test_a_guard_of_cross_attention_that_hides_a_nan_of_the_queries() -> None:
    text = model(f"{CROSS} y = Neg (r)", CROSS_INPUTS, more=CROSS_MORE)
    check_keeps(PASS, text, "the guard would hide a NaN of the queries", opset=23)


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


def test_keys_that_are_not_as_many_as_the_scores_say() -> None:
    """A mask may broadcast the one key that there is to as many as there are values."""
    body = f"{SPLIT} kt = Transpose <perm = [0, 1, 3, 2]> (kh) d = MatMul (qh, kt) z = Add (d, m) {REST}"
    text = model(body, "float[2,S,8] q, float[2,K,8] k, float[2,T,8] v, float[2,1,S,T] m", "float[2,S,8] y")
    check_keeps(PASS, text, "the keys are not proven to be as many as the values", opset=17)


def test_heads_of_queries_and_keys_that_are_broadcast() -> None:
    body = "d = MatMul (qh, kt) p = Softmax <axis = -1> (d) y = MatMul (p, vh)"
    text = model(body, "float[B,2,3,4] qh, float[A,2,4,5] kt, float[B,2,5,4] vh", "float[B,2,3,4] y")
    check_keeps(PASS, text, "the batches are not proven to be of one size", opset=17)


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


def test_one_scale_that_is_written_for_each_head() -> None:
    text = model(OF_HEADS.format(scaled="Mul (d, f)"), more="float[2,1,1] f = {2, 2}")
    check_rewrites(PASS, text, "y = Attention <q_num_heads = 2, kv_num_heads = 2, scale = 2.0> (q, k, v)", opset=23)


@pytest.mark.parametrize(
    ("scaled", "factors", "why"),
    [
        ("Mul (d, f)", "float[3,1] f = {1, 2, 3}", "the factors are not for heads"),
        ("Mul (d, f)", "float[5] f = {1, 2, 3, 4, 5}", "the factors are not for heads"),
        ("Mul (d, f)", "float[2,3,1] f = {1, 2, 3, 4, 5, 6}", "the factors are not for heads"),
        ("Mul (d, f)", "float[2,1,1,1] f = {1, 2}", "the factors are not for heads"),
        ("Mul (d, f)", "float[2,1,1] f = {1, -1}", "the scale is not positive"),
        ("Mul (d, f)", "float[2,1,1] f = {1, 0}", "the scale is not positive"),
        ("Mul (d, f)", "float[2,1,1] f = {1, inf}", "the scale is not positive"),
        ("Mul (d, f)", "float[2,1,1] f = {-1, -2}", "the scale is not positive"),
        ("Mul (d, f)", "float[2,1,1] f = {1, 0.0001}", "the scales of heads differ too much"),
        ("Div (d, f)", "float[2,1,1] f = {1, 0}", "divided by 0"),
        ("Mul (e, f) e = Add (d, half)", "float[2,1,1] f = {1, 2}", "what is scaled by head is no product"),
        ("Mul (e, f) e = Mul (d, f)", "float[2,1,1] f = {1, 2}", "scaled by head twice"),
    ],
)
def test_what_is_no_scale_for_each_head(scaled: str, factors: str, why: str) -> None:
    last, _, before = scaled.partition(" e = ")
    body = OF_HEADS.format(scaled=last).replace(" z = ", f" e = {before} z = " if before else " z = ")
    check_keeps(PASS, model(body, more=factors), why, opset=23)


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


@pytest.mark.parametrize("other", ["Neg (more)", "LayerNormalization <axis = 1> (more, h)"])
def test_a_guard_of_cross_attention_whose_sum_is_seen_elsewhere(other: str) -> None:
    body = f"{CROSS} y = LayerNormalization (r, g) more = Add (r, x) z2 = {other}"
    more = f"{CROSS_MORE}, float[3,8] h = {{{', '.join('1' * 24)}}}"
    text = model(body, CROSS_INPUTS, "float[2,3,8] y, float[2,3,8] z2", more=more)
    check_keeps(PASS, text, "the guard would hide a NaN of the queries", opset=23)


# Products that another pass, or ONNX Runtime, has fused

HEADS_OF_ALL = "qs = Reshape (q, split) qh = Transpose <perm = [0, 2, 1, 3]> (qs) ks = Reshape (k, split) "
HEADS_OF_ALL += (
    "kh = Transpose <perm = [0, 2, 1, 3]> (ks) vs = Reshape (v, split) vh = Transpose <perm = [0, 2, 1, 3]> (vs)"
)
FUSED_PRODUCT = f"{HEADS_OF_ALL} d = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1{{more}}> ({{operands}}) "
FUSED_PRODUCT += f"p = Softmax <axis = -1> (d) c = MatMul (p, vh) {JOIN}"


def test_a_product_with_a_factor_and_a_transpose() -> None:
    after = "y = Attention <q_num_heads = 2, kv_num_heads = 2, scale = 0.5> (q, k, v)"
    check_rewrites(PASS, model(FUSED_PRODUCT.format(more="", operands="qh, kh")), after, opset=23)


def test_a_product_with_queries_that_it_transposes() -> None:
    body = FUSED_PRODUCT.format(more=", transA = 1", operands="qt, kh")
    turned = f"qt = Transpose <perm = [0, 1, 3, 2]> (qh) {body}".replace(f"{HEADS_OF_ALL} ", "", 1)
    check_rewrites(PASS, model(f"{HEADS_OF_ALL} {turned}"), ops={"Attention": 1, "Softmax": 0}, opset=23)


def test_a_product_that_transposes_the_batch() -> None:
    operands = [ir.Value(name=name, shape=ir.Shape((2, 2, 4, 4))) for name in "qk"]
    node = ir.node("FusedMatMul", operands, {"transBatchB": 1}, domain="com.microsoft")
    with pytest.raises(Refusal, match="the batch is transposed"):
        contraction(node)


def test_a_product_of_probabilities_and_values_with_a_factor() -> None:
    body = f"{HEADS_OF_ALL} kt = Transpose <perm = [0, 1, 3, 2]> (kh) d = MatMul (qh, kt) p = Softmax <axis = -1> (d) "
    body += f"c = com.microsoft.FusedMatMul <alpha = 0.5> (p, vh) {JOIN}"
    check_keeps(PASS, model(body), opset=23)


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


def test_positions_that_a_reshape_infers_beside_a_length_that_may_be_none() -> None:
    """Where there are no keys the scores are none, but the result has elements: what was inferred is seen."""
    body = INFERRED.replace("b = Shape <end = 1> (q)", "b = Shape <start = 1, end = 2> (k)")
    inputs = "float[2,3,8] q, float[2,K,8] k, float[2,K,8] v, float[2,1,3,5] m"
    check_keeps(PASS, f"main ({inputs}) => (float[2,3,8] y) <{INFERRED_MORE}> {{ {body} }}", opset=18)
