"""A constant before a convolution without padding becomes a part of its bias."""

from __future__ import annotations

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "add_conv_fusion"
TEXT = """main (float[N,2,H,W] x) => (float[A,B,C,D] y)
    <float[2,1,1] c = {3, -1}, float[3,2,1,1] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}> {
    s = Add (x, c) y = Conv (s, w, b) }"""


@pytest.mark.parametrize("total", ["Add (x, c)", "Add (c, x)", "Sub (x, c)"])
@pytest.mark.parametrize("bias", [", b)", ")"])
def test_fuses(total: str, bias: str) -> None:
    text = TEXT.replace("Add (x, c)", total).replace(", b)", bias)
    if bias == ")":
        text = text.replace(", float[3] b = {1, 2, 3}", "")
    check_rewrites(PASS, text, ops={"Conv": 1})


def test_one_number_groups_and_kernels() -> None:
    check_rewrites(PASS, TEXT.replace("float[2,1,1] c = {3, -1}", "float c = {3}"), ops={"Conv": 1})
    grouped = TEXT.replace("float[3,2,1,1] w = {1, 2, 3, 4, 5, 6}", "float[4,1,1,1] w = {1, 2, 3, 4}")
    grouped = grouped.replace("float[3] b = {1, 2, 3}", "float[4] b = {1, 2, 3, 4}").replace(
        "Conv (", "Conv <group = 2> ("
    )
    check_rewrites(PASS, grouped, ops={"Conv": 1})
    wide = TEXT.replace(
        "float[3,2,1,1] w = {1, 2, 3, 4, 5, 6}", "float[3,2,2,1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}"
    )
    check_rewrites(PASS, wide, ops={"Conv": 1})


def test_several_convolutions() -> None:
    text = TEXT.replace("D] y)", "D] y, float[E,F,G,I] z)").replace("y = Conv", "z = Conv (s, w) y = Conv")
    check_rewrites(PASS, text, ops={"Conv": 2})


KEPT = {
    "a padded zero would be shifted": TEXT.replace("Conv (", "Conv <pads = [0, 1, 0, 0]> ("),
    "the sum is used elsewhere": TEXT.replace("D] y)", "D] y, float[N,2,H,W] s)"),
    "it is not one number a channel": TEXT.replace("float[2,1,1] c = {3, -1}", "float[1,2] c = {3, -1}").replace("H,W", "1,2"),  # noqa: E501
    "the bias is not a constant": TEXT.replace("W] x)", "W] x, float[3] b)").replace(", float[3] b = {1, 2, 3}", ""),
    "would not be finite": TEXT.replace("{3, -1}", "{3e38, 3e38}"),
    "no operand is a constant": TEXT.replace("W] x)", "W] x, float[2,1,1] c)").replace("float[2,1,1] c = {3, -1}, ", ""),  # noqa: E501
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)


def test_one_that_pads_keeps_it_for_all() -> None:
    text = TEXT.replace("D] y)", "D] y, float[E,F,G,I] z)")
    text = text.replace("y = Conv", "z = Conv <pads = [1, 0, 0, 0]> (s, w) y = Conv")
    check_keeps(PASS, text, "the sum is used elsewhere")
