"""Axes behind that of a softmax become one."""

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "softmax_axis_canonicalization"


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_fixed_dimensions(op: str) -> None:
    head = "main (float[2,16,8,12] x) => (float[2,16,8,12] y)"
    check_rewrites(
        PASS,
        f"{head} {{ y = {op} <axis = -3> (x) }}",
        after=f"{head} <int64[3] a = {{0, 0, 96}}, int64[4] b = {{0, 0, 8, 12}}>"
        f" {{ m = Reshape (x, a) s = {op} <axis = 1> (m) y = Reshape (s, b) }}",
    )


def test_open_dimensions() -> None:
    head = "main (float[2,16,H,W] x) => (float[2,16,H,W] y)"
    check_rewrites(
        PASS,
        f"{head} {{ y = Softmax <axis = 1> (x) }}",
        after=f"{head} <int64[3] a = {{0, 0, -1}}>"
        " { m = Reshape (x, a) s = Softmax <axis = 1> (m) b = Shape (x) y = Reshape <allowzero = 1> (s, b) }",
    )


def test_one_open_dimension_behind() -> None:
    """It is inferred: the shape is not asked for, which a second run would have found."""
    head = "main (float[2,16,H,12] x) => (float[2,16,H,12] y)"
    check_rewrites(
        PASS,
        f"{head} {{ y = Softmax <axis = 1> (x) }}",
        after=f"{head} <int64[3] a = {{0, 0, -1}}, int64[4] b = {{0, 0, -1, 12}}>"
        " { m = Reshape (x, a) s = Softmax <axis = 1> (m) y = Reshape (s, b) }",
    )


def test_an_open_batch() -> None:
    """Beside a fixed size, even an empty batch needs no -1."""
    head = "main (float[N,16,8,12] x) => (float[N,16,8,12] y)"
    check_rewrites(PASS, f"{head} {{ y = Softmax <axis = 1> (x) }}", ops={"Reshape": 2, "Shape": 0})


test_it_stays = keeps(
    PASS,
    [
        ("no several axes", "main (float[2,16,8,12] x) => (float[A,B,C,D] y) { y = Softmax <axis = 3> (x) }"),
        ("no several axes", "main (float[2,16,8,12] x) => (float[A,B,C,D] y) { y = Softmax <axis = 2> (x) }"),
        (
            "with elements 1024 or more",
            "main (float[2,4,4,4] x) => (float[A,B,C,D] y) { y = Softmax <axis = 1> (x) }",
        ),
        ("may be 0", "main (float[N,16,H,W] x) => (float[A,B,C,D] y) { y = Softmax <axis = 1> (x) }"),
        (None, "main (float[2,16,8,12] x) => (float[A,B,C,D] y) { y = Softmax <axis = 1> (x) }", {"opset": 12}),
    ],
)


def test_in_opset_13_a_reshape_copies_for_0() -> None:
    text = "main (float[2,16,H,W] x) => (float[A,B,C,D] y) { y = Softmax <axis = 1> (x) }"
    check_keeps(PASS, text, "Reshape cannot be told a dimension of 0", opset=13)


def test_other_runtimes_keep_it() -> None:
    text = "main (float[2,16,8,12] x) => (float[A,B,C,D] y) { y = Softmax <axis = 1> (x) }"
    check_keeps(PASS, text, "it serves ONNX Runtime", target="onnx")
