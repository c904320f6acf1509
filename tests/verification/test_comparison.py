"""Outputs side by side: what agrees, what differs."""

import ml_dtypes
import numpy as np
import pytest

from ortopt.verification.comparison import Comparison

NAN, INF = float("nan"), float("inf")


def test_maps():
    type_ = "seq(map(int64,tensor(float)))"
    assert Comparison().of("z", type_, [{5: 1.0}], [{5: 1.0}]).agrees
    assert not Comparison().of("z", type_, [{5: 1.0}], [{5: 2.0}]).agrees
    assert not Comparison().of("z", type_, [{5: 1.0}], [{6: 1.0}]).agrees
    assert not Comparison().of("z", type_, [{5: 1.0}], []).agrees


@pytest.mark.parametrize(
    ("expected", "got", "agrees"),
    [
        ([1.0, NAN], [1.0, NAN], True),
        ([1.0, NAN], [1.0, 0.0], False),
        ([1.0, 0.0], [1.0, NAN], False),
        ([1.0, INF], [1.0, INF], True),
        ([1.0, INF], [1.0, -INF], False),
        ([1.0, 3e38], [1.0, INF], False),
        ([NAN, NAN], [NAN, NAN], True),
        ([1000.0, 0.001], [1000.0, 0.002], True),
        ([1000.0, 0.001], [1000.2, 0.001], False),
        ([1e-20, 2e-20], [1e-20, 3e-20], False),
        ([3e38, -3e38], [3e38, -3e38], True),
        ([0.0, 0.0], [1e-6, 0.0], True),
        ([0.0, 0.0], [1e-3, 0.0], False),
        ([0.0, -0.0], [-0.0, 0.0], False),
        ([0.0, -0.0], [0.0, -0.0], True),
    ],
)
def test_floats(expected, got, agrees):
    row = Comparison().of("y", "tensor(float)", np.array(expected, np.float32), np.array(got, np.float32))
    assert row.agrees is agrees
    assert bool(row.detail) is not agrees


@pytest.mark.parametrize(("type_", "error", "agrees"), [
    ("double", 1e-10, True), ("double", 1e-6, False), ("float", 5e-5, True), ("float", 1e-3, False),
    ("float16", 1e-2, True), ("float16", 5e-2, False)])  # fmt: skip
def test_tolerances_by_dtype(type_, error, agrees):
    dtype = {"double": np.float64, "float": np.float32, "float16": np.float16}[type_]
    row = Comparison().of("y", f"tensor({type_})", np.ones(3, dtype), (np.ones(3) * (1 + error)).astype(dtype))
    assert row.agrees is agrees


def test_an_error_that_the_kernel_alone_may_make_is_none() -> None:
    faint, step = np.float32([1e-6, 2e-6]), 4e-7
    compare = Comparison(steps={"y": step}).of
    row = compare("y", "tensor(float)", faint, faint + np.float32(3e-7))
    assert (row.agrees, row.worst) == (True, 0.0)
    assert row.absolute > 2e-7
    assert not Comparison().of("y", "tensor(float)", faint, faint + np.float32(3e-7)).agrees
    assert not compare("y", "tensor(float)", faint, faint + np.float32(5e-7)).agrees


def test_bits_are_read_as_numbers():
    one, more = (np.array([x], ml_dtypes.bfloat16).view(np.uint16) for x in (1.0, 1.0078125))
    assert Comparison().of("y", "tensor(bfloat16)", one, more).agrees
    assert not Comparison().of("y", "tensor(uint16)", one, more).agrees


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, object])
def test_what_is_no_float_is_exact(dtype):
    one, other = np.array([1, 0]).astype(dtype), np.array([1, 1]).astype(dtype)
    assert Comparison().of("y", "tensor(int64)", one, one).agrees
    row = Comparison().of("y", "tensor(int64)", one, other)
    assert not row.agrees
    assert "1 of 2 elements differ, the first at [1]" in row.detail
