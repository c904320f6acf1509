"""Softmax(x + bias) becomes BiasSoftmax(x, bias), on CUDA."""

import pytest

from ortopt import optimize
from ortopt.options import Fusions, Options
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.tables import keeps

PASS = "bias_softmax_fusion"
CUDA = Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"), fusions=Fusions.ALL)


def model(x: str = "2,4,6,8", bias: str = "2,1,1,8", total: str = "Add (x, b)", softmax: str = "", **more: str) -> str:
    out = more.get("out", x)
    kind = more.get("kind", "float")
    return f"""main ({kind}[{x}] x, {kind}[{bias}] b) => ({kind}[{out}] y{more.get("also", "")}) {{
        t = {total} y = Softmax {softmax} (t) }}"""


INNER = {"2,4,6,8": ("2,1,1,8", "2,4,1,8", "1,1,1,8", "8", "1,8"), "4,8": ("1,8", "8")}
OUTER = {"2,4,6,8": ("1,1,6,8", "1,4,6,8", "6,8", "4,6,8", "2,4,6,8"), "4,8": ("4,8",)}


@pytest.mark.parametrize("total", ["Add (x, b)", "Add (b, x)"])
@pytest.mark.parametrize("softmax", ["", "<axis = -1>", "<axis = 3>"])
def test_fuses(total: str, softmax: str) -> None:
    after = "y = com.microsoft.BiasSoftmax <axis = -1, is_inner_broadcast = 1> (x, b)"
    check_rewrites(PASS, model(total=total, softmax=softmax), after, options=CUDA, numbers=False)


@pytest.mark.parametrize(("x", "bias"), [(x, bias) for x, biases in INNER.items() for bias in biases])
def test_a_bias_for_the_first_dimensions(x: str, bias: str) -> None:
    after = "y = com.microsoft.BiasSoftmax <axis = -1, is_inner_broadcast = 1> (x, b)"
    check_rewrites(PASS, model(x, bias), after, options=CUDA, numbers=False)


@pytest.mark.parametrize(("x", "bias"), [(x, bias) for x, biases in OUTER.items() for bias in biases])
def test_a_bias_for_the_last_dimensions(x: str, bias: str) -> None:
    after = "y = com.microsoft.BiasSoftmax <axis = -1, is_inner_broadcast = 0> (x, b)"
    check_rewrites(PASS, model(x, bias), after, options=CUDA, numbers=False)


@pytest.mark.parametrize("kind", ["float16", "double"])
def test_other_types(kind: str) -> None:
    check_rewrites(PASS, model(kind=kind), options=CUDA, numbers=False, ops={"com.microsoft::BiasSoftmax": 1, "Add": 0})


def test_before_opset_13() -> None:
    after = "y = com.microsoft.BiasSoftmax <axis = -2, is_inner_broadcast = 1> (x, b)"
    text = model(bias="2,1,6,8", softmax="<axis = 2>")
    check_rewrites(PASS, text, after, opset=12, options=CUDA, numbers=False)
    check_keeps(PASS, model(bias="2,1,1,8", softmax="<axis = 2>"), "repeats over what", opset=12, options=CUDA)


KEPT = {
    "another axis": ("it is not over the last axis", model(softmax="<axis = 2>")),
    "a bias in the middle": ("repeats over dimensions in the middle", model(bias="2,1,6,8")),
    "a column": ("the bias repeats over what the Softmax is over", model(bias="2,1,6,1")),
    "a bias that enlarges": ("the bias enlarges the scores", model("2,1,6,8", "2,4,6,8", out="2,4,6,8")),
    "a dimension that may be 0": ("a dimension may be 0", model("N,4,6,8", "1,1,1,8")),
    "no sum": ("no Add comes before", model(total="Mul (x, b)")),
    "the sum is needed": ("Add's result is used elsewhere", model(also=", float[2,4,6,8] t")),
}


test_keeps = keeps(PASS, KEPT, options=CUDA)


def test_keeps_where_there_is_no_kernel() -> None:
    check_keeps(PASS, model(), "it serves CUDA")
    check_keeps(PASS, model(kind="bfloat16"), options=CUDA, opset=13)


def test_attention_comes_first() -> None:
    """Its scores would be taken apart: with a bias added they are no product any more."""
    text = """main (float[2,4,3,8] q, float[2,4,8,5] k, float[2,4,5,8] v, float[2,1,3,5] m) => (float[2,4,3,8] y) {
        d = MatMul (q, k) a = Add (d, m) p = Softmax <axis = -1> (a) y = MatMul (p, v) }"""
    result = optimize(parse(text, 23), providers=CUDA.providers, fusions="all", verify=False)
    ops = [node.op_type for node in result.model.graph]
    assert "BiasSoftmax" not in ops
    assert "Attention" in ops
