"""Queries, keys and values are split where their axes need fewer moves."""

from __future__ import annotations

import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.tables import keeps

PASS = "split_transpose_reordering"
CONSTANTS = "int64[1] zero = {0}, int64[2] ones = {1, 1}"


def parts(perm: str = "2, 0, 3, 4, 1", squeeze: str = "zero", more: str = "", axis: int = 0) -> str:
    """Two parts of the third of five axes."""
    return f"""main (float[B,5,2,3,4] x) => (float[] y, float[] z{more and ", float[] t2"}) <{CONSTANTS}> {{
        t = Transpose <perm = [{perm}]> (x) p, q = Split <axis = {axis}> (t, ones)
        y = Squeeze (p, {squeeze}) z = Squeeze (q, {squeeze}) {more} }}"""


def after(perm: str, axis: int) -> str:
    constants = f"int64[1] axis = {{{axis}}}, int64[2] ones = {{1, 1}}"
    return f"""main (float[B,5,2,3,4] x) => (float[] y, float[] z) <{constants}> {{
        t = Transpose <perm = [{perm}]> (x) p, q = Split <axis = {axis}> (t, ones)
        z = Squeeze (q, axis) y = Squeeze (p, axis) }}"""


@pytest.mark.parametrize(
    ("perm", "order", "axis"),
    [
        ("2, 0, 3, 4, 1", "0, 2, 3, 4, 1", 1),
        ("2, 0, 1, 4, 3", "0, 1, 2, 4, 3", 2),
        ("2, 1, 3, 4, 0", "1, 2, 3, 4, 0", 1),
    ],
)
def test_a_single_axis_moves(perm: str, order: str, axis: int) -> None:
    check_rewrites(PASS, parts(perm), after(order, axis))


def test_axes_may_be_counted_from_the_end() -> None:
    text = parts(axis=-5).replace("int64[1] zero = {0}", "int64[1] zero = {-5}")
    check_rewrites(PASS, text, after("0, 2, 3, 4, 1", 1))


def test_sizes_that_are_counted() -> None:
    text = (
        parts()
        .replace("Split <axis = 0> (t, ones)", "Split <axis = 0, num_outputs = 2> (t)")
        .replace(", int64[2] ones = {1, 1}", "")
    )
    check_rewrites(PASS, text, ops={"Split": 1, "Squeeze": 2, "Transpose": 1}, opset=18)


def shaped(perm: str, sizes: str, target: str = "-1, 3, 5") -> str:
    """Two parts that become images."""
    return f"""main (float[{sizes}] x) => (float[C,D,E] y, float[F,G,H] z)
        <int64[3] s = {{{target}}}, int64[2] ones = {{1, 1}}> {{
        t = Transpose <perm = [{perm}]> (x) p, q = Split <axis = 0> (t, ones)
        y = Reshape (p, s) z = Reshape (q, s) }}"""


@pytest.mark.parametrize(
    ("perm", "sizes", "order", "axis"),
    [
        ("2, 0, 3, 4, 1", "B,5,2,4,3", "0, 2, 3, 4, 1", 1),
        ("2, 0, 4, 3, 1", "B,5,2,1,3", "0, 2, 3, 4, 1", 1),
        ("2, 0, 4, 1, 3", "B,5,2,3,1", "0, 2, 3, 4, 1", 1),
    ],
)
def test_parts_that_get_another_shape(perm: str, sizes: str, order: str, axis: int) -> None:
    after = shaped(order, sizes).replace("axis = 0", f"axis = {axis}")
    after = after.replace("y = Reshape (p, s) z = Reshape (q, s)", "z = Reshape (q, s) y = Reshape (p, s)")
    check_rewrites(PASS, shaped(perm, sizes), after if perm[-1] == "1" else None, ops={"Split": 1, "Reshape": 2})


def test_shapes_that_take_sizes_of_the_part_stay() -> None:
    check_keeps(PASS, shaped("2, 0, 3, 4, 1", "1,5,2,4,3", "0, 12, 5"), "takes sizes of it")
    larger = shaped("2, 0, 3, 4, 1", "1,5,4,4,3").replace("ones = {1, 1}", "ones = {2, 2}")
    check_keeps(PASS, larger, "a part is larger")


KEPT = {
    "the Transpose is fast": parts("2, 0, 3, 1, 4"),
    "no Transpose of a single axis does the same": parts("2, 4, 3, 1, 0"),
    "a part is used several times": parts(more="t2 = Neg (p)"),
    "what is split is used elsewhere": parts(more="t2 = Neg (t)"),
    "a part does not lose its axis alone": parts().replace("z = Squeeze (q, zero)", "z = Neg (q)"),
    "a part loses another axis": parts().replace("B,5", "1,5").replace("zero = {0}", "zero = {1}"),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)


def test_a_second_run_changes_nothing() -> None:
    result = optimize(parse(parts()), level=3, verify=False)
    assert figures(result.model).ops == {"Split": 1, "Squeeze": 2, "Transpose": 1}
    assert figures(optimize(result.model, level=3, verify=False).model).ops == figures(result.model).ops
