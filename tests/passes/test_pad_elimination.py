"""Pad goes only if all its paddings are known to be 0."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "pad_elimination"


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize(
    ("opset", "constants", "operands"),
    [
        (10, "", "x"),
        (13, "<int64[4] p = {0, 0, 0, 0}>", "x, p"),
        (18, "<int64[2] p = {0, 0}, int64[1] a = {-1}>", "x, p, , a"),
    ],
)
def test_goes(mode: str, opset: int, constants: str, operands: str) -> None:
    pads = "" if constants else ", pads = [0, 0, 0, 0]"
    check_rewrites(
        PASS,
        f"""main (float[N,4] x) => (float[N,4] y) {constants} {{
            t = Pad <mode = "{mode}"{pads}> ({operands}) y = Neg (t) }}""",
        ops={"Pad": 0},
        opset=opset,
    )


KEPT = [
    ("it adds or takes something", "(float[4] x) => (float[5] y) <int64[2] p = {0, 1}> { t = Pad (x, p) y = Neg (t) }"),
    ("it adds or takes something", "(float[4] x) => (float[4] y) <int64[2] p = {-1, 1}> { t = Pad (x, p) y = Neg (t) }"),  # noqa: E501
    ("the paddings are not known", "(float[4] x, int64[2] p) => (float[M] y) { t = Pad (x, p) y = Neg (t) }"),
    ("the paddings are not known", "(float[4] x, int64[2] p = {0, 0}) => (float[M] y) { t = Pad (x, p) y = Neg (t) }"),
    ("keep its own name", "(float[4] x) => (float[4] y) <int64[2] p = {0, 0}> { y = Pad (x, p) }"),
]  # fmt: skip


test_keeps = keeps(PASS, KEPT)
