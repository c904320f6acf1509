"""Blocks joined row by row are a SpaceToDepth; in another order, a Conv's weights or a Gather follow them."""

import numpy as np
import onnx.reference
import pytest

from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse
from tests.passes.tables import keeps

PASS = "space_to_depth_fusion"
LONG = 2**63 - 1
FOCUS = f"""main (float[N,C,H,6] x) => (float[A,B,D,E] y)
    <int64[2] zero = {{0, 0}}, int64[2] row = {{1, 0}}, int64[2] column = {{0, 1}}, int64[2] both = {{1, 1}},
     int64[2] long = {{{LONG}, 6}}, int64[2] axes = {{2, -1}}, int64[2] two = {{2, 2}}> {{
    a = Slice (x, zero, long, axes, two) b = Slice (x, row, long, axes, two)
    c = Slice (x, column, long, axes, two) d = Slice (x, both, long, axes, two)
    k = Concat <axis = 1> (a, c, b, d) y = Neg (k) }}""".replace("[N,C,H,6]", "[N,3,4,6]")
YOLO = FOCUS.replace("(a, c, b, d)", "(a, b, c, d)")


def weights(outputs: int, inputs: int) -> str:
    return ", ".join(str(index) for index in range(outputs * inputs))


def test_the_order_of_space_to_depth() -> None:
    check_rewrites(PASS, FOCUS, "k = SpaceToDepth <blocksize = 2> (x) y = Neg (k)")


def test_with_dimensions_that_are_not_fixed() -> None:
    check_rewrites(
        PASS,
        FOCUS.replace("[N,3,4,6]", "[N,C,H,W]").replace(", 6}", f", {LONG}}}"),
        ops={"SpaceToDepth": 1, "Slice": 0, "Concat": 0},
        numbers=False,
    )


def test_a_single_row_is_no_image_of_blocks() -> None:
    """ONNX Runtime skips what is empty; the specification does not, and there is no number to be kept."""
    text = FOCUS.replace("[N,3,4,6]", "[N,C,H,W]").replace(", 6}", f", {LONG}}}")
    evaluator = onnx.reference.ReferenceEvaluator(onnx.load_from_string(to_bytes(parse(text))))
    assert evaluator.run(None, {"x": np.ones((1, 1, 4, 2), np.float32)})[0].shape == (1, 4, 2, 1)
    with pytest.raises(ValueError, match="must match exactly"):
        evaluator.run(None, {"x": np.ones((1, 1, 1, 2), np.float32)})


def test_two_slices_for_a_block() -> None:
    text = f"""main (float[1,2,4,4] x) => (float[A,B,D,E] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] long = {{{LONG}}}, int64[1] h = {{2}}, int64[1] w = {{3}},
         int64[1] two = {{2}}> {{
        even = Slice (x, zero, long, h, two) odd = Slice (x, one, long, h, two)
        a = Slice (even, zero, long, w, two) b = Slice (odd, zero, long, w, two)
        c = Slice (even, one, long, w, two) d = Slice (odd, one, long, w, two)
        k = Concat <axis = -3> (a, ORDER, d) y = Neg (k) }}"""  # noqa: E501
    check_rewrites(PASS, text.replace("ORDER", "c, b"), ops={"SpaceToDepth": 1, "Slice": 0})
    check_rewrites(PASS, text.replace("ORDER", "b, c"), ops={"SpaceToDepth": 1, "Gather": 1, "Slice": 0})


def test_blocks_of_three() -> None:
    lines, names = [], []
    for row in range(3):
        for column in range(3):
            lines.append(
                f"s{row}{column} = Constant <value_ints = [{row}, {column}]> () p{row}{column} = Slice (x, s{row}{column}, e, a, t)"  # noqa: E501
            )
            names.append(f"p{row}{column}")
    check_rewrites(
        PASS,
        f"""main (float[1,1,6,3] x) => (float[A,B,C,D] y) <int64[2] e = {{6, 3}}, int64[2] a = {{2, 3}}, int64[2] t = {{3, 3}}> {{
            {" ".join(lines)} k = Concat <axis = 1> ({", ".join(names)}) y = Neg (k) }}""",  # noqa: E501
        ops={"SpaceToDepth": 1, "Slice": 0},
    )


def test_yolos_order_goes_into_the_weights() -> None:
    text = YOLO.replace("y = Neg (k)", "y = Conv (k, w)").replace(
        "<int64[2] zero", f"<float[2,12,1,1] w = {{{weights(2, 12)}}}, int64[2] zero"
    )
    check_rewrites(PASS, text, ops={"SpaceToDepth": 1, "Conv": 1, "Gather": 0, "Slice": 0})
    biased = text.replace("Conv (k, w)", "Conv (k, w, o)").replace("<float[2,12", "<float[2] o = {1, 2}, float[2,12")
    check_rewrites(PASS, biased, ops={"SpaceToDepth": 1, "Conv": 1, "Gather": 0})


@pytest.mark.parametrize("below", ["y = Neg (k)", "y = Conv <group = 3> (k, w)", "t = Conv (k, v) y = Conv (k, v)"])
def test_yolos_order_without_such_a_conv(below: str) -> None:
    text = YOLO.replace("y = Neg (k)", below)
    if "(k, w)" in below:
        text = text.replace("<int64[2] zero", f"<float[3,4,1,1] w = {{{weights(3, 4)}}}, int64[2] zero")
    if "(k, v)" in below:
        text = text.replace("<int64[2] zero", f"<float[2,12,1,1] v = {{{weights(2, 12)}}}, int64[2] zero").replace(
            "y)", "y, float[P,Q,R,S] t)", 1
        )
    check_rewrites(PASS, text, ops={"SpaceToDepth": 1, "Gather": 1, "Slice": 0})


test_keeps = keeps(
    PASS,
    [
        ("a block is missing", FOCUS.replace("(a, c, b, d)", "(a, c, b, b)")),
        ("no blocks", FOCUS.replace("(a, c, b, d)", "(a, c, b)")),
        ("does not join channels", FOCUS.replace("axis = 1>", "axis = 0>")),
        ("it takes no block", FOCUS.replace("two = {2, 2}", "two = {1, 2}").replace("[N,3,4,6]", "[N,3,H,6]")),
        ("it takes no block", FOCUS.replace(", 6}", ", 5}")),
        ("do not fill", FOCUS.replace("[N,3,4,6]", "[N,3,5,6]")),
        ("starts elsewhere", FOCUS.replace("zero = {0, 0}", "zero = {2, 0}")),
        ("several values", FOCUS.replace("x)", "x, float[N,3,4,6] z)", 1).replace("(x, zero", "(z, zero")),
        ("used elsewhere", YOLO.replace("y)", "y, float[P,Q,R,S] b)", 1)),
    ],
)  # fmt: skip
