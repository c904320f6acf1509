"""x · min(max(x + 3, 0), 6) / 6 becomes HardSwish(x)."""

import re

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import check_keeps, check_rewrites, parse, run
from tests.passes.tables import keeps

PASS = "hard_swish_fusion"
HEAD = "main (float[N,3,8,8] x) => (float[N,3,8,8] y)"
NUMBERS = {
    "three": "float three = {3.0}",
    "zero": "float zero = {0.0}",
    "six": "float six = {6.0}",
    "five": "float five = {5.0}",
    "sixth": "float sixth = {0.16666667}",
    "k": "float k = {1.5}",
    "large": "float large = {1000.0}",
    "each": "float[3,1,1] each = {1.0, 2.0, 3.0}",
}
GATE = "a = Add (x, three) c = Clip (a, zero, six)"


def model(nodes: str, head: str = HEAD, **numbers: str) -> str:
    """A graph of some nodes, with the constants that they use."""
    used = [numbers.get(name, text) for name, text in NUMBERS.items() if re.search(rf"\b{name}\b", nodes)]
    return f"{head} {'<' + ', '.join(used) + '>' if used else ''} {{ {nodes} }}"


@pytest.mark.parametrize("shift", ["Add (x, three)", "Add (three, x)"])
@pytest.mark.parametrize(
    "product",
    [
        "m = Mul (x, c) y = Div (m, six)",
        "m = Mul (c, x) y = Mul (m, sixth)",
        "m = Div (c, six) y = Mul (x, m)",
        "m = Mul (sixth, c) y = Mul (m, x)",
        "s = Mul (x, sixth) y = Mul (s, c)",
        "s = Div (x, six) y = Mul (c, s)",
    ],
)
def test_fuses(shift: str, product: str) -> None:
    check_rewrites(PASS, model(f"a = {shift} c = Clip (a, zero, six) {product}"), "y = HardSwish (x)")


def test_a_difference() -> None:
    nodes = "a = Sub (x, three) c = Clip (a, zero, six) m = Mul (x, c) y = Div (m, six)"
    check_rewrites(PASS, model(nodes, three="float three = {-3.0}"), "y = HardSwish (x)")


BEFORE_THE_OP = {"HardSigmoid": 1, "Mul": 1, "Clip": 0, "Add": 0, "Div": 0}


def test_bounds_that_are_attributes() -> None:
    nodes = "a = Add (x, three) c = Clip <min = 0.0, max = 6.0> (a) m = Mul (x, c) y = Div (m, six)"
    check_rewrites(PASS, model(nodes), ops=BEFORE_THE_OP, opset=10)


def test_before_there_is_an_op() -> None:
    result = check_rewrites(PASS, model(f"{GATE} m = Mul (x, c) y = Div (m, six)"), ops=BEFORE_THE_OP, opset=13)
    (gate,) = (node for node in result.graph if node.op_type == "HardSigmoid")
    assert gate.attributes.get_float("alpha") == pytest.approx(1 / 6, rel=1e-7)
    assert gate.attributes.get_float("beta") == 0.5


def test_from_a_hard_sigmoid() -> None:
    text = f"{HEAD} {{ h = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul (h, x) }}"
    check_rewrites(PASS, text, "y = HardSwish (x)")
    check_keeps(PASS, text, "there is no op for it", opset=13)


ONE_FACTOR = {"HardSwish": 1, "Mul": 1, "Clip": 0, "Add": 0, "Div": 0}


@pytest.mark.parametrize("end", ["y = Mul (m, k)", "n = Mul (m, k) y = Div (n, six)"])
def test_another_factor_stays(end: str) -> None:
    check_rewrites(PASS, model(f"{GATE} m = Mul (x, c) {end}"), ops=ONE_FACTOR)


def test_a_factor_for_each_channel_stays() -> None:
    check_rewrites(PASS, model(f"{GATE} m = Mul (x, c) y = Mul (m, each)"), ops=ONE_FACTOR | {"Mul": 2})


