"""Integer tensors as linear functions of the place of their elements, beside what they are."""

import numpy as np
import pytest

from ortopt.analysis.coordinates import counts_up, difference, is_never_negative, is_never_positive, linear
from ortopt.analysis.shapes import infer_model
from ortopt.testing import parse

CASES = {
    "r = Range (zero, n, one)": ("0", ["1"]),
    "r0 = Range (zero, n, one) r = Unsqueeze (r0, places)": ("0", ["0", "1", "0"]),
    "r0 = Range (two, n, two) r = Identity (r0)": ("2", ["2"]),
    "r0 = Range (zero, n, one) r1 = Unsqueeze (r0, places) r2 = Unsqueeze (r0, last) m = Mul (r2, n) r = Add (m, r1)": ("0", ["0", "1", "0"]),  # noqa: E501
    "r0 = Range (zero, n, one) c = Add (r0, two) r = Sub (one, c)": ("-1", ["-1"]),
    "r = Add (table, two)": ("5", ["10", "1"]),
}  # fmt: skip


def model(body: str):
    built = parse(
        f"""main (float[N] x) => (int64[A] o) <int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}, int64[1] first = {{0}},
            int64[2] places = {{0, 2}}, int64[2] last = {{1, 2}}, int64[2,3] table = {{3, 4, 5, 13, 14, 15}}> {{
            s = Shape (x) n = Squeeze (s, first) {body} o = Reshape (r, s) }}"""  # noqa: E501
    )
    infer_model(built)
    return next(value for node in built.graph for value in node.outputs if value.name == "r")


@pytest.mark.parametrize("body", [case for case in CASES if "Mul" not in case])
def test_linear(body: str) -> None:
    found = linear(model(body))
    assert found is not None
    offset, strides = CASES[body]
    assert str(found.offset) == offset
    assert [str(stride) for stride in found.strides] == strides


@pytest.mark.parametrize(
    "body",
    [
        "r0 = Range (zero, n, one) r = Mul (r0, r0)",
        "r0 = Range (zero, n, n) r = Identity (r0)",
        "r = NonZero (x)",
        "r0 = Range (zero, n, one) r = Gather (r0, table)",
    ],
)
def test_what_is_not_linear(body: str) -> None:
    found = linear(model(body))
    assert found is None or body.endswith("r = Identity (r0)")


def test_a_table_that_is_not_linear() -> None:
    built = parse(
        "main () => (int64[3] y) <int64[3] t = {0, 1, 3}, int64[0] e = {}> { y = Identity (t) z = Identity (e) }"
    )
    assert linear(built.graph.initializers["t"]) is None


def test_questions() -> None:
    up, down = linear(model("r = Range (zero, n, one)")), linear(model("r0 = Range (zero, n, one) r = Sub (zero, r0)"))
    assert up is not None
    assert down is not None
    assert is_never_negative(up)
    assert not is_never_positive(up)
    assert is_never_positive(down)
    assert counts_up(up, up.dims[0])
    assert not counts_up(down, up.dims[0])
    gap = difference(up, down, up.dims)
    assert gap is not None
    assert [str(stride) for stride in gap.strides] == ["2"]


def test_rows_and_columns() -> None:
    table = parse(
        "main () => (int64[2,3] y) <int64[2,3] t = {0, 1, 2, 3, 4, 5}> { y = Identity (t) }"
    ).graph.initializers["t"]
    found = linear(table)
    assert found is not None
    assert counts_up(found, 6)
    assert not counts_up(found, 7)
    assert found.strides == (3, 1)
    assert np.array_equal(table.const_value.numpy(), np.arange(6).reshape(2, 3))
