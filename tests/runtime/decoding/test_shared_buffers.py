"""Whatever form a decoder has, its decode loop computes what the plain loop computes; what cannot be is refused."""

from __future__ import annotations

import re

import pytest

from ortopt.errors import UsageError
from ortopt.runtime.session import InferenceSession
from tests.releases import INSTALLED, needs, since
from tests.runtime.decoding.decoders import PLAIN, agree, loop_of, model


def attention(mask: str = "", *, heads: int = 4, **attributes: str) -> str:
    """ONNX's Attention with a past, of two heads of keys."""
    more = "".join(f", {name} = {value}" for name, value in attributes.items())
    inputs = f", {mask} mask" if mask else ""
    return f"""main (float[batch,seq,{heads * 4}] q, float[batch,seq,8] k, float[batch,seq,8] v{inputs},
        float[batch,2,past,4] pk, float[batch,2,past,4] pv)
        => (float[batch,seq,{heads * 4}] y, float[batch,2,T,4] ok, float[batch,2,T,4] ov) {{
            y, ok, ov = Attention <q_num_heads = {heads}, kv_num_heads = 2{more}> (q, k, v, {mask and "mask"}, pk, pv)
        }}"""


def reading(body: str, output: str = "float[] y", more: str = "") -> str:
    """A decoder that reads its cache in some way."""
    return f"""main (float[batch,2,seq,4] k, float[batch,2,seq,4] q, float[batch,2,past,4] pk)
        => ({output}, float[batch,2,T,4] ok) <int64[1] one = {{1}}, int64[1] two = {{2}}{more}> {{
            ok = Concat <axis = 2> (pk, k) {body}
        }}"""


@pytest.mark.parametrize("batch", [1, 3])
def test_concats_and_products(batch: int) -> None:
    assert agree(PLAIN, batch=batch)._session.copied == ()


IN_PLACE = {
    "swapped": "t = Transpose <perm = [0, 1, 3, 2]> (ok) y = MatMul (q, t)",
    "fused": "y = com.microsoft.FusedMatMul <transB = 1, alpha = 0.5> (q, ok)",
    "fused with transA": """t = Transpose <perm = [0, 1, 3, 2]> (q)
        y = com.microsoft.FusedMatMul <transA = 1, transB = 1> (t, ok)""",
    "a batch axis more": """u = Unsqueeze (ok, two) w = Unsqueeze (q, two) t = Transpose <perm = [0, 1, 2, 4, 3]> (u)
        y = MatMul (w, t)""",
    "behind Identity": "i = Identity (ok) t = Transpose <perm = [0, 1, 3, 2]> (i) y = MatMul (q, t)",
    "its shape": "y = Shape (ok)",
    "a part of its shape": "y = Shape <start = 2, end = 4> (ok)",
    "the past's shape": "y = Shape (pk)",
    "a part of the past's shape": "y = Shape <start = 1, end = -1> (pk)",
}


@pytest.mark.parametrize("body", IN_PLACE.values(), ids=IN_PLACE.keys())
def test_what_is_read_in_place(body: str) -> None:
    output = "int64[N] y" if "Shape" in body else "float[] y"
    assert agree(reading(body, output))._session.copied == ()


COPIED = {
    "Mul": "y = Mul (ok, ok)",
    "MatMul": "t = Transpose <perm = [0, 1, 3, 2]> (q) y = MatMul (ok, t)",
    "Expand": "u = Unsqueeze (ok, two) y = Expand (u, wide)",
    "Transpose": "y = Transpose <perm = [3, 2, 1, 0]> (ok)",
}


@pytest.mark.parametrize("op", COPIED)
def test_what_is_read_through_a_copy(op: str) -> None:
    text = reading(COPIED[op], more=", int64[5] wide = {1, 1, 3, 1, 1}")
    assert agree(text)._session.copied == (("ok", op),)


