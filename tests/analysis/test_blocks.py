"""Blocks that one op can stand for are told by their shape, whatever a pass can do with them."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt.analysis import blocks
from ortopt.analysis.attention_facts import AttentionFacts, facts_of
from ortopt.analysis.blocks import FAMILIES, BlockCount
from ortopt.testing import parse

QKV = "float[2,4,S,8] q, float[2,4,8,T] k, float[2,4,T,8] v"
M = "com.microsoft"


def counts(body: str, inputs: str = QKV, family: str = "attention", opset: int = 23) -> tuple[int, int]:
    model = parse(f"main ({inputs}) => (float[] y) {{ {body} }}", opset)
    count = blocks.count(blocks.blocks(model, family))[family]
    return count.fused, count.spelled_out


@pytest.mark.parametrize(
    "body",
    [
        "s = MatMul (q, k) p = Softmax (s) y = MatMul (p, v)",
        "s = MatMul (q, k) d = Div (s, c) m = Add (d, b) p = Softmax (m) y = MatMul (p, v)",
        "s = MatMul (q, k) m = Where (t, s, c) p = Softmax (m) n = IsNaN (p) w = Where (n, c, p) y = MatMul (w, v)",
        "s = MatMul (q, k) h = Tanh (s) e = Mul (h, c) p = Softmax (e) f = Cast <to = 1> (p) y = MatMul (f, v)",
        """s = Einsum <equation = "bhqd,bhdk->bhqk"> (q, k) p = Softmax (s)
            y = Einsum <equation = "bhqk,bhkd->bhqd"> (p, v)""",
        "s = MatMul (q, k) r = Reshape (s, z) m = Add (r, b) p = Softmax (m) e = Reshape (p, z) y = MatMul (e, v)",
    ],
    ids=["plain", "scale and mask", "NaN guard", "soft cap", "einsum", "reshaped"],
)
def test_a_softmax_between_two_products(body: str) -> None:
    more = ", float[1] c, float[2,1,S,T] b, bool[2,1,S,T] t, int64[4] z"
    assert counts(body, QKV + more) == (0, 1)


@pytest.mark.parametrize(
    "body",
    [
        "s = MatMul (q, w) y = Softmax (s)",
        "s = MatMul (q, w) p = Softmax (s) y = MatMul (p, v)",
        "s = Relu (q) p = Softmax (s) y = MatMul (p, v)",
        "s = MatMul (q, k) p = Softmax (s) r = Relu (p) y = MatMul (r, v)",
    ],
    ids=["a classifier", "a product with a weight", "no product above", "no product below"],
)
def test_a_softmax_elsewhere_is_none(body: str) -> None:
    model = parse(f"main ({QKV}) => (float[] y) <float[8,8] w = {{{', '.join(['1.0'] * 64)}}}> {{ {body} }}")
    assert not blocks.blocks(model, "attention")


HALVES = "a, b = Split <axis = 3, num_outputs = 2> (x)"
ROTARY = "float[2,4,S,8] x, float[S,8] c, float[S,8] s, float[S,4] d, float[S,4] t"


@pytest.mark.parametrize(
    "turned",
    [
        f"{HALVES} n = Neg (b) r = Concat <axis = -1> (n, a) e = Mul (x, c) f = Mul (r, s) y = Add (e, f)",
        f"""{HALVES} ad = Mul (a, d) bt = Mul (b, t) bd = Mul (b, d) at = Mul (a, t) u = Sub (ad, bt)
            w = Add (bd, at) y = Concat <axis = -1> (u, w)""",
    ],
    ids=["a negated half", "a rotation"],
)
def test_rotary_embeddings(turned: str) -> None:
    assert counts(turned, ROTARY, "rotary") == (0, 1)


@pytest.mark.parametrize(
    "body",
    [
        f"{HALVES} y = Concat <axis = -1> (b, a)",
        f"{HALVES} n = Neg (d) y = Concat <axis = -1> (n, a)",
        "n = Neg (x) y = Concat <axis = -1> (n, x)",
    ],
    ids=["nothing negated", "of another value", "no halves"],
)
def test_what_is_no_rotary_embedding(body: str) -> None:
    assert counts(body, ROTARY, "rotary") == (0, 0)


MEAN = "v = ReduceMean (p, axes) e = Add (v, eps)"
NORM = "float[N,8] x, int64[1] axes, float eps"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"p = Mul (x, x) {MEAN} r = Sqrt (e) y = Div (x, r)", 1),
        (f"m = ReduceMean (x, axes) d = Sub (x, m) p = Pow (d, two) {MEAN} r = Sqrt (e) y = Div (d, r)", 1),
        (f"p = Pow (x, two) {MEAN} r = Pow (e, half) y = Mul (x, r)", 1),
        (f"p = Mul (x, eps) {MEAN} y = Sqrt (e)", 0),
        (f"p = Mul (x, x) {MEAN} y = Pow (e, two)", 0),
        ("p = Mul (x, x) v = ReduceSum (p, axes) y = Sqrt (v)", 0),
    ],
)
def test_normalizations(body: str, expected: int) -> None:
    text = f"main ({NORM}) => (float[] y) <float two = {{2.0}}, float half = {{-0.5}}> {{ {body} }}"
    assert len(blocks.blocks(parse(text, 18), "normalization")) == expected


def test_ops_that_stand_for_blocks() -> None:
    attention = "y = Attention (q, v, v)"
    assert counts(attention) == (1, 0)
    own = f"y = {M}.MultiHeadAttention <num_heads = 4> (q, v, v)"
    assert counts(own) == (1, 0)
    norm = "y = LayerNormalization (q, s)"
    assert counts(norm, QKV + ", float[8] s", "normalization") == (1, 0)
    assert counts("y = RotaryEmbedding (q, c, c)", QKV + ", float[2,S,4] c", "rotary") == (1, 0)


@pytest.mark.parametrize(("rotary", "expected"), [(0, 0), (1, 2)])
def test_embeddings_inside_of_attention(rotary: int, expected: int) -> None:
    op = f"{M}.GroupQueryAttention <num_heads = 4, kv_num_heads = 2, do_rotary = {rotary}>"
    body = f"y = {op} (x, , , pk, pv, n, t, c, s)"
    inputs = """float[1,1,64] x, float[1,2,5,8] pk, float[1,2,5,8] pv, int32[1] n, int32 t, float[9,4] c,
        float[9,4] s"""
    assert counts(body, inputs, "rotary") == (expected, 0)
    assert counts(body, inputs, "attention") == (1, 0)


def test_blocks_in_nested_graphs_count() -> None:
    core = "s = MatMul (q, k) p = Softmax (s) z = MatMul (p, v)"
    body = f"""y = If (b) < then_branch = yes () => (float[] z) {{ {core} }},
        else_branch = no () => (float[] w) {{ w = Identity (q) }}>"""
    assert counts(body, QKV + ", bool b") == (0, 1)


def test_nodes_without_their_inputs_are_no_blocks() -> None:
    x = ir.Value(name="x")
    for op in sorted({root for family in FAMILIES.values() for root in family.roots} | {"Neg", "Mul"}):
        inner = ir.node(op, [])
        for node in (inner, ir.node(op, [x]), ir.node("Softmax", inner.outputs), ir.node("Sqrt", inner.outputs)):
            assert not list(blocks.blocks_at(node))
        assert not list(blocks.blocks_at(ir.node("Concat", [*inner.outputs, x])))


def test_counts() -> None:
    assert blocks.count([]) == dict.fromkeys(FAMILIES, BlockCount(0, 0))
    assert BlockCount(2, 3).all == 5


FLAT = "float[2,S,32] q, float[2,T,16] k, float[2,T,16] v, float[2,1,S,T] m, float[2,2,P,8] pk, float[2,2,P,8] pv"


@pytest.mark.parametrize(
    ("inputs", "body", "expected"),
    [
        (QKV, "s = MatMul (q, k) p = Softmax (s) y = MatMul (p, v)", (None, None, None, None, None, None, None)),
        (
            FLAT,
            "y = Attention <q_num_heads = 4, kv_num_heads = 2, is_causal = 1> (q, k, v)",
            (4, 2, None, "S", "T", "causal", False),
        ),
        (
            FLAT,
            "y, a, b = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v, m, pk, pv)",
            (4, 2, None, "S", "P + T", "given", True),
        ),
        (
            FLAT.replace("16", "32"),
            f"y = {M}.MultiHeadAttention <num_heads = 4, unidirectional = 1> (q, k, v, , , m)",
            (4, 4, None, "S", "T", "causal and given", False),
        ),
        ("float[2,4,S,8] q, float[2,2,T,8] v", "y = Attention (q, v, v)", (4, 2, None, "S", "T", "none", False)),
    ],
)
def test_facts_that_an_op_shows(inputs: str, body: str, expected: tuple[object, ...]) -> None:
    model = parse(f"main ({inputs}) => (float[] y) {{ {body} }}", 23)
    (block,) = blocks.blocks(model, "attention")
    assert facts_of(block) == AttentionFacts(*expected)  # type: ignore[arg-type]
