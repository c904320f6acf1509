"""min(max(a · x + b, 0), c) / c becomes HardSigmoid(x)."""

import re

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

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
EDGES = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.0, -3.0, 1e-40, -2.999, 1e30, -1e30], np.float32)


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


@pytest.mark.parametrize("nodes", list(SPELLINGS)[:5])
def test_numbers_at_the_edges(nodes: str) -> None:
    check_rewrites(PASS, model(nodes, "main (float[N] x) => (float[N] y)"), inputs={"x": EDGES})


def test_bounds_that_are_attributes() -> None:
    nodes = "a = Add (x, three) c = Clip <min = 0.0, max = 6.0> (a) y = Div (c, six)"
    assert parameters(check_rewrites(PASS, model(nodes), opset=10)) == pytest.approx((1 / 6, 0.5), rel=1e-6)


def test_what_scales_a_clip_to_one_stays() -> None:
    nodes = "a = Add (x, half) c = Clip (a, zero, one) y = Mul (c, six)"
    check_rewrites(PASS, model(nodes), ops={"HardSigmoid": 1, "Mul": 1, "Add": 0, "Clip": 0})


def test_a_shifted_value_that_is_needed_is_x() -> None:
    nodes = "t = Mul (x, six) a = Add (t, half) y = Clip (a, zero, one) z = Neg (t)"
    head = "main (float[8] x) => (float[8] y, float[8] z)"
    check_rewrites(PASS, model(nodes, head), ops={"HardSigmoid": 1, "Mul": 1, "Add": 0, "Clip": 0})


def test_what_is_only_clamped_and_scaled() -> None:
    """A shift that other nodes need, that would round x, or that a convolution has taken."""
    rest = "c = Clip (a, zero, six) y = Div (c, six)"
    head = "main (float[8] x) => (float[8] y, float[8] z)"
    for nodes, start in (
        (f"a = Add (x, three) {rest} z = Neg (a)", head),
        (f"a = Add (x, large) {rest}", HEAD),
        (f"a = Tanh (x) {rest}", HEAD),
    ):
        check_rewrites(PASS, model(nodes, start), ops={"HardSigmoid": 1, "Clip": 0, "Div": 0})


REST = "c = Clip (a, zero, six) y = Div (c, six)"
TWO = "main (float[8] x) => (float[8] y, float[8] z)"
KEPT = {
    "nothing above": ("nothing scales or shifts what is clamped", model("y = Clip (x, zero, one)")),
    "another bound": ("the upper bound is not 1", model("a = Add (x, three) y = Clip (a, zero, six)")),
    "another quotient": (
        "the upper bound is not 1",
        model("a = Add (x, three) c = Clip (a, zero, six) y = Div (c, three)"),
    ),
    "the clamped value divides": (
        "the upper bound is not 1",
        model("a = Add (x, three) c = Clip (a, zero, six) y = Div (six, c)"),
    ),
    "the clamped value is needed": ("the upper bound is not 1", model(f"a = Add (x, three) {REST} z = Neg (c)", TWO)),
    "another lower bound": ("the bounds are not 0", model("a = Add (x, three) y = Clip (a, half, one)")),
    "no upper bound": ("the bounds are not 0", model("a = Add (x, three) y = Clip (a, zero)")),
    "double precision": (
        "the kernels are for single precision",
        model(f"a = Add (x, three) {REST}").replace("float", "double"),
    ),
    "integers": (
        "it is no float",
        model(f"a = Add (x, three) {REST}").replace("float", "int32").replace(".0", ""),
    ),
}


test_keeps = keeps(PASS, KEPT)