CACHES = {
    "one head, squeezed": """main (float[batch,1,seq,4] k, float[batch,seq,4] q, float[batch,1,past,4] pk)
        => (float[] y, float[batch,1,T,4] ok) <int64[1] one = {1}> {
            ok = Concat <axis = 2> (pk, k) s = Squeeze (ok, one)
            t = Transpose <perm = [0, 2, 1]> (s) y = MatMul (q, t) }""",
    "positions before heads": """main (float[batch,seq,2,4] k, float[batch,2,seq,4] q, float[batch,past,2,4] pk)
        => (float[] y, float[batch,T,2,4] ok) {
            ok = Concat <axis = 1> (pk, k) t = Transpose <perm = [0, 2, 3, 1]> (ok) y = MatMul (q, t) }""",
    "positions last": """main (float[batch,2,4,seq] k, float[batch,2,seq,4] q, float[batch,2,4,past] pk)
        => (float[] y, float[batch,2,4,T] ok) { ok = Concat <axis = -1> (pk, k) y = MatMul (q, ok) }""",
    "positions first": """main (float[seq,batch,4] k, float[batch,seq,4] q, float[past,batch,4] pk)
        => (float[] y, float[T,batch,4] ok) {
            ok = Concat <axis = 0> (pk, k) t = Transpose <perm = [1, 2, 0]> (ok) y = MatMul (q, t) }""",
    "behind a Concat of one": """main (float[batch,2,seq,4] k, float[batch,2,seq,4] q, float[batch,2,past,4] pk)
        => (float[] y, float[batch,2,T,4] ok) {
            c = Concat <axis = 2> (pk) a = Concat <axis = 2> (c, k) ok = Identity (a)
            t = Transpose <perm = [0, 1, 3, 2]> (a) y = MatMul (q, t) }""",
    "double": """main (double[batch,2,seq,4] k, double[batch,2,seq,4] q, double[batch,2,past,4] pk)
        => (double[] y, double[batch,2,T,4] ok) {
            ok = Concat <axis = 2> (pk, k) t = Transpose <perm = [0, 1, 3, 2]> (ok) y = MatMul (q, t) }""",
}


@pytest.mark.parametrize("text", CACHES.values(), ids=CACHES.keys())
def test_caches_of_any_form(text: str) -> None:
    if "double" in text:
        needs(1, 26, "FusedMatMul of doubles")
    assert agree(text)._session.copied == ()


def test_halves() -> None:
    agree(PLAIN.replace("float", "float16"), tolerance=2e-3)


ATTENTION = since(1, 23, "Attention of opset 23")
EMPTY_ROWS = INSTALLED >= (1, 28)
"""Whether Attention gives 0 where a mask leaves nothing, as buffers have it: before, it is the mean of all values."""

MASKS = {
    "none": "",
    "float of two axes": "float[seq,T]",
    "float for each sequence": "float[batch,1,seq,T]",
    "float for each head": "float[1,4,seq,T]",
    "float of three axes": "float[4,seq,T]",
    "bool": "bool[batch,1,seq,T]",
}


@ATTENTION
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_attention(mask: str) -> None:
    if "4," in mask:
        needs(1, 25, "masks for each head of queries where those of keys are fewer")
    agree(attention(mask), 23, empty_rows=EMPTY_ROWS)


@ATTENTION
def test_attention_in_an_if_that_asks_for_elements() -> None:
    text = attention("float[batch,1,seq,T]")
    head, _, body = text.partition("=> (float[batch,seq,16] y")
    kernel = body.partition("{")[2].replace("y, ok, ov", "yt, kt, vt").rpartition("}")[0]
    results = "(float[batch,seq,16] {0}, float[batch,2,T,4] {1}, float[batch,2,T,4] {2})"
    text = f"""{head} => (float[batch,seq,16] y, float[batch,2,T,4] ok, float[batch,2,T,4] ov) {{
        n = Size (q) some = Cast <to = 9> (n)
        y, ok, ov = If (some) <
            then_branch = one () => {results.format("yt", "kt", "vt")} {{ {kernel} }},
            else_branch = none () => {results.format("yn", "kn", "vn")} {{
                yn = Identity (q) kn = Identity (pk) vn = Identity (pv) }}>
    }}"""
    assert agree(text, 23, empty_rows=EMPTY_ROWS)._session.copied == ()


@since(1, 24, "Attention of opset 24")
@pytest.mark.parametrize("mask", ["", "float[batch,2,seq,T]", "bool[seq,T]"])
def test_attention_with_as_many_heads_of_keys(mask: str) -> None:
    agree(attention(mask, heads=2, scale="0.3"), 24, empty_rows=EMPTY_ROWS)


@ATTENTION
def test_attention_of_four_axes() -> None:
    text = attention("float[batch,1,seq,T]").replace("float[batch,seq,16]", "float[batch,4,seq,4]")
    agree(
        text.replace("float[batch,seq,8]", "float[batch,2,seq,4]").replace("<q_num_heads = 4, kv_num_heads = 2>", ""),
        23,
        empty_rows=EMPTY_ROWS,
    )


@ATTENTION
@pytest.mark.parametrize("axes", ["four", "three"])
def test_attention_that_reads_a_present(axes: str) -> None:
    one = "a = Squeeze (ok, one) b = Squeeze (ov, one)" if axes == "three" else "a = Identity (ok) b = Identity (ov)"
    shape = "batch,seq,8" if axes == "three" else "batch,2,seq,4"
    given = "<q_num_heads = 2, kv_num_heads = 1>" if axes == "three" else ""
    text = f"""main (float[{shape}] q, float[batch,1,seq,4] k, float[batch,1,seq,4] v, float[batch,1,seq,T] mask,
        float[batch,1,past,4] pk, float[batch,1,past,4] pv)
        => (float[{shape}] y, float[batch,1,T,4] ok, float[batch,1,T,4] ov) <int64[1] one = {{1}}> {{
            ok = Concat <axis = 2> (pk, k) ov = Concat <axis = 2> (pv, v) {one}
            y = Attention {given} (q, a, b, mask)
        }}"""
    assert agree(text, 23, empty_rows=EMPTY_ROWS)._session.copied == ()


