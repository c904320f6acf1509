"""A constant row before a linear layer becomes a part of its bias."""

from __future__ import annotations

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "add_matmul_fusion"
CONSTANTS = "float[2] c = {3, -1}, float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}"
LAYER = "s = Add (x, c) m = MatMul (s, w) y = Add (m, b)"


def model(nodes: str = LAYER, constants: str = CONSTANTS, x: str = "float[N,S,2]", y: str = "float[N,S,3]") -> str:
    return f"main ({x} x) => ({y} y) <{constants}> {{ {nodes} }}"


AFTER = "float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {0, 3, 6}"


@pytest.mark.parametrize("total", ["Add (x, c)", "Add (c, x)"])
@pytest.mark.parametrize("end", ["Add (m, b)", "Add (b, m)"])
@pytest.mark.parametrize("row", ["float[2] c", "float[1,1,2] c"])
def test_fuses(total: str, end: str, row: str) -> None:
    text = model(f"s = {total} m = MatMul (s, w) y = {end}", CONSTANTS.replace("float[2] c", row))
    check_rewrites(PASS, text, model("m = MatMul (x, w) y = Add (m, b)", AFTER))


def test_one_number() -> None:
    text = model(constants=CONSTANTS.replace("float[2] c = {3, -1}", "float c = {1}"))
    check_rewrites(PASS, text, ops={"Add": 1, "MatMul": 1})
    text = model(constants=CONSTANTS.replace("float[3] b = {1, 2, 3}", "float b = {1}"))
    check_rewrites(PASS, text, ops={"Add": 1, "MatMul": 1})


KEPT = {
    "is used elsewhere": model().replace("y)", "y, float[N,S,2] s)", 1),
    "it is not a constant": "main (float[N,2] x, float[2,3] w) => (float[N,3] y) <float[2] c = {3, -1}, float[3] b = {1, 2, 3}> { " + LAYER + " }",  # noqa: E501
    "the number of channels is not fixed": model(x="float[N,S,1]"),
    "it is not one number a channel (c)": model(constants=CONSTANTS.replace("float[2] c = {3, -1}", "float[2,1] c = {3, -1}"), x="float[N,2,2]", y="float[N,2,3]"),  # noqa: E501
    "it is not one number a channel (b)": model(constants=CONSTANTS.replace("float[3] b", "float[3,1] b"), x="float[N,3,2]", y="float[N,3,3]"),  # noqa: E501
    "would not be finite": model(constants=CONSTANTS.replace("3, -1", "3e38, 3e38")),
    "it would be enlarged": model(x="float[N,S,2]", constants=CONSTANTS.replace("float[2] c = {3, -1}", "float[5,1,1,2] c = {3, -1, 3, -1, 3, -1, 3, -1, 3, -1}"), y="float[5,N,S,3]"),  # noqa: E501
}  # fmt: skip


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    reason = None if because == "it would be enlarged" else because
    check_keeps(PASS, KEPT[because], reason)


@pytest.mark.parametrize("more", ["s", "m"])
def test_keeps_what_is_a_result_or_is_read_elsewhere(more: str) -> None:
    shape = {"s": "float[N,S,2]", "m": "float[N,S,3]"}[more]
    check_keeps(PASS, model().replace("y)", f"y, {shape} {more})", 1), "is used elsewhere")
    check_keeps(PASS, model(f"{LAYER} z = Neg ({more})").replace("y)", f"y, {shape} z)", 1), "is used elsewhere")
