"""Softmax(x + bias) becomes BiasSoftmax(x, bias), on CUDA."""

from ortopt import optimize
from ortopt.options import Fusions, Options
from ortopt.testing import parse

CUDA = Options(providers=("CUDAExecutionProvider", "CPUExecutionProvider"), fusions=Fusions.ALL)


def test_attention_comes_first() -> None:
    """Its scores would be taken apart: with a bias added they are no product any more."""
    text = """main (float[2,4,3,8] q, float[2,4,8,5] k, float[2,4,5,8] v, float[2,1,3,5] m) => (float[2,4,3,8] y) {
        d = MatMul (q, k) a = Add (d, m) p = Softmax <axis = -1> (a) y = MatMul (p, v) }"""
    result = optimize(parse(text, 23), providers=CUDA.providers, fusions="all", verify=False)
    ops = [node.op_type for node in result.model.graph]
    assert "BiasSoftmax" not in ops
    assert "Attention" in ops