@pytest.mark.parametrize("bias", ["", ", bias"])
def test_multi_head_attention(bias: str) -> None:
    if bias:
        needs(1, 21, "MultiHeadAttention that reads the bias of each sequence")
    declared = ", float[batch,1,seq,T] bias" if bias else ""
    text = f"""main (float[batch,seq,8] q, float[batch,seq,8] k, float[batch,seq,8] v{declared},
        float[batch,2,past,4] pk, float[batch,2,past,4] pv)
        => (float[batch,seq,8] y, float[batch,2,T,4] ok, float[batch,2,T,4] ov) {{
            y, ok, ov = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v, , , {bias[2:]}, pk, pv)
        }}"""
    agree(text)


@ATTENTION
def test_one_mask_of_several_layers_is_made_once() -> None:
    layer = "{0}, ok{1}, ov{1} = Attention <q_num_heads = 4, kv_num_heads = 2> ({2}, k, v, mask, pk{1}, pv{1})"
    text = f"""main (float[batch,seq,16] q, float[batch,seq,8] k, float[batch,seq,8] v, float[batch,1,seq,T] mask,
        float[batch,2,past,4] pk0, float[batch,2,past,4] pv0, float[batch,2,past,4] pk1, float[batch,2,past,4] pv1)
        => (float[batch,seq,16] y, float[batch,2,T,4] ok0, float[batch,2,T,4] ov0, float[batch,2,T,4] ok1,
            float[batch,2,T,4] ov1) {{ {layer.format("a", 0, "q")} {layer.format("y", 1, "a")} }}"""
    loop = agree(text, 23, empty_rows=EMPTY_ROWS)
    assert len({buffer.rows for buffer in loop._session.buffers}) == 1


def changed(old: str, new: str, text: str = PLAIN) -> str:
    assert old in text
    return text.replace(old, new)


REFUSED = {
    "what Cast computes, not a Concat": reading("c = Cast <to = 10> (ok) y = Neg (ok)").replace(
        "ok = Concat <axis = 2> (pk, k)", "d = Concat <axis = 2> (pk, k) e = Cast <to = 10> (d) ok = Cast <to = 1> (e)"
    ),
    "the past comes last": changed("(pk, k)", "(n, pk) ", reading("y = Neg (ok)")).replace(
        "ok = Concat", "n = Neg (k) ok = Concat"
    ),
    "the Concat has 3 operands": changed("(pk, k)", "(pk, k, k)", reading("y = Neg (ok)")),
    "no operand of the Concat is an input": changed("(pk, k)", "(n, n) ", reading("y = Neg (ok)")).replace(
        "ok = Concat", "n = Neg (pk) ok = Concat"
    ),
    "Neg uses the past, too": reading("y = Neg (pk)"),
    "'pk' is the past of two outputs": reading("two_of = Concat <axis = 2> (pk, k) y = Neg (ok)").replace(
        "=> (", "=> (float[batch,2,T,4] two_of, "
    ),
    "'ok' is used in a nested graph": reading(
        "y = If <then_branch = g () => (float[] a) { a = Neg (ok) }, else_branch = h () => (float[] b) { b = Abs (q) }>"
        " (c)",
        more=", bool c = {1}",
    ),
    "opset 12 or newer": PLAIN,
    "Attention has is_causal": attention(is_causal="1"),
    "Attention has softcap": attention(softcap="2.0"),
}


@pytest.mark.parametrize("because", REFUSED)
def test_refused(because: str) -> None:
    opset = 11 if "opset" in because else 23 if "Attention" in because else 17
    with pytest.raises(UsageError, match=re.escape(because)):
        loop_of(REFUSED[because], opset)


def test_pairs_that_the_caller_names() -> None:
    session = InferenceSession(model(PLAIN), shared_cache={"pk": "ok"})
    assert [value.name for value in session.get_inputs()] == ["x", "pv"]
    assert [value.name for value in session.get_outputs()] == ["y", "ov"]
    for wanted, because in (
        ({"no": "ok"}, "the model has no input 'no'"),
        ({"pk": "no"}, "the model has no output 'no'"),
        ({"pv": "ok"}, "'ok' is not 'pv' with something behind it, but 'pk'"),
        ({"x": "y"}, "'y' is not 'x' with something behind it: it is what Reshape computes"),
        ({}, "shared_cache names no past"),
    ):
        with pytest.raises(UsageError, match=re.escape(because)):
            InferenceSession(model(PLAIN), shared_cache=wanted)
