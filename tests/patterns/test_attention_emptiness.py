"""Attention of grouped heads where a call may be empty: the kernel is in an If, and empty calls give what they gave."""

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.graph import scope
from ortopt.options import Fusions, Options
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.sessions import unoptimized

PASS = "attention_fusion"
ONE = """
main (float[B,S,16] q, float[B,S,8] k, float[B,S,8] v{inputs}) => (float[B,S,16] y{outputs})
    <int64[4] four = {{0, 0, 4, 4}}, int64[4] split = {{0, 0, 2, 4}}, int64[1] axis = {{2}}, int64[1] count = {{4}},
     int64[5] pair = {{1, 1, 2, 1, 1}}, int64[3] wide = {{0, 0, 16}}, float scale = {{0.5}}{constants}> {{
        qs = Reshape (q, four) qh = Transpose <perm = [0, 2, 1, 3]> (qs)
        ks = Reshape (k, split) kh = Transpose <perm = [0, 2, 1, 3]> (ks)
        vs = Reshape (v, split) vh = Transpose <perm = [0, 2, 1, 3]> (vs) {past}
        first = Shape <start = 0, end = 1> (q) last = {length}
        whole = Concat <axis = 0> (first, count, last, count)
        ku = Unsqueeze (keys, axis) ke = Expand (ku, pair) kj = Reshape <allowzero = 1> (ke, whole)
        vu = Unsqueeze (values, axis) ve = Expand (vu, pair) vj = Reshape <allowzero = 1> (ve, whole)
        kt = Transpose <perm = [0, 1, 3, 2]> (kj) d = MatMul (qh, kt) z = Mul (d, scale) {mask}
        c = MatMul (p, vj) j = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape (j, wide)
    }}"""
PLAIN = {
    "past": "keys = Identity (kh) values = Identity (vh)", "mask": "p = Softmax <axis = -1> (z)",
    "length": "Shape <start = 1, end = 2> (k)",
}  # fmt: skip
CACHE = {
    "inputs": ", float[B,2,P,4] pk, float[B,2,P,4] pv", "outputs": ", float[B,2,T,4] keys, float[B,2,T,4] values",
    "past": """keys = Concat <axis = 2> (pk, kh) values = Concat <axis = 2> (pv, vh)
        before = Shape <start = 2, end = 3> (pk) new = Shape <start = 1, end = 2> (k)""",
    "length": "Add (before, new)",
}  # fmt: skip
MASKED = {
    "mask": """n = Shape <start = 1, end = 2> (q) e = Concat <axis = 0> (n, last) m = ConstantOfShape (e)
        s = Add (z, m) p = Softmax <axis = -1> (s)"""
}
CALLS = [(2, 3, 4), (1, 1, 0), (2, 0, 4), (0, 3, 4), (0, 0, 4), (0, 3, 0)]


def text_of(**parts: str) -> str:
    return ONE.format(**(dict.fromkeys(("inputs", "outputs", "constants"), "") | PLAIN | parts))


def ops_below(model: ir.Model) -> list[set[str]]:
    """The ops in the branches of the model's only If."""
    (chosen,) = (node for node in model.graph if node.op_type == "If")
    return [{node.op_type for node in branch} for branch in scope.subgraphs(chosen)]


