"""How large expressions get, and what a dtype holds of them."""

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.graph import facts, symbolic
from ortopt.graph.integer_ranges import LARGEST, LIMITS, Sizes, is_endless, wrapped
from ortopt.graph.symbolic import UNKNOWN, canonical

INT32, INT64, UINT64 = ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT64
SIZES = Sizes([(canonical("N"), canonical("M"), 4), (canonical("B"), canonical("past + seq")), (canonical("K"),)])

HELD = ["N", "-N", "N + 1", "4*M*N", "N*M - 7", "N//2", "B*past", "B*seq", "max(1, N)", "min(N, K)", "N + M + K"]
HELD += ["4194304*K", "16777216*N", "(N*M)//(B + 1)", "N - K", "max(0, N - 5)*M"]
BEYOND = ["N*N", "N*M*N", "N*K", "past*seq", "8388609*K", "33554433*N", "B*N", "M*K", "(N//3)*N", "max(1, N)*max(1, K)"]


@pytest.mark.parametrize("text", HELD)
def test_what_int64_holds(text: str) -> None:
    assert SIZES.holds(canonical(text), INT64)


@pytest.mark.parametrize("text", BEYOND)
def test_what_may_leave_int64(text: str) -> None:
    assert not SIZES.holds(canonical(text), INT64)


def test_narrow_types_hold_what_is_capped() -> None:
    assert not SIZES.holds(canonical("K"), INT32)
    assert SIZES.holds(canonical("min(512, K)"), INT32)
    assert SIZES.holds(canonical("K%8"), INT32)
    assert SIZES.holds(canonical("K//1024"), INT32)
    assert not SIZES.holds(canonical("K//256"), INT32)
    assert SIZES.holds(canonical("min(1, K)"), ir.DataType.BOOL)
    assert not SIZES.holds(canonical("K"), ir.DataType.BOOL)


def test_a_size_that_a_tensor_has_twice_is_at_most_the_root() -> None:
    square = Sizes([(canonical("N"), canonical("N"), 4), (canonical("M"), canonical("K"), canonical("M"))])
    assert square.lies_within(canonical("N"), 0, 2**19)
    assert not square.lies_within(canonical("N"), 0, 2**19 - 1)
    assert square.lies_within(canonical("M"), 0, 2**20 + 1)
    assert not square.lies_within(canonical("K"), 0, 2**39)
    assert square.lies_within(canonical("max(N, 8 - 8*N)"), 0, 2**19)
    assert not square.lies_within(canonical("max(N, 8*N - 8)"), 0, 2**20)


def test_numbers_beside_a_symbol_bound_it() -> None:
    image = Sizes([(canonical("N"), 32, 32, 3), (canonical("K"), 0, 511)])
    assert image.holds(canonical("N"), INT32)
    assert not image.holds(canonical("7*N"), INT32)
    assert image.magnitude(canonical("N")) == LARGEST // 3072
    assert not image.holds(canonical("K"), INT32)  # a dimension of 0 is left out, and 511 is one too few


def test_the_closest_bound_counts() -> None:
    sizes = Sizes([(canonical("N"), canonical("M"))])
    assert not sizes.holds(canonical("N"), INT32)
    assert sizes.learn([(canonical("N"), canonical("M"), 768)])
    assert not sizes.learn([(canonical("N"), canonical("M"), 512), (canonical("N"), 768)])
    assert sizes.holds(canonical("N*M"), INT32)
    assert sizes.holds(canonical("N"), INT32)
    assert not sizes.holds(canonical("2*N*M"), INT32)


def test_unsigned_types_hold_nothing_that_may_be_negative() -> None:
    assert SIZES.holds(canonical("N"), UINT64)
    assert not SIZES.holds(canonical("N - 1"), UINT64)
    assert not SIZES.holds(-1, UINT64)


