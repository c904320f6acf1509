"""An Einsum of one or two operands becomes a product of matrices, or of elements, between Transposes and Reshapes."""

from __future__ import annotations

import re

import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import check_rewrites, parse

PASS = "einsum_decomposition"
ATTENTION = ("Attention", "com.microsoft::Attention", "com.microsoft::MultiHeadAttention")
SIZES = {"A": 2, "B": 3, "H": 2, "I": 4, "K": 5, "M": 3, "N": 2, "Q": 4, "S": 2}


def fixed(text: str) -> str:
    """A model with numbers for its symbols: ONNX Runtime's Einsum ends the process where it transposes nothing."""
    return re.sub(r"\b[A-Z]\b(?=[,\]])", lambda found: str(SIZES[found[0]]), text)


def model(equation: str, *shapes: str, result: str = "", dtype: str = "float") -> str:
    inputs = ", ".join(f"{_type(dtype, shape)} {name}" for name, shape in zip("abc", shapes, strict=False))
    names = ", ".join("abc"[: len(shapes)])
    return f'main ({inputs}) => ({_type(dtype, result)} y) {{ y = Einsum <equation = "{equation}"> ({names}) }}'


def _type(dtype: str, shape: str) -> str:
    return f"{dtype}[{shape}]" if shape else dtype


