"""A GatherElements whose indices are repeated along the last axis selects rows: GatherND does, without repeating."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.testing import check_rewrites

PASS = "gather_elements_canonicalization"


def model(
    x: str = "2,7,4",
    indices: str = "2,M,1",
    result: str = "2,M,4",
    to: str = "1, 1, 4",
    *,
    along: int = 1,
    repeat: str = "Expand",
    dtype: str = "int64",
) -> str:
    count = len(to.split(","))
    return f"""main (float[{x}] x, {dtype}[{indices}] i) => (float[{result}] y) <int64[{count}] to = {{{to}}}> {{
        e = {repeat} (i, to) y = GatherElements <axis = {along}> (x, e) }}"""


def rows(count: int, batch: tuple[int, ...] = (2,)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((*batch, 7, 4), np.float32), "i": rng.integers(-7, 7, (*batch, count, 1))}


def after(text: str, batch: int) -> str:
    return f"{text[: text.index('<')]} {{ y = GatherND <batch_dims = {batch}> (x, i) }}"


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("repeat", ["Expand", "Tile"])
@pytest.mark.parametrize("along", [1, -2])
def test_rewrites(repeat: str, along: int, count: int) -> None:
    text = model(repeat=repeat, along=along)
    check_rewrites(PASS, text, after(text, 1), inputs=rows(count))


def test_two_axes_in_front() -> None:
    text = model("2,3,7,4", "2,3,M,1", "2,3,M,4", "1, 1, 1, 4", along=2)
    check_rewrites(PASS, text, after(text, 2), inputs=rows(3, (2, 3)))


def test_a_batch_that_is_a_symbol() -> None:
    text = model("B,7,4", "B,M,1", "B,M,4")
    check_rewrites(PASS, text, after(text, 1), inputs=rows(3))