def test_one_symbol_is_bounded_by_its_tensor_alone() -> None:
    assert Sizes().holds(canonical("N"), INT64)
    assert not Sizes().holds(canonical("N*M"), INT64)
    twice = Sizes([(canonical("N"), canonical("N"))])
    assert twice.holds(canonical("N*N"), INT64)
    assert not twice.holds(canonical("N*N*N"), INT64)


def test_a_dimension_that_is_a_product_says_nothing_of_its_factors() -> None:
    assert not Sizes([(canonical("N*M"), canonical("K"))]).holds(canonical("N*K"), INT64)  # M may be 0


def test_the_unknown_is_held_by_nothing() -> None:
    assert not SIZES.holds(UNKNOWN, INT64)
    assert SIZES.magnitude(UNKNOWN) is None


def test_magnitudes() -> None:
    assert SIZES.magnitude(-7) == 7
    assert SIZES.magnitude(canonical("K - 7")) == LARGEST + 7
    assert SIZES.magnitude(canonical("N - 7")) == LARGEST // 4 + 7
    assert SIZES.magnitude(canonical("N*K")) is None


@pytest.mark.parametrize("dtype", LIMITS.keys() - {ir.DataType.BOOL})
def test_wrapped_keeps_the_last_bits(dtype: ir.DataType) -> None:
    low, high = LIMITS[dtype]
    for number in (low - 1, low, -1, 0, 1, high, high + 1, 2 * high + 2, 3**50, -(3**50)):
        expected = np.array(number % 2**64, np.uint64).astype(dtype.numpy())
        assert wrapped(number, dtype) == int(expected)
    assert wrapped(canonical("N"), dtype) == canonical("N")


def test_what_is_kept_of_a_value_is_what_its_type_holds() -> None:
    value = ir.Value(name="v", type=ir.TensorType(INT32))
    facts.set_contents(value, (300, 2**31, canonical("N"), canonical("min(9, N)")), SIZES)
    assert facts.all_contents(value) == (300, UNKNOWN, UNKNOWN, canonical("min(9, N)"))
    facts.set_contents(value, (canonical("N*N"), canonical("N")), SIZES, proven=[canonical("N*N")])
    assert facts.all_contents(value) == (canonical("N*N"), UNKNOWN)
    facts.set_contents(value, None, SIZES)
    assert facts.all_contents(value) is None
    floats = ir.Value(name="f", type=ir.TensorType(ir.DataType.FLOAT))
    facts.set_contents(floats, (1,), SIZES)
    assert facts.CONTENTS not in floats.meta


def test_ends_of_slices() -> None:
    assert is_endless(2**63 - 1)
    assert is_endless(2**31 - 1)
    assert not is_endless(2**31)
    assert not is_endless(symbolic.symbol("N"))


@pytest.mark.parametrize(
    ("positive", "least"),
    [
        ("S - 126", {"S": 127}),
        ("(S + 257)//384 - 2", {"S": 895}),
        ("max(S - 5, S//2 - 100)", {"S": 6}),
        ("2*S - 9", {"S": 5}),
        ("N - S", {}),
        ("9 - S", {}),
        ("S*S - 9", {}),
        ("S//70000", {}),
    ],
)
def test_what_is_positive_bounds_its_only_symbol(positive: str, least: dict[str, int]) -> None:
    sizes = Sizes()
    sizes.learn_positive(canonical(positive))
    assert sizes.least == least


def test_an_element_is_bounded_by_what_its_symbols_are_at_least() -> None:
    sizes = Sizes()
    for positive in ("S - 126", "S - 9"):
        sizes.learn_positive(canonical(positive))
    assert sizes.is_at_least(canonical("S - 127"), 0)
    assert sizes.is_at_least(canonical("(S - 7)//2 + N"), 60)
    assert not sizes.is_at_least(canonical("S - 128"), 0)
    assert not sizes.is_at_least(canonical("N - 1"), 0)
    assert not sizes.is_at_least(UNKNOWN, 0)
    assert sizes.is_at_least(5, 5)
