"""A Slice goes only if it takes all of every axis, forwards and without gaps."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "slice_elimination"
LONG = 2**63 - 1


@pytest.mark.parametrize(
    ("constants", "operands"),
    [
        (f"int64[1] s = {{0}}, int64[1] e = {{{LONG}}}, int64[1] a = {{0}}", "s, e, a"),
        (f"int64[2] s = {{0, -4}}, int64[2] e = {{{LONG}, 4}}", "s, e"),
        ("int64[1] s = {0}, int64[1] e = {9}, int64[1] a = {-1}, int64[1] p = {1}", "s, e, a, p"),
        ("int32[1] s = {-9}, int32[1] e = {4}, int32[1] a = {1}", "s, e, a"),
    ],
)
def test_goes(constants: str, operands: str) -> None:
    check_rewrites(
        PASS,
        before=f"""main (float[N,4] x) => (float[N,4] y) <{constants}> {{
            t = Slice (x, {operands}) y = Neg (t) }}""",
        after="main (float[N,4] x) => (float[N,4] y) { y = Neg (x) }",
    )


def test_attributes_of_old_opsets() -> None:
    check_rewrites(
        PASS,
        before="main (float[N,4] x) => (float[N,4] y) { t = Slice <axes=[1], starts=[0], ends=[4]> (x) y = Neg (t) }",
        after="y = Neg (x)",
        opset=9,
    )


def test_to_an_end_that_is_the_dimension() -> None:
    check_rewrites(
        PASS,
        before="""main (float[N,4] x) => (float[N,4] y) <int64[1] z = {0}> {
            n = Shape <start = 0, end = 1> (x) t = Slice (x, z, n, z) y = Neg (t) }""",
        ops={"Slice": 0},
    )


KEPT = [
    ("it moves elements", f"int64[2] s = {{0, 0}}, int64[2] e = {{{LONG}, 9}}, int64[2] p = {{1, 2}}", "s, e, , p"),
    ("it moves elements", f"int64[1] s = {{-1}}, int64[1] e = {{{-LONG}}}, int64[1] a = {{1}}, int64[1] p = {{-1}}", "s, e, a, p"),  # noqa: E501
    ("it moves elements", f"int64[1] s = {{1}}, int64[1] e = {{{LONG}}}", "s, e"),
    ("before the first element", f"int64[1] s = {{-4}}, int64[1] e = {{{LONG}}}", "s, e"),
    ("it moves elements", "int64[1] s = {0}, int64[1] e = {4}", "s, e"),
    ("it moves elements", "int64[1] s = {0}, int64[1] e = {-1}, int64[1] a = {1}", "s, e, a"),
]  # fmt: skip


@pytest.mark.parametrize(("because", "constants", "operands"), KEPT)
def test_keeps(because: str, constants: str, operands: str) -> None:
    check_keeps(
        PASS,
        f"main (float[N,4] x) => (float[A,B] y) <{constants}> {{ t = Slice (x, {operands}) y = Neg (t) }}",
        because,
    )


def test_keeps_unknown_bounds() -> None:
    check_keeps(
        PASS,
        "main (float[N,4] x, int64[1] s, int64[1] e) => (float[A,B] y) { t = Slice (x, s, e) y = Neg (t) }",
        "its starts are not known",
    )


def test_what_an_output_declares_of_itself_stays() -> None:
    """The input of the Slice is an output without a shape: it does not get that of the Slice's result."""
    model = check_rewrites(
        PASS,
        """main (float[N,4] x) => (float[] v, float[A,4] y) <int64[1] s = {0}, int64[1] e = {9}, int64[1] a = {1}> {
            v = Exp (x) t = Slice (v, s, e, a) y = Neg (t) }""",
        ops={"Slice": 0},
        numbers=False,
    )
    assert model.graph.outputs[0].shape is None or len(model.graph.outputs[0].shape) == 0
