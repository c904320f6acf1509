"""Multiply-adds: each op against what its definition says, formulas where sizes are free."""

from __future__ import annotations

import pytest

from ortopt.analysis.multiply_adds import multiply_adds
from ortopt.analysis.shapes import infer_model
from ortopt.testing import parse

COUNTED = {
    "(float[N,8] x, float[8,4] w) => (float[N,4] y) { y = MatMul (x, w) }": "32*N",
    "(float[2,3,8] x, float[2,8,4] w) => (float[2,3,4] y) { y = MatMul (x, w) }": 192,
    "(float[8] x, float[8] w) => (float y) { y = MatMul (x, w) }": 8,
    "(float[8,N] x, float[4,8] w) => (float[N,4] y) { y = Gemm <transA = 1, transB = 1> (x, w) }": "32*N",
    "(uint8[N,8] x, uint8[8,4] w) => (int32[N,4] y) { y = MatMulInteger (x, w) }": "32*N",
    "(float[N,3,8,8] x, float[6,3,3,3] w) => (float[N,6,6,6] y) { y = Conv (x, w) }": "5832*N",
    "(float[1,4,8] x, float[4,1,3] w) => (float[1,4,6] y) { y = Conv <group = 4> (x, w) }": 72,
    "(float[1,2,4,4] x, float[2,3,2,2] w) => (float[1,3,5,5] y) { y = ConvTranspose (x, w) }": 384,
    "(float[T,B,5] x, float[1,16,5] w, float[1,16,4] r) => (float[T,1,B,4] y) { y = LSTM <hidden_size = 4> (x, w, r) }":
        "144*B*T",
    '(float[N,3] x, float[3,5] w) => (float[N,5] y) { y = Einsum <equation = "ij,jk->ik"> (x, w) }': "15*N",
    '(float[N,3] x) => (float[N] y) { y = Einsum <equation = "ij->i"> (x) }': 0,
    "(float[N,3] x, float[3] w) => (float[N,3] y) { a = Mul (x, w) y = Relu (a) }": None,
}  # fmt: skip

OWN = """
<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
main """

COUNTED_OWN = {
    "(float[B,S,8] q, float[B,T,8] k, float[B,T,8] v) => (float[B,S,8] y)"
    " { y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v) }": "16*B*S*T",
    "(float[B,S,8] x, float[8,24] w, float[24] b) => (float[B,S,8] y)"
    " { y = com.microsoft.Attention <num_heads = 2> (x, w, b) }": "16*B*S**2 + 192*B*S",
    "(float[N,32] x, uint8[4,1,16] w, float[4] s) => (float[N,4] y)"
    " { y = com.microsoft.MatMulNBits <K = 32, N = 4, bits = 4, block_size = 32> (x, w, s) }": "128*N",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [*((f"main {text}", count) for text, count in COUNTED.items()), *((OWN + t, c) for t, c in COUNTED_OWN.items())],
)
def test_an_op(text: str, expected: int | str | None) -> None:
    model = parse(text)
    infer_model(model)
    counted = multiply_adds(model)
    assert not counted.unknown
    assert [str(count) for count in counted.by_op.values()] == ([] if expected is None else [str(expected)])
    assert str(counted.total) == str(expected or 0)


FUNCTIONS = """
<ir_version: 10, opset_import: ["" : 17, "pkg" : 1]>
main (float[N,4] x, bool c) => (float[N,4] y) {
    a = pkg.Twice (x)
    b = pkg.Twice (a)
    y = If (c) <
        then_branch = one () => (float[N,4] t) { t = pkg.Once (b) },
        else_branch = two () => (float[N,4] e) { e = Identity (b) }
    >
}
<domain: "pkg", opset_import: ["" : 17, "pkg" : 1]>
Twice (x) => (y) { h = pkg.Once (x) y = pkg.Once (h) }
<domain: "pkg", opset_import: ["" : 17]>
Once (x) => (y) { w = Constant <value = float[4,4] {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> () y = MatMul (x, w) }
<domain: "pkg", opset_import: ["" : 17]>
Never (x) => (y) { y = MatMul (x, x) }
"""


def test_a_function_counts_as_often_as_it_is_called() -> None:
    model = parse(FUNCTIONS)
    infer_model(model)
    counted = multiply_adds(model)
    assert {op: str(count) for op, count in counted.by_op.items()} == {"MatMul": "80*N"}
    assert not counted.unknown


def test_what_depends_on_data_is_told_apart() -> None:
    model = parse(
        """main (float[N,8] x, bool[N] c, float[8,4] w) => (float[k,4] y, float[N,4] z) {
            s = Compress <axis = 0> (x, c)
            y = MatMul (s, w)
            z = MatMul (x, w)
        }"""
    )
    infer_model(model)
    counted = multiply_adds(model)
    assert (str(counted.total), dict(counted.unknown)) == ("32*N", {"MatMul": 1})