PRODUCTS = {
    "matrices": (model("ij,jk->ik", "2,3", "3,4", result="2,4"), "y = MatMul (a, b)"),
    "with spaces": (model(" i j , j k -> i k ", "2,3", "3,4", result="2,4"), "y = MatMul (a, b)"),
    "the result is implied": (model("ij,jk", "2,3", "3,4", result="2,4"), "y = MatMul (a, b)"),
    "capital letters": (model("IJ,JK->IK", "2,3", "3,4", result="2,4"), "y = MatMul (a, b)"),
    "sizes that are symbols": (model("ij,jk->ik", "N,K", "K,M", result="N,M"), "y = MatMul (a, b)"),
    "the second is turned": (
        model("ij,kj->ik", "N,8", "M,8", result="N,M"), "t = Transpose <perm = [1, 0]> (b) y = MatMul (a, t)",
    ),
    "the result is turned": (
        model("ij,jk->ki", "2,3", "3,4", result="4,2"),
        "t = MatMul (a, b) y = Transpose <perm = [1, 0]> (t)",
    ),
    "a batch": (model("bij,bjk->bik", "B,2,3", "B,3,4", result="B,2,4"), "y = MatMul (a, b)"),
    "an ellipsis": (model("...ij,...jk->...ik", "B,H,2,3", "B,H,3,4", result="B,H,2,4"), "y = MatMul (a, b)"),
    "an empty ellipsis": (model("...ij,...jk->...ik", "2,3", "3,4", result="2,4"), "y = MatMul (a, b)"),
    "a layer on many rows": (model("bsd,df->bsf", "B,S,8", "8,4", result="B,S,4"), "y = MatMul (a, b)"),
    "attention, scores": (
        model("bqhd,bkhd->bhqk", "B,Q,2,8", "B,K,2,8", result="B,2,Q,K"),
        "s = Transpose <perm = [0, 2, 1, 3]> (a) t = Transpose <perm = [0, 2, 3, 1]> (b) y = MatMul (s, t)",
    ),
    "attention, context": (
        model("bhqk,bkhd->bqhd", "B,2,Q,K", "B,K,2,8", result="B,Q,2,8"),
        "s = Transpose <perm = [0, 2, 1, 3]> (b) t = MatMul (a, s) y = Transpose <perm = [0, 2, 1, 3]> (t)",
    ),
    "a projection into heads": (
        model("bsd,dhk->bshk", "B,S,8", "8,2,4", result="B,S,2,4"),
        "w = Reshape (b, shape) t = MatMul (a, w) y = Reshape (t, split)",
    ),
    "a projection out of heads": (
        model("bshk,hkd->bsd", "B,S,2,4", "2,4,8", result="B,S,8"),
        "x = Reshape (a, rows) w = Reshape (b, shape) y = MatMul (x, w)",
    ),
    "relative positions along rows": (
        model("bhwc,hkc->bhwk", "3,4,5,8", "4,6,8", result="3,4,5,6"),
        "s = Transpose <perm = [1, 0, 2, 3]> (a) r = Reshape (s, heights) t = Transpose <perm = [0, 2, 1]> (b)"
        " p = MatMul (r, t) q = Reshape (p, widths) y = Transpose <perm = [1, 0, 2, 3]> (q)",
    ),
    "relative positions of queries": (model("bhld,lrd->bhlr", "2,4,5,8", "5,6,8", result="2,4,5,6"), None),
    "a matrix and a vector": (
        model("ij,j->i", "N,8", "8", result="N"), "t = Unsqueeze (b, one) p = MatMul (a, t) y = Squeeze (p, one)",
    ),
    "a vector and a matrix": (model("i,ij->j", "8", "8,N", result="N"), "y = MatMul (a, b)"),
    "two vectors": (model("i,i->", "8", "8"), "y = MatMul (a, b)"),
    "matrices and vectors, in a batch": (
        model("bij,bj->bi", "B,4,8", "B,8", result="B,4"),
        "t = Unsqueeze (b, last) p = MatMul (a, t) y = Squeeze (p, last)",
    ),
    "elements": (model("ij,ij->ij", "N,3", "N,3", result="N,3"), "p = Mul (a, b) y = Add (p, zero)"),
    "elements and a row": (model("ij,j->ij", "N,3", "3", result="N,3"), "p = Mul (a, b) y = Add (p, zero)"),
    "an outer product": (
        model("i,j->ij", "N", "M", result="N,M"),
        "s = Unsqueeze (a, one) t = Unsqueeze (b, none) y = MatMul (s, t)",
    ),
    "a number": (model(",ij->ij", "", "N,3", result="N,3"), "p = Mul (a, b) y = Add (p, zero)"),
    "summed first": (
        model("ij,k->ik", "N,3", "M", result="N,M"),
        "s = ReduceSum <keepdims = 0> (a, one) t = Unsqueeze (s, one) u = Unsqueeze (b, none) y = MatMul (t, u)",
    ),
    "an axis of size 1 broadcasts": (
        model("bij,bjk->bik", "1,2,3", "B,3,4", result="B,2,4"), None,
    ),
    "integers": (model("ij,jk->ik", "2,3", "3,4", result="2,4", dtype="int64"), "y = MatMul (a, b)"),
    "double": (model("ij,jk->ik", "2,3", "3,4", result="2,4", dtype="double"), "y = MatMul (a, b)"),
    "one operand is turned": (model("ijk->kij", "N,2,3", result="3,N,2"), "y = Transpose <perm = [2, 0, 1]> (a)"),
    "one operand is turned, implied": (model("ba", "N,2", result="2,N"), "y = Transpose <perm = [1, 0]> (a)"),
    "one operand is summed": (model("ij->i", "N,2", result="N"), "y = ReduceSum <keepdims = 0> (a, one)"),
    "one operand is summed and turned": (
        model("ijk->ki", "N,2,3", result="3,N"),
        "s = ReduceSum <keepdims = 0> (a, one) y = Transpose <perm = [1, 0]> (s)",
    ),
    "the sum of all": (model("ij->", "N,2"), "y = ReduceSum <keepdims = 0> (a, both)"),
}  # fmt: skip
CONSTANTS = (
    "float zero = {0.0}, int64[1] none = {0},"
    " int64[1] one = {1}, int64[2] both = {0, 1}, int64[1] last = {2}, int64[2] shape = {8, 8},"
    " int64[4] split = {0, 0, 2, 4}, int64[3] rows = {0, 0, 8},"
    " int64[3] heights = {4, 15, 8}, int64[4] widths = {4, 3, 5, 6}"
)


