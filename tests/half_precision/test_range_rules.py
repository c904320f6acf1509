"""What is known by rule, before any run: large constants, masks, epsilons, positions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.graph import scope
from ortopt.half_precision.formats import BFLOAT16, FLOAT16
from tests.half_precision.converting import check_numbers, converted, dtypes, inner_casts, run

EYE = "float[4,4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}"
X = "main (float[2,4] x) => (float[2,4] y)"


def test_a_weight_beyond_the_range_keeps_its_node_in_float32() -> None:
    text = f"{X} <{EYE}, float[4] b = {{1, 2, 70000, 4}}> {{ m = MatMul (x, w) a = Add (m, b) y = MatMul (a, w) }}"
    result = converted(text)
    assert dtypes(result, "Add") == ["float"]
    assert dtypes(result, "MatMul") == ["float16", "float16"]


def test_the_largest_number_of_the_range_fits() -> None:
    text = f"{X} <{EYE}, float[4] b = {{1, 2, 65504, 4}}> {{ m = MatMul (x, w) a = Add (m, b) y = MatMul (a, w) }}"
    assert dtypes(converted(text), "Add") == ["float16"]


def test_a_large_number_that_a_loop_begins_with_keeps_the_loop_in_float32() -> None:
    text = """main (int64 n, bool c, float[1] x) => (float[1] y) <float[1] first = {1000000}> {
        y = Loop (n, c, first) <body = one (int64 i, bool go, float[1] h) => (bool go2, float[1] k) {
            go2 = Identity (go) k = Min (h, x) }> }"""
    assert dtypes(converted(text, interface_too=True), "Min") == ["float"]


@pytest.mark.parametrize("op", ["Add (m, e)", "Sub (m, e)", "Max (m, e)", "Clip (m, e)", "Div (m, e)"])
@pytest.mark.parametrize(("epsilon", "dtype"), [(1e-12, "float"), (1e-5, "float"), (1e-3, "float16")])
def test_an_epsilon_does_not_vanish(op: str, epsilon: float, dtype: str) -> None:
    text = f"{X} <{EYE}, float e = {{{epsilon}}}> {{ m = MatMul (x, w) a = {op} y = MatMul (a, w) }}"
    assert dtypes(converted(text), op.partition(" ")[0]) == [dtype]


def test_a_scale_of_few_digits_is_good_enough_and_one_of_none_is_not() -> None:
    text = f"{X} <{EYE}, float e = {{SCALE}}> {{ m = MatMul (x, w) a = Mul (m, e) y = MatMul (a, w) }}"
    assert dtypes(converted(text.replace("SCALE", "1e-6")), "Mul") == ["float16"]
    assert dtypes(converted(text.replace("SCALE", "1e-7")), "Mul") == ["float"]


def test_an_epsilon_of_bfloat16_has_all_of_its_range() -> None:
    text = f"{X} <{EYE}, float e = {{1e-12}}> {{ m = MatMul (x, w) a = Add (m, e) y = MatMul (a, w) }}"
    assert dtypes(converted(text, form=BFLOAT16), "Add") == ["bfloat16"]


def test_a_normalization_that_is_spelled_out_stays_in_float32() -> None:
    text = f"""{X} <{EYE}, float two = {{2}}, float e = {{1e-5}}> {{
        m = MatMul (x, w) u = ReduceMean <axes = [1]> (m) d = Sub (m, u) p = Pow (d, two)
        v = ReduceMean <axes = [1]> (p) a = Add (v, e) s = Sqrt (a) n = Div (d, s) y = MatMul (n, w) }}"""
    result = converted(text)
    for op in ("Pow", "Add", "Sqrt"):
        assert dtypes(result, op) == ["float"]
    assert dtypes(result, "ReduceMean")[1] == "float"
    check_numbers(text, result)


def test_large_numbers_do_not_overflow_in_a_normalization() -> None:
    text = f"""{X} <{EYE}, float[4] c = {{-1000, -1000, 1000, 1000}}, float two = {{2}}> {{
        m = MatMul (x, w) d = Add (m, c) p = Pow (d, two)
        v = ReduceMean <axes = [1]> (p) s = Sqrt (v) n = Div (d, s) y = MatMul (n, w) }}"""
    check_numbers(text, converted(text))


MASKS = {
    "Where": "c = Cast <to = 9> (i) s = Where (c, m, low)",
    "Add": "f = Cast <to = 1> (i) o = Sub (one, f) p = Mul (o, low) s = Add (m, p)",
    "Expand": "c = Cast <to = 9> (i) h = Shape (m) e = Expand (low, h) s = Where (c, m, e)",
    "ConstantOfShape": """c = Cast <to = 9> (i) h = Shape (m) e = ConstantOfShape <value = float[1] {-3.4e38}> (h)
        s = Where (c, m, e)""",
    "Max": "c = Cast <to = 9> (i) q = Where (c, m, low) s = Max (q, low)",
    "Clip": "s = Clip (m, low)",
}


@pytest.mark.parametrize("least", ["-3.4028235e38", "-1e30", "-1e9"])
@pytest.mark.parametrize("form", MASKS)
def test_a_mask_stays_finite(form: str, least: str) -> None:
    """Where all of a row is masked, Softmax gives equal shares: not NaN."""
    constants = f"{EYE}, float low = {{{least}}}, float one = {{1}}"
    text = f"""main (float[2,4] x, int64[2,4] i) => (float[2,4] y) <{constants}> {{
        m = MatMul (x, w) {MASKS[form]} a = Softmax (s) y = MatMul (a, w) }}"""
    result = converted(text)
    assert dtypes(result, "Softmax") == ["float16"]
    numbers = {
        value.name: value.const_value.numpy()
        for graph in scope.graphs(result)
        for value in graph.initializers.values()
        if value.dtype == FLOAT16.dtype and value.const_value is not None
    }
    assert all(np.isfinite(array).all() for array in numbers.values())
    feeds = {"x": np.ones((2, 4), np.float32), "i": np.array([[1, 0, 1, 1], [0, 0, 0, 0]])}
    (y,) = run(result, feeds)
    assert np.isfinite(y).all()
    if form not in {"Clip", "Max"}:
        np.testing.assert_allclose(y[1], 0.25, rtol=1e-2)
        assert y[0, 1] == 0


def test_a_mask_of_minus_infinity_is_one() -> None:
    text = f"""main (float[2,4] x, bool[2,4] c) => (float[2,4] y) <{EYE}> {{
        low = Constant <value_float = -inf> () m = MatMul (x, w) s = Where (c, m, low)
        a = Softmax (s) y = MatMul (a, w) }}""".replace("value_float = -inf", "value = float[1] {-1e39}")
    text = text.replace("-1e39", "-3.4028235e38")
    assert dtypes(converted(text), "Where") == ["float16"]


def test_a_mask_that_is_read_in_float32_only_is_as_it_was() -> None:
    text = f"{X} <{EYE}, float[4] low = {{0, -1e30, 0, -1e30}}> {{ e = Exp (x) a = Add (e, low) y = Sin (a) }}"
    result = converted(text)
    assert float(result.graph.initializers["low"].const_value.numpy().min()) == np.float32(-1e30)


ROTARY = """main (int64[1,4] p, float[1,4,4] x) => (float[1,4,4] y) <float[1,1,4] f = {1, 0.1, 0.01, 0.001},
        int64[1] a = {2}, float[4,4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}> {
    c = Cast <to = 1> (p) u = Unsqueeze (c, a) ANGLES s = Sin (g) m = MatMul (x, w) y = Mul (m, s) }"""


@pytest.mark.parametrize(
    "angles", ["g = Mul (u, f)", "g = MatMul (u, f)", "h = Mul (u, f) g = Concat <axis = 2> (h, h)"]
)
def test_angles_of_positions_are_computed_in_float32(angles: str) -> None:
    text = ROTARY.replace("ANGLES", angles)
    if "Concat" in angles:
        text = text.replace("float[1,1,4] f = {1, 0.1, 0.01, 0.001}", "float[1,1,2] f = {1, 0.1}")
    result = converted(text)
    assert dtypes(result, "Sin") == ["float"]
    first = angles.partition("= ")[2].partition(" ")[0]
    assert dtypes(result, first)[0] == "float"
    positions = {"p": np.array([[0, 100, 4001, 100_003]]), "x": np.ones((1, 4, 4), np.float32)}
    expected, got = run(converted(text, keep=("*",)), positions), run(result, positions)
    np.testing.assert_allclose(got[0], expected[0], atol=2e-3)


def test_a_mask_of_integers_is_cast_to_16_bits_at_once() -> None:
    text = f"""main (int64[2,4] i, float[2,4] x) => (float[2,4] y) <{EYE}> {{
        f = Cast <to = 1> (i) m = MatMul (x, w) a = Mul (m, f) y = MatMul (a, w) }}"""
    result = converted(text)
    assert next(node.attributes["to"].as_int() for node in result.graph if node.op_type == "Cast") in {1, 10}
    assert dtypes(result, "Mul") == ["float16"]
    assert inner_casts(result) == ["float16", "float"]


def test_pixels_are_no_positions() -> None:
    text = f"""main (uint8[2,4] i) => (float[2,4] y) <{EYE}, float d = {{255}}> {{
        f = Cast <to = 1> (i) s = Div (f, d) y = MatMul (s, w) }}"""
    assert dtypes(converted(text), "Div") == ["float16"]


def test_indices_of_what_is_rounded_are_no_reason() -> None:
    text = f"main (float[2,4] x) => (int64[2,1] y) <{EYE}> {{ m = MatMul (x, w) y = ArgMax <axis = 1> (m) }}"
    result = converted(text)
    assert [value.dtype for value in result.graph.outputs] == [ir.DataType.INT64]
    assert inner_casts(result) == ["float16"]


def test_sums_of_integers_are_scaled_in_float32() -> None:
    text = f"""main (uint8[2,4] a, uint8[4,4] b) => (float[2,4] y) <{EYE}, float s = {{0.001}}> {{
        i = MatMulInteger (a, b) f = Cast <to = 1> (i) m = Mul (f, s) y = MatMul (m, w) }}"""
    result = converted(text)
    assert dtypes(result, "Mul") == ["float"]
    assert dtypes(result, "MatMul") == ["float16"]
    check_numbers(text, result)


@pytest.mark.parametrize(
    ("more", "dtype"),
    [
        ("b = Greater (s, c)", "float16"),
        ("b = Less (c, s)", "float16"),
        ("q = Greater (s, c) r = Equal (s, c) b = And (q, r)", "float16"),
        ("b = Greater (s, s)", "float"),
        ("b = Greater (s, far)", "float"),
        ("b = Greater (s, c) z = Mul (s, c)", "float"),
    ],
)
def test_a_sum_that_is_only_compared_may_be_infinite(more: str, dtype: str) -> None:
    text = f"""main (float[2,4] x) => (float[2,4] y, bool b) <{EYE}, float c = {{3}}, float far = {{60000}}> {{
        m = MatMul (x, w) s = ReduceSum <keepdims = 0> (m) {more} y = MatMul (m, w) }}"""
    if "z =" in more:
        text = text.replace("bool b)", "bool b, float z)")
    result = converted(text)
    assert dtypes(result, "ReduceSum") == [dtype]
    for scale in (1e3, 6e4, -6e4, 0.0):
        feeds = {"x": np.full((2, 4), scale, np.float32)}
        assert run(result, feeds)[1] == run(converted(text, keep=("*",)), feeds)[1]


INTEGER_MASK = """main (int64[2,4] i, float[2,4] x) => (float[2,4] y MORE) <
        float[4,4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}, float one = {1}, float low = {-3.4028235e38},
        float half = {0.5}, int64[2] big = {2, 4}> {
    f = Cast <to = 1> (i) m = MatMul (x, w) CHAIN z = Softmax (s) y = MatMul (z, w) }"""

MASK_CHAINS = {
    "scaled": "o = Sub (one, f) p = Mul (o, low) s = Add (m, p)",
    "filled": "o = Sub (one, f) b = Cast <to = 9> (o) p = Where (b, low, o) s = Add (m, p)",
    "expanded": "o = Sub (one, f) n = Neg (o) e = Expand (n, big) p = Mul (e, low) q = Neg (p) s = Add (m, q)",
    "compared": "o = Sub (one, f) p = Mul (o, low) b = Equal (p, low) s = Where (b, p, m)",
    "counted": "s = Div (m, f)",
}


@pytest.mark.parametrize("chain", MASK_CHAINS.values(), ids=MASK_CHAINS)
def test_masks_of_integers_are_made_in_16_bits(chain: str) -> None:
    text = INTEGER_MASK.replace("CHAIN", chain).replace("MORE", "")
    result = converted(text)
    assert inner_casts(result) == ["float16", "float"]  # of x, and of y
    for mask in ([[1, 0, 1, 1], [0, 0, 0, 0]], [[1, 1, 1, 1], [3, 1, 1, 1]]):
        feeds = {"x": np.ones((2, 4), np.float32), "i": np.array(mask)}
        expected, got = run(converted(text, keep=("*",)), feeds)[0], run(result, feeds)[0]
        plain = np.isfinite(expected).all(axis=1) & (np.array(mask) <= 1).all(axis=1)
        np.testing.assert_allclose(got[plain], expected[plain], atol=2e-3)


@pytest.mark.parametrize(
    ("chain", "more"),
    [
        ("o = Mul (f, half) s = Add (m, o)", ""),  # 65,505 is infinite, half of it is not
        ("o = Sub (f, f) s = Add (m, o)", ""),  # differences of what was rounded
        ("o = Sub (f, low) s = Add (m, o)", ""),
        ("o = Sub (one, f) a = Sin (o) s = Add (m, a)", ""),
        ("o = Sub (one, f) b = Less (o, half) s = Where (b, o, m)", ""),
        ("o = Sub (one, f) j = Cast <to = 7> (o) s = Add (m, o)", ", int64[2,4] j"),
        ("o = Sub (one, f) s = Add (m, o)", ", float[2,4] o"),
        ("o = Sub (one, f) a = Exp (m) s = Mul (a, o)", ""),
    ],
)
def test_positions_whose_precision_counts_stay_in_float32(chain: str, more: str) -> None:
    result = converted(INTEGER_MASK.replace("CHAIN", chain).replace("MORE", more))
    op = chain.split()[2]
    assert dtypes(result, op)[0] == "float"


@pytest.mark.parametrize(("square", "dtype"), [("Mul (r, r)", "float16"), ("Pow (r, two)", "float16")])
def test_squares_for_matrix_products_are_of_16_bits(square: str, dtype: str) -> None:
    text = f"""main (float[4,4] x) => (float[4,4] y) <{EYE}, float two = {{2}}> {{
        m = MatMul (x, w) r = Relu (m) s = {square} t = Transpose (s) y = MatMul (t, w) }}"""
    result = converted(text)
    assert dtypes(result, square.split(maxsplit=1)[0]) == [dtype]
    assert inner_casts(result) == ["float16", "float"]
    check_numbers(text, result)


@pytest.mark.parametrize(
    "reader", ["y = Sqrt (s)", "t = ReduceMean <axes = [0]> (s) y = MatMul (t, w)", "y = Identity (s)"]
)
def test_squares_that_others_read_stay_in_float32(reader: str) -> None:
    text = f"main (float[4,4] x) => (float[N,4] y) <{EYE}> {{ m = MatMul (x, w) s = Mul (m, m) {reader} }}"
    assert dtypes(converted(text), "Mul") == ["float"]
