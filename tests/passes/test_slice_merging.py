"""A Slice of a Slice is one Slice, wherever both are numbers."""

import numpy as np
import pytest

from ortopt.testing import check_rewrites

PASS = "slice_merging"
LONG = 2**63 - 1
TWO = """main (float[{n},6] x) => (float[A,B] y)
    <int64[1] s = {{{s}}}, int64[1] e = {{{e}}}, int64[1] p = {{{p}}}, int64[1] t = {{{t}}}, int64[1] f = {{{f}}}, int64[1] q = {{{q}}},
     int64[1] a = {{0}}, int64[1] b = {{{axis}}}> {{
    m = Slice (x, s, e, a, p) y = Slice (m, t, f, b, q) }}"""  # noqa: E501


def two(s: int, e: int, t: int, f: int, *, n: int | str = 9, p: int = 1, q: int = 1, axis: int = 0) -> str:
    return TWO.format(n=n, s=s, e=e, t=t, f=f, p=p, q=q, axis=axis)


@pytest.mark.parametrize(
    ("first", "second", "steps"),
    [
        ((1, 8), (2, 4), (1, 1)),
        ((1, 8), (2, LONG), (1, 1)),
        ((-8, -1), (-3, LONG), (1, 1)),
        ((0, LONG), (5, 100), (1, 1)),
        ((1, LONG), (1, 3), (2, 1)),
        ((1, LONG), (1, LONG), (2, 3)),
        ((3, 5), (4, 9), (1, 1)),
        ((5, 3), (0, 9), (1, 1)),
        ((-100, 4), (1, 2), (1, 1)),
        ((0, LONG), (0, LONG), (LONG, LONG)),
        ((8, LONG), (0, LONG), (2**62, 3)),
        ((0, LONG), (1, 4), (2**40, 2**40)),
        ((0, 2**31 - 1), (2, 2**31 - 1), (1, 1)),
    ],
)
def test_along_one_axis(first: tuple[int, int], second: tuple[int, int], steps: tuple[int, int]) -> None:
    text = two(*first, *second, p=steps[0], q=steps[1])
    check_rewrites(PASS, text, ops={"Slice": 1}, inputs={"x": np.arange(54, dtype=np.float32).reshape(9, 6)})


@pytest.mark.parametrize("size", [0, 2, 4, 9])
def test_along_one_axis_of_any_size(size: int) -> None:
    x = np.arange(size * 6, dtype=np.float32).reshape(size, 6)
    for bounds in ((1, 8, 2, 4), (1, LONG, 1, 3), (2, 4, 1, LONG), (4, 2, 0, LONG)):
        check_rewrites(PASS, two(*bounds, n="N"), ops={"Slice": 1}, inputs={"x": x})


def test_along_two_axes() -> None:
    model = check_rewrites(PASS, two(1, 8, -3, LONG, n="N", p=-1, axis=-1), ops={"Slice": 1})
    assert model.graph[0].inputs[4].const_value.numpy().tolist() == [-1, 1]
