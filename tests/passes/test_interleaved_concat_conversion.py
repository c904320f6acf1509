"""A Concat, a Reshape and a Transpose that interleave tensors are one Concat along a new axis."""

from __future__ import annotations

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "interleaved_concat_conversion"


def model(
    *,
    size: str = "N,3,4,5",
    parts: str = "a, b",
    axis: int = 1,
    shape: str = "0, 2, 3, 4, 5",
    perm: str = "0, 2, 1, 3, 4",
    more: str = "",
    outputs: str = "",
    second: str = "",
    dtype: str = "float",
) -> str:
    values = shape.count(",") + 1
    return f"""main ({dtype}[{size}] a, {dtype}[{second or size}] b) => ({dtype}[] y{outputs})
        <int64[{values}] s = {{{shape}}}> {{
        j = Concat <axis = {axis}> ({parts}) r = Reshape (j, s) y = Transpose <perm = [{perm}]> (r) {more} }}"""


def after(size: str, axis: int, parts: str = "u, v", dtype: str = "float") -> str:
    return f"""main ({dtype}[{size}] a, {dtype}[{size}] b) => ({dtype}[] y) <int64[1] n = {{{axis}}}> {{
        u = Unsqueeze (a, n) v = Unsqueeze (b, n) y = Concat <axis = {axis}> ({parts}) }}"""


def test_channels() -> None:
    check_rewrites(PASS, model(), after("N,3,4,5", 2))


def test_an_axis_from_the_end() -> None:
    check_rewrites(PASS, model(axis=-3), after("N,3,4,5", 2))


@pytest.mark.parametrize("dtype", ["int64", "double", "float16"])
def test_other_types(dtype: str) -> None:
    check_rewrites(PASS, model(dtype=dtype), after("N,3,4,5", 2, dtype=dtype))


def test_three_tensors_and_one_twice() -> None:
    text = model(parts="a, b, a", shape="0, 3, 3, 4, 5")
    check_rewrites(PASS, text, ops={"Unsqueeze": 3, "Concat": 1, "Reshape": 0, "Transpose": 0})


def test_the_first_and_the_last_axis() -> None:
    first = model(size="3,4", axis=0, shape="2, 3, 4", perm="1, 0, 2")
    check_rewrites(PASS, first, after("3,4", 1))
    last = model(size="N,3", axis=1, shape="0, 2, 3", perm="0, 2, 1")
    check_rewrites(PASS, last, after("N,3", 2))


def test_old_opsets() -> None:
    """The axes are an attribute there."""
    check_rewrites(PASS, model(), ops={"Unsqueeze": 2, "Concat": 1, "Transpose": 0, "Reshape": 0}, opset=11)


KEPT = {
    "what is reshaped is used elsewhere": model(more="z = Neg (r)", outputs=", float[] z"),
    "what is joined is used elsewhere": model(more="z = Neg (j)", outputs=", float[] z"),
    "it joins nothing": model(parts="a", shape="0, 1, 3, 4, 5"),
    "the tensors take no turns": model(perm="0, 2, 1, 4, 3"),
    "other axes come apart, too": ("the tensors take no turns", model(shape="0, 2, 3, 5, 4")),
    "they do not come apart again": ("the tensors take no turns", model(shape="0, 3, 2, 4, 5")),
    "keeps tensors of other sizes": ("the tensors have several sizes", model(size="N,2,4,5", second="N,4,4,5")),
}


test_keeps = keeps(PASS, KEPT)


def test_keeps_what_is_joined_along_another_axis() -> None:
    text = model(size="N,3,2,5", axis=2, shape="0, 3, 2, 2, 5", perm="0, 2, 1, 3, 4")
    check_keeps(PASS, text, "the tensors take no turns")
    check_keeps(PASS, model(perm="0, 1, 2, 3, 4"), "the tensors take no turns")


def test_sizes_that_are_free() -> None:
    ops = {"Unsqueeze": 2, "Concat": 1, "Transpose": 0}
    check_rewrites(PASS, model(size="N,C,4,5", shape="0, 2, -1, 4, 5"), ops=ops)


def test_keeps_sizes_that_may_differ() -> None:
    text = model(size="N,C,4,5", second="N,D,4,5", shape="0, 2, -1, 4, 5")
    check_keeps(PASS, text, "the tensors have several sizes")
