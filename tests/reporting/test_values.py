"""What arrays hold, in a few figures."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ortopt.reporting import values


def numbers(array: Any) -> Any:
    (row,) = values.describe("y", array)
    json.dumps(row, allow_nan=False)
    return row["numbers"]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([1, 2, 6], np.int64), (1, 3, 6, 0, 0)),
        (np.array([2**62, 2**62 + 1]), (2**62, float(2**62), 2**62 + 1, 0, 0)),
        (np.array([True, False, False, False]), (0, 0.25, 1, 0, 0)),
        (np.full(100_000, 60_000, np.float16), (60_000, 60_000, 60_000, 0, 0)),
        (np.array([1, np.nan, -2, np.inf], ml_dtypes.bfloat16), (-2, -0.5, 1, 1, 1)),
        (np.array(3.5), (3.5, 3.5, 3.5, 0, 0)),
        (np.array([np.nan, np.inf]), (None, None, None, 1, 1)),
    ],
)
def test_numbers(array: Any, expected: tuple[Any, ...]) -> None:
    assert numbers(array) == dict(zip(("min", "mean", "max", "nan", "inf"), expected, strict=True))


@pytest.mark.parametrize("array", [np.zeros((0, 3)), np.array(["a"], object), np.array([1j])])
def test_what_has_no_order_has_none(array: Any) -> None:
    assert numbers(array) is None


def test_elements_of_small_arrays() -> None:
    (small,), (large,) = values.describe("y", np.arange(8)), values.describe("y", np.arange(9))
    assert (small["values"], large["values"]) == ([*range(8)], None)
    (texts,) = values.describe("y", np.array(["a", "Zürich"], object))
    assert texts["values"] == ["a", "Zürich"]
    assert [*values.small_values([small, large, texts])] == ["y: 0, 1, 2, 3, 4, 5, 6, 7", "y: a, Zürich"]


def test_sequences_maps_and_nothing() -> None:
    rows = values.describe("y", [np.ones(2), None])
    assert [(row["name"], row["dtype"], row["shape"]) for row in rows] == [
        ("y", "sequence of 2", None),
        ("y[0]", "float64", [2]),
        ("y[1]", "nothing", None),
    ]
    assert values.describe("y", {1: 2})[0]["dtype"] == "map of 1"
