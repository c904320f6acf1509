"""Slices that tile an axis are a Split; a Gather by a scalar costs a Squeeze."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "gather_slice_to_split_fusion"
LONG = 2**63 - 1
HALVES = f"""main (float[N,6] x) => (float[N,A] y, float[N,B] z)
    <int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] long = {{{LONG}}}, int64[1] one = {{1}}> {{
    a = Slice (x, zero, two, one) b = Slice (x, two, long, one) y = Neg (a) z = Abs (b) }}"""


def test_slices() -> None:
    model = check_rewrites(PASS, HALVES, ops={"Slice": 0, "Split": 1})
    assert next(n for n in model.graph if n.op_type == "Split").inputs[1].const_value.numpy().tolist() == [2, 4]


def test_their_order_in_the_graph_does_not_matter() -> None:
    text = HALVES.replace(
        "a = Slice (x, zero, two, one) b = Slice (x, two, long, one)",
        "b = Slice (x, two, long, one) a = Slice (x, zero, two, one)",
    )
    check_rewrites(PASS, text, ops={"Slice": 0, "Split": 1})
    check_rewrites(
        PASS, text.replace("z = Abs (b)", "").replace("a = Slice", "z = Abs (b) a = Slice"), ops={"Split": 1}
    )


@pytest.mark.parametrize("opset", [9, 11, 13])
def test_old_opsets(opset: int) -> None:
    if opset < 10:
        text = """main (float[N,6] x) => (float[N,2] y, float[N,4] z) {
            a = Slice <axes = [1], starts = [0], ends = [2]> (x) b = Slice <axes = [1], starts = [-4], ends = [9]> (x)
            y = Neg (a) z = Abs (b) }"""
    else:
        text = HALVES
    check_rewrites(PASS, text, ops={"Slice": 0, "Split": 1}, opset=opset)


def test_other_users_stay() -> None:
    text = (
        HALVES.replace("z)", "z, float[N,6] w)", 1)
        .replace("B] z", "B] z, float[N,6] w")
        .replace("z, float[N,6] w)", "z)", 1)
    )
    check_rewrites(PASS, text.replace("a = Slice", "w = Exp (x) a = Slice"), ops={"Slice": 0, "Split": 1, "Exp": 1})


def test_gathers_of_one_element() -> None:
    check_rewrites(
        PASS,
        """main (float[3,N] x) => (float[1,N] a, float[1,N] b, float[1,N] c)
            <int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {-1}> {
            a = Gather (x, zero) b = Gather (x, one) c = Gather (x, last) }""",
        ops={"Gather": 0, "Split": 1},
    )


def test_a_scalar_gather_beside_slices() -> None:
    check_rewrites(
        PASS,
        f"""main (float[4,N] x) => (float[N] a, float[1,N] b, float[2,N] c)
            <int64 zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] long = {{{LONG}}}> {{
            a = Gather (x, zero) b = Slice (x, one, two) c = Slice (x, two, long) }}""",
        ops={"Gather": 0, "Slice": 0, "Split": 1, "Squeeze": 1},
    )


def test_keeps_gathers_by_scalars() -> None:
    """A Split and three Squeezes would be one node more."""
    check_keeps(
        PASS,
        """main (float[3,N] x) => (float[N] a, float[N] b, float[N] c) <int64 zero = {0}, int64 one = {1}, int64 two = {2}> {
            a = Gather (x, zero) b = Gather (x, one) c = Gather (x, two) }""",  # noqa: E501
        "no fewer nodes",
    )


@pytest.mark.parametrize(
    ("because", "text"),
    [
        ("no node takes the next part", HALVES.replace("(x, two, long", "(x, one, long")),
        ("no node takes the next part", HALVES.replace("(x, two, long", "(x, two, two")),
        ("a bound is computed", HALVES.replace("[N,6]", "[N,M]")),
        ("not the first part", HALVES.replace("(x, zero, two", "(x, one, two")),
        ("no node takes the next part", HALVES.replace("(x, two, long, one)", "(x, two, long, zero)")),
        ("shape arithmetic", f"main (float[P,Q,R,S] x) => (int64[2] y, int64[2] z) <int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] long = {{{LONG}}}> {{ s = Shape (x) a = Slice (s, zero, two) b = Slice (s, two, long) y = Neg (a) z = Abs (b) }}"),  # noqa: E501
    ],
)  # fmt: skip
def test_keeps(because: str, text: str) -> None:
    check_keeps(PASS, text.replace("[N,A]", "[P,A]").replace("[N,B]", "[Q,B]"), because)


def test_keeps_slices_of_other_graphs() -> None:
    check_keeps(
        PASS,
        """main (bool c, float[6] x) => (float[A] y) <int64[1] zero = {0}, int64[1] three = {3}, int64[1] six = {6}> {
            y = If (c) <then_branch = p () => (o) { o = Slice (x, zero, three) },
                        else_branch = q () => (r) { r = Slice (x, three, six) }> }""",
        "no node takes the next part",
    )


SLICED = HALVES.replace("int64[1] one = {1}", "int64[1] one = {1}, int64[1] none = {0}")


def test_slices_of_all_parts_can_take_both() -> None:
    text = SLICED.replace("y = Neg (a) z = Abs (b)", "y = Slice (a, one, long, none) z = Slice (b, one, long, none)")
    check_keeps(PASS, text, because="Slices of the parts can take more away")
    check_rewrites("slice_merging", text, ops={"Slice": 2})


@pytest.mark.parametrize(
    "end",
    [
        "y = Slice (a, one, long, none) z = Abs (b)",
        "y = Slice (a, one, long, none) c = Slice (b, one, long, none) d = Neg (b) e = Neg (c) z = Abs (d)",
    ],
)
def test_slices_of_some_parts_do_not_count_for_more(end: str) -> None:
    check_rewrites(PASS, SLICED.replace("y = Neg (a) z = Abs (b)", end), ops={"Split": 1})


def test_a_part_that_bounds_a_slice_is_not_sliced() -> None:
    text = f"""main (float[N] w, int64[2] x) => (float[M] y)
        <int64[1] zero = {{0}}, int64[1] long = {{{LONG}}}, int64[1] one = {{1}}> {{
        a = Slice (x, zero, one, zero) b = Slice (x, one, long, zero)
        v = Slice (w, a, long) y = Slice (v, b, long) }}"""
    check_rewrites(PASS, text, ops={"Split": 1}, inputs={"w": np.ones(9, np.float32), "x": np.array([1, 2])})
