"""min(max(a · x + b, 0), c) / c becomes HardSigmoid(x)."""

import re

import onnx_ir as ir
import pytest

from ortopt.testing import check_rewrites

PASS = "hard_sigmoid_fusion"
HEAD = "main (float[N,3,8,8] x) => (float[N,3,8,8] y)"
NUMBERS = {
    "three": "float three = {3.0}",
    "zero": "float zero = {0.0}",
    "one": "float one = {1.0}",
    "half": "float half = {0.5}",
    "fifth": "float fifth = {0.2}",
    "six": "float six = {6.0}",
    "sixth": "float sixth = {0.16666667}",
    "large": "float large = {1000.0}",
}


def model(nodes: str, head: str = HEAD, **numbers: str) -> str:
    """A graph of some nodes, with the constants that they use."""
    used = [numbers.get(name, text) for name, text in NUMBERS.items() if re.search(rf"\b{name}\b", nodes)]
    return f"{head} <{', '.join(used)}> {{ {nodes} }}"


def parameters(result: ir.Model) -> tuple[float, float]:
    (node,) = result.graph
    assert node.op_type == "HardSigmoid"
    return node.attributes.get_float("alpha"), node.attributes.get_float("beta")


SPELLINGS = {
    "a = Add (x, three) c = Clip (a, zero, six) y = Div (c, six)": (1 / 6, 0.5),
    "a = Add (three, x) c = Clip (a, zero, six) y = Mul (sixth, c)": (1 / 6, 0.5),
    "a = Sub (x, three) c = Clip (a, zero, six) y = Mul (c, sixth)": (1 / 6, -0.5),
    "a = Sub (three, x) c = Clip (a, zero, six) y = Mul (c, sixth)": (-1 / 6, 0.5),
    "s = Mul (x, fifth) a = Add (s, half) y = Clip (a, zero, one)": (0.2, 0.5),
    "s = Div (x, six) a = Add (s, half) y = Clip (a, zero, one)": (1 / 6, 0.5),
    "a = Add (x, three) s = Div (a, six) y = Clip (s, zero, one)": (1 / 6, 0.5),
    "a = Add (x, half) y = Clip (a, zero, one)": (1.0, 0.5),
    "s = Mul (x, fifth) c = Clip (s, zero, six) y = Div (c, six)": (0.2 / 6, 0.0),
}


@pytest.mark.parametrize("nodes", SPELLINGS)
def test_fuses(nodes: str) -> None:
    assert parameters(check_rewrites(PASS, model(nodes))) == pytest.approx(SPELLINGS[nodes], rel=1e-6)


def test_bounds_that_are_attributes() -> None:
    nodes = "a = Add (x, three) c = Clip <min = 0.0, max = 6.0> (a) y = Div (c, six)"
    assert parameters(check_rewrites(PASS, model(nodes), opset=10)) == pytest.approx((1 / 6, 0.5), rel=1e-6)