def results(model: ir.Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return unoptimized(model).run(None, feeds)  # type: ignore[no-any-return]


def check_calls(text: str, result: ir.Model) -> None:
    """The original and the result give the same, of the same shapes, where a size is 0, too."""
    before, names = parse(text, 23), [value.name for value in result.graph.inputs]
    for batch, length, past in CALLS:
        draw = np.random.default_rng(batch + length)
        shapes = {"q": (batch, length, 16), "k": (batch, length, 8), "v": (batch, length, 8)}
        shapes |= {"pk": (batch, 2, past, 4), "pv": (batch, 2, past, 4)}
        feeds = {str(name): draw.standard_normal(shapes[str(name)]).astype(np.float32) for name in names}
        for expected, got in zip(results(before, feeds), results(result, feeds), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, strict=True)


@pytest.mark.parametrize("mask", [{}, MASKED], ids=["alone", "masked"])
def test_a_call_of_nothing(mask: dict[str, str]) -> None:
    text = text_of(**mask)
    result = check_rewrites(PASS, text, ops={"If": 1, "Attention": 1, "Softmax": 0, "Expand": 0}, opset=23)
    assert ops_below(result) == [{"Attention"}, {"Identity"}]
    check_calls(text, result)


@pytest.mark.parametrize("mask", [{}, MASKED], ids=["alone", "masked"])
def test_a_call_of_nothing_with_a_past(mask: dict[str, str]) -> None:
    text = text_of(**CACHE, **mask)
    result = check_rewrites(PASS, text, ops={"If": 1, "Attention": 1, "Softmax": 0, "Expand": 0}, opset=23)
    assert ops_below(result) == [{"Attention"}, {"Identity", "Constant", "Reshape", "Transpose", "Concat"}]
    check_calls(text, result)


def test_an_input_of_the_model_tells_whether_there_is_anything() -> None:
    text = text_of(inputs=", int64[B,S] ids", outputs=", int64[B,S] same", past=PLAIN["past"] + " same = Neg (ids)")
    result = check_rewrites(PASS, text, ops={"If": 1, "Size": 1}, opset=23)
    (size,) = (node for node in result.graph if node.op_type == "Size")
    assert size.inputs[0] is not None
    assert size.inputs[0].name == "ids"


def cut_by(keys: str) -> dict[str, str]:
    """Parts of a block whose mask is cut to as many positions as the heads of the keys have, by their shape."""
    return CACHE | {
        "inputs": CACHE["inputs"] + ", float[B,1,S,M] m", "constants": ", int64[1] none = {0}, int64[1] third = {3}",
        "mask": f"""many = Shape <start = 2, end = 3> ({keys}) mc = Slice (m, none, many, third)
            s = Add (z, mc) p = Softmax <axis = -1> (s)""",
    }  # fmt: skip


@pytest.mark.parametrize("keys", ["kj", "keys"])
@pytest.mark.parametrize("zeros", ["", " <allowzero = 1>"], ids=["0 copies", "0 stays"])
def test_a_mask_that_is_cut_by_the_present(keys: str, zeros: str) -> None:
    text = text_of(**cut_by(keys)).replace(" <allowzero = 1>", zeros)
    result = check_rewrites(PASS, text, ops={"If": 1, "Attention": 1, "Softmax": 0, "Slice": 1}, opset=23)
    before = parse(text, 23)
    for batch, length, past, more in ((2, 3, 4, 0), (1, 1, 0, 3), (2, 0, 4, 2), (0, 3, 4, 1), (0, 0, 4, 1)):
        draw = np.random.default_rng(past)
        shapes = {"q": (batch, length, 16), "k": (batch, length, 8), "v": (batch, length, 8)}
        shapes |= {"pk": (batch, 2, past, 4), "pv": (batch, 2, past, 4), "m": (batch, 1, length, past + length + more)}
        feeds = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        for expected, got in zip(results(before, feeds), results(result, feeds), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, strict=True)


def test_a_mask_that_is_cut_to_another_length_is_repeated_for_all_keys() -> None:
    text = text_of(**cut_by("keys")).replace("(keys) mc", "(pk) mc")
    text = text.replace("float[B,1,S,M] m", "float[B,1,S,1] m")
    result = check_rewrites(PASS, text, ops={"If": 1, "Attention": 1, "Expand": 1}, opset=23)
    before = parse(text, 23)
    for batch, length, past in ((2, 3, 4), (1, 1, 1), (2, 0, 4), (0, 3, 4)):
        draw = np.random.default_rng(past)
        shapes = {"q": (batch, length, 16), "k": (batch, length, 8), "v": (batch, length, 8)}
        shapes |= {"pk": (batch, 2, past, 4), "pv": (batch, 2, past, 4), "m": (batch, 1, length, 1)}
        feeds = {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        for expected, got in zip(results(before, feeds), results(result, feeds), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6, strict=True)


def test_sizes_that_are_proven_need_no_if() -> None:
    text = text_of().replace("[B,S,", "[2,3,")
    check_rewrites(PASS, text, ops={"If": 0, "Attention": 1}, opset=23)


def test_keys_that_may_be_none_beside_queries_stay_without_the_kernel() -> None:
    text = text_of().replace("float[B,S,8] k, float[B,S,8] v", "float[B,K,8] k, float[B,K,8] v")
    check_rewrites(PASS, text, ops={"If": 0, "Attention": 0, "com.microsoft::MultiHeadAttention": 1}, opset=23)


def test_where_a_device_would_wait_for_it_there_is_no_if() -> None:
    options = Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"), fusions=Fusions.ALL)
    check_rewrites(PASS, text_of(), ops={"If": 0, "com.microsoft::MultiHeadAttention": 1}, opset=23, options=options)


# The opset that has the kernel

TABLES = "cos = Concat <axis = -1> (ch, ch) sin = Concat <axis = -1> (sh, sh)"
ROTATED = """rc = Mul ({0}, cos) r1, r2 = Split <axis = -1, num_outputs = 2> ({0}) rn = Neg (r2)
    rh = Concat <axis = -1> (rn, r1) rs = Mul (rh, sin) {1} = Add (rc, rs)"""


def rotated() -> str:
    """A block whose queries and keys are rotated, in the words of an older opset."""
    text = text_of(inputs=", float[1,1,S,2] ch, float[1,1,S,2] sh")
    queries, keys = f"{TABLES} {ROTATED.format('qt', 'qh')}", ROTATED.format("kt0", "kh")
    for name in ("rc", "r1", "r2", "rn", "rh", "rs"):
        keys = keys.replace(name, name.upper())
    for old, new, more in (("qh", "qt", queries), ("kh", "kt0", keys)):
        made = f" = Transpose <perm = [0, 2, 1, 3]> ({old[0]}s)"
        text = text.replace(f"{old}{made}", f"{new}{made} {more}")
    return text


@pytest.mark.parametrize("text", [text_of(), rotated()], ids=["plain", "rotated"])
def test_the_opset_is_raised(text: str) -> None:
    result = check_rewrites("opset_conversion", text, opset=18)
    assert result.graph.opset_imports[""] == 23


def test_the_opset_stays_where_no_if_helps() -> None:
    text = text_of().replace("float[B,S,8] k, float[B,S,8] v", "float[B,K,8] k, float[B,K,8] v")
    check_keeps("opset_conversion", text, opset=18)