def with_constants(text: str, after: str) -> str:
    head = text[: text.index("{")]
    used = [each for each in CONSTANTS.split("}, ") if f" {each.split()[1]})" in after.replace(",", ")")]
    constants = ", ".join(each.removesuffix("}") + "}" for each in used)
    return f"{head} {f'<{constants}>' if constants else ''} {{ {after} }}"


@pytest.mark.parametrize("case", PRODUCTS)
def test_rewrites(case: str) -> None:
    text, after = PRODUCTS[case]
    check_rewrites(PASS, fixed(text), ops={"Einsum": 0})
    expected = None if after is None else with_constants(text, after)
    check_rewrites(PASS, text, expected, ops={"Einsum": 0}, numbers=False)


MORE = {
    "rows of a batch are joined": model("bihc,bjc->bihj", "B,2,3,8", "B,4,8", result="B,2,3,4"),
    "rows of a batch, one size unknown": model("bihc,bjc->bihj", "2,I,3,8", "2,4,8", result="2,I,3,4"),
    "two letters are summed": model("bihc,bjhc->bij", "B,2,3,8", "B,4,3,8", result="B,2,4"),
    "two letters are summed, in another order": model("bich,bjhc->bij", "B,2,8,3", "B,4,3,8", result="B,2,4"),
    "all letters are summed": model("ijk,ijk->", "2,3,4", "2,3,4"),
    "rows and columns are single": model("bi,bi->b", "B,4", "B,4", result="B"),
    "many columns": model("bij,bjkl->bikl", "B,2,3", "B,3,4,5", result="B,2,4,5"),
    "columns come first": model("bij,bjk->kib", "B,2,3", "B,3,4", result="4,2,B"),
    "elements in another order": model("ijk,ki->ikj", "2,3,4", "4,2", result="2,4,3"),
    "an outer product of three": model("ik,j->ijk", "2,4", "3", result="2,3,4"),
    "a letter of each is summed": model("ij,kl->ik", "2,3", "4,5", result="2,4"),
    "an ellipsis beside a matrix": model("...i,ij->...j", "A,B,3", "3,4", result="A,B,4"),
    "an ellipsis of sizes 1": model("...ij,...jk->...ik", "1,1,2,3", "B,2,3,4", result="B,2,2,4"),
    "a summed letter of size 1": model("ij,jk->ik", "2,1", "3,4", result="2,4"),
}


@pytest.mark.parametrize("case", MORE)
def test_numbers(case: str) -> None:
    check_rewrites(PASS, fixed(MORE[case]), ops={"Einsum": 0})
    check_rewrites(PASS, MORE[case], ops={"Einsum": 0}, numbers=False)


def test_attention_is_found_behind_it() -> None:
    weights = ", ".join(
        f"float[16,16] w{name} = {{{','.join(str((place % cycle - cycle // 2) / 10) for place in range(256))}}}"
        for name, cycle in (("q", 7), ("k", 5), ("v", 11))
    )
    text = f"""main (float[B,S,16] x) => (float[B,S,16] y)
        <{weights}, int64[4] split = {{0, 0, 2, 8}}, int64[3] join = {{0, 0, 16}}, float scale = {{0.35355338}}> {{
            qs = MatMul (x, wq) ks = MatMul (x, wk) vs = MatMul (x, wv)
            q = Reshape (qs, split) k = Reshape (ks, split) v = Reshape (vs, split)
            r = Einsum <equation = "bqhd,bkhd->bhqk"> (q, k) s = Mul (r, scale) p = Softmax <axis = -1> (s)
            o = Einsum <equation = "bhqk,bkhd->bqhd"> (p, v) y = Reshape (o, join)
        }}"""
    result = optimize(parse(text), level=2)
    ops = figures(result.model).ops
    assert "Einsum" not in ops
    assert sum(ops.get(op, 0) for op in ATTENTION) == 1, ops
    assert result.verified
