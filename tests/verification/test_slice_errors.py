"""The error of a slice of an output."""

import math

import numpy as np
import pytest

from ortopt.optimization.half_precision_measurement import slice_error

ONES = np.ones((2, 3, 4), np.float32)


def test_equal_outputs_have_none() -> None:
    assert slice_error(ONES, ONES) == 0.0
    assert slice_error(np.zeros((2, 3)), np.zeros((2, 3))) == 0.0
    assert slice_error(np.array([], np.float32), np.array([], np.float32)) == 0.0
    assert slice_error(None, None) == 0.0


def test_an_error_is_relative_to_its_slice() -> None:
    expected, got = ONES.copy(), ONES.copy()
    expected[0, 0] = got[0, 0] = 10
    got[0, 1, 2] += 0.5
    assert slice_error(expected, got) == pytest.approx(0.5)
    got[0, 1, 2] = 1
    got[0, 0, 2] += 0.5
    assert slice_error(expected, got) == pytest.approx(0.05)


def test_a_faint_slice_is_measured_against_the_whole() -> None:
    expected = ONES.copy() * 32
    expected[1, 2] = 1e-6
    got = expected.copy()
    got[1, 2] += 1e-3
    assert slice_error(expected, got) < 2e-3


def test_an_element_larger_than_its_slice_is_measured_by_itself() -> None:
    expected = np.array([[1.0, 1, 1, 100]])
    assert slice_error(expected, expected + np.array([[0, 0, 0, 1]])) == pytest.approx(0.01)


def test_zeros_have_a_scale_of_one() -> None:
    assert slice_error(np.zeros(4), np.full(4, 1e-3)) == pytest.approx(1e-3)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_finite_must_be_where_it_was(wrong: float) -> None:
    got = ONES.copy()
    got[0, 0, 0] = wrong
    assert slice_error(ONES, got) == math.inf
    assert slice_error(got, ONES) == math.inf
    assert slice_error(got, got) == 0.0


def test_integers_count_what_differs() -> None:
    assert slice_error(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])) == 0.25


def test_other_shapes_and_kinds_cannot_be_compared() -> None:
    assert slice_error(ONES, ONES[0]) == math.inf
    assert slice_error(ONES, None) == math.inf
    assert slice_error([ONES], [ONES, ONES]) == math.inf
    assert slice_error([ONES], [ONES * 2]) == pytest.approx(1.0)