def test_another_slope() -> None:
    nodes = "a = Add (x, three) c = Clip (a, zero, five) m = Mul (x, c) y = Div (m, five)"
    check_rewrites(PASS, model(nodes, three="float three = {2.5}"), ops=BEFORE_THE_OP | {"HardSwish": 0})


def test_half_precision() -> None:
    bits = {"three": 0x4200, "zero": 0, "six": 0x4600}  # as the text format wants them
    text = model(
        f"{GATE} m = Mul (x, c) y = Div (m, six)",
        HEAD.replace("float", "float16"),
        **{name: f"float16 {name} = {{{number}}}" for name, number in bits.items()},
    )
    check_rewrites(PASS, text, "y = HardSwish (x)")


def test_numbers_at_the_edges() -> None:
    """NaN, infinities, both ends of the slope, a zero with its sign."""
    before = parse(model(f"{GATE} m = Mul (x, c) y = Div (m, six)", "main (float[N] x) => (float[N] y)"))
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.0, -3.0, 1e-40, -2.999, 1e30, -1e30], np.float32)
    after, numbers = outputs(before, x)
    assert [node.op_type for node in after.graph] == ["HardSwish"]
    np.testing.assert_allclose(numbers[1], numbers[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.signbit(numbers[1][3:]), np.signbit(numbers[0][3:]))


def outputs(model: ir.Model, x: np.ndarray) -> tuple[ir.Model, list[np.ndarray]]:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    before = to_bytes(model)
    run(PASS, model)
    sessions = [
        onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        for content in (before, to_bytes(model))
    ]
    return model, [session.run(None, {"x": x})[0] for session in sessions]


REST = "m = Mul (x, c) y = Div (m, six)"
TWO = "main (float[8] x) => (float[8] y, float[8] z)"
NOT_X = "it is not multiplied by what it is computed from"
KEPT = {
    "a product with something else": (NOT_X, model(f"n = Neg (x) {GATE} m = Mul (n, c) y = Div (m, six)")),
    "a sum": (NOT_X, model(f"{GATE} y = Add (x, c)")),
    "nothing below": (NOT_X, model("a = Add (x, three) y = Clip (a, zero, six)")),
    "another lower bound": ("the bounds are not 0", model(f"a = Add (x, three) c = Clip (a, three, six) {REST}")),
    "no upper bound": ("the bounds are not 0", model(f"a = Add (x, three) c = Clip (a, zero) {REST}")),
    "bounds out of order": (
        "the bounds are out of order",
        model(f"a = Add (x, three) c = Clip (a, six, zero) {REST}"),
    ),
    "a computed bound": (
        "not a constant",
        model(f"a = Add (x, three) c = Clip (a, zero, s) {REST}", HEAD.replace(" x)", " x, float s)")),
    ),
    "a bound that can be overridden": (
        "not a constant",
        model(f"{GATE} {REST}", HEAD.replace(" x)", " x, float six)")),
    ),
    "the clamped value is needed": (NOT_X, model(f"{GATE} {REST} z = Neg (c)", TWO)),
    "the shifted x is needed": (NOT_X, model(f"{GATE} {REST} z = Neg (a)", TWO)),
    "a shift for each channel": (NOT_X, model(f"a = Add (x, each) c = Clip (a, zero, six) {REST}")),
    "the gate divides": (NOT_X, model(f"{GATE} d = Div (six, c) y = Mul (x, d)")),
    "a shift that rounds x": (NOT_X, model(f"a = Add (x, large) c = Clip (a, zero, six) {REST}")),
    "integers": (
        "it is no float",
        """main (int32[8] x) => (int32[8] y) <int32 three = {3}, int32 zero = {0}, int32 six = {6}>
        { a = Add (x, three) c = Clip (a, zero, six) m = Mul (x, c) y = Div (m, six) }""",
    ),
    "double precision": (
        "the kernels are for single precision",
        model(f"{GATE} {REST}").replace("float", "double"),
    ),
    "constants that raise the rank": (
        NOT_X,
        model(f"{GATE} {REST}", "main (float[8] x) => (float[1,8] y)", three="float[1,1] three = {3.0}"),
    ),
}


test_keeps = keeps(PASS, KEPT)
