"""Add, Mul, Sigmoid and LeakyRelu between DequantizeLinear and QuantizeLinear become kernels of integers."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.quantized_units import Tensor, check_unit, drawn, run, unit

PASS = "qlinear_elementwise_fusion"
A = Tensor("N,300", 0.031)
B = Tensor("N,300", 0.0173, 200)
Y = Tensor("N,300", 0.0427, 99)
ADD = "t = Add (a_x, b_x)"


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_two_operands(op: str, dtype: str) -> None:
    a, b, y = (one._replace(dtype=dtype, zero=3) for one in (A, B, Y))
    check_unit(check_rewrites, PASS, unit(f"t = {op} (a_x, b_x)", y, a=a, b=b), f"com.microsoft::QLinear{op}")


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("op", ["Sigmoid", "LeakyRelu <alpha = 0.3>", "LeakyRelu"])
def test_one_operand_is_exact(op: str, dtype: str) -> None:
    a, y = A._replace(dtype=dtype), Tensor("N,300", 0.00390625, 0, dtype)
    kernel = f"com.microsoft::QLinear{op.split(maxsplit=1)[0]}"
    name, _, attributes = op.partition(" ")
    check_unit(check_rewrites, PASS, unit(f"t = {name} {attributes} (a_x)", y, a=a), kernel, exact=True)


@pytest.mark.parametrize("op", ["Sigmoid", "LeakyRelu"])
def test_one_operand_without_elements(op: str) -> None:
    text = unit(f"t = {op} (a_x)", Y._replace(dims="0,3"), a=A._replace(dims="0,3"))
    check_unit(check_rewrites, PASS, text, f"com.microsoft::QLinear{op}", exact=True)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_relu_has_no_slope(dtype: str) -> None:
    text = unit("t = Relu (a_x)", Y._replace(dtype=dtype), a=A._replace(dtype=dtype))
    check_unit(check_rewrites, PASS, text, "com.microsoft::QLinearLeakyRelu", exact=True)


@pytest.mark.parametrize("dims", ["300", "1,1", "0,300", "2,N,300"])
def test_broadcasting(dims: str) -> None:
    y = "2,N,300" if dims == "2,N,300" else "0,300" if dims == "0,300" else "N,300"
    a = A._replace(dims="1,300") if dims == "0,300" else A
    check_unit(
        check_rewrites, PASS, unit(ADD, Y._replace(dims=y), a=a, b=B._replace(dims=dims)), "com.microsoft::QLinearAdd"
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("N,300,1,1", "1"),
        ("N,300,1,1", ""),
        ("N,300,1,1", "300,1,1"),
        ("N,300,H,W", "N,300,H,W"),
        ("N,300", ""),
        ("N,300,4,2", "N,300,1,1"),
        ("N,4,S,8", "N,1,1,8"),
    ],
)
def test_operands_that_may_have_no_elements(a: str, b: str) -> None:
    """The kernel reads what it takes for a number before it knows that there is none, where several threads run."""
    text = unit(ADD, Y._replace(dims=a), a=A._replace(dims=a), b=B._replace(dims=b))
    text = text.replace("{\n", "{ a = Cast <to = 2> (a0)", 1)  # what is computed has no memory
    text = text.replace(f"uint8[{a}] a", f"float[{a}] a0", 1)
    if b in ("", "1"):
        constant = f"uint8[{b}]" if b else "uint8"
        text = text.replace(f", uint8[{b}] b)", ")").replace("<float a_s", f"<{constant} b = {{9}}, float a_s", 1)
    else:
        text = text.replace("{ a =", "{ b = Cast <to = 2> (b0) a =", 1).replace(f"uint8[{b}] b", f"float[{b}] b0", 1)
    result = check_unit(check_rewrites, PASS, text, "com.microsoft::QLinearAdd")
    feeds = {value.name or "": drawn(value, 0, {"N": 0, "H": 1, "W": 1}) for value in result.graph.inputs}
    (out,) = run(result, feeds)
    assert out.shape[0] == 0
