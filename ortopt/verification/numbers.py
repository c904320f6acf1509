"""The numbers of one drawn input: of ordinary size, of all magnitudes, at the bounds of their dtype."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]

IntegerRange: TypeAlias = Literal["natural", "signed", "extreme", "small", "binary", "zero", "one"]
FloatRange: TypeAlias = Literal["normal", "unit", "wide", "positive", "coarse", "nan", "inf"]

NEAR: Final = 4
"""Octaves from 1 that no model minds: from a sixteenth to sixteen."""

FAR: Final = 14
"""From 6e-5 to 16,384: beyond every threshold that networks have, and far from what overflows them."""

FARTHEST: Final = 20
"""From 1e-6 to a million."""

_MAX_SIZES: Final = 10  # so few integers may be dimensions, or tell how often something is done
_SMALL: Final = 8
_LARGE: Final = 1 << 17
_RANGES: Final = {"small": (1, 5), "binary": (0, 2), "zero": (0, 1), "one": (1, 2)}


def drawn_of(
    rng: np.random.Generator, dtype: ir.DataType, shape: tuple[int, ...], floats: FloatRange, octaves: int
) -> Array:
    """Floats, complex numbers, booleans or strings.

    Args:
        rng: What is drawn from.
        dtype: Their dtype.
        shape: Of the array.
        floats: As `ortopt.verification.draws.Draw` has it.
        octaves: Likewise.
    """
    if dtype == ir.DataType.STRING:
        return np.asarray(np.array(["a", "the", "onnx", "Zürich", ""], object)[rng.integers(0, 5, shape)], object)
    if dtype == ir.DataType.BOOL:
        return np.asarray(rng.integers(0, 2, shape).astype(np.bool_))
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        return np.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype.numpy())
    if floats in ("wide", "positive"):
        return np.asarray(_of_all_magnitudes(rng, shape, octaves, signed=floats == "wide")).astype(dtype.numpy())
    drawn = np.asarray(rng.random(shape) if floats == "unit" else rng.standard_normal(shape))
    if floats == "coarse":
        drawn = np.round(drawn * 2) / 2 + 0.0  # no zero is negative: its sign often depends on the kernel
    drawn = drawn.astype(dtype.numpy())
    if floats in ("nan", "inf") and drawn.size:
        places = drawn.reshape(-1)
        where = rng.permutation(places.size)[:2]
        places[where] = [np.nan, np.nan][: len(where)] if floats == "nan" else [np.inf, -np.inf][: len(where)]
        if floats == "nan":
            places[where[1:]] = 0
    return drawn


def _of_all_magnitudes(rng: np.random.Generator, shape: tuple[int, ...], octaves: int, *, signed: bool) -> Array:
    """Floats evenly spread over a log scale, its ends included; the largest is negative if there are signs."""
    count = int(np.prod(shape))
    exponents = np.linspace(octaves, -octaves, count) if count else np.zeros(0)
    sizes = np.exp2(exponents) * np.concatenate([np.ones(min(count, 1)), rng.uniform(0.7, 1, max(count - 1, 0))])
    if signed:
        sizes *= rng.choice([-1.0, 1.0], count)
        sizes[:1] = -np.abs(sizes[:1])
    return np.asarray(rng.permutation(sizes).reshape(shape))


def integers_of(
    rng: np.random.Generator,
    dtype: ir.DataType,
    shape: tuple[int, ...],
    integers: IntegerRange,
    *,
    name: str,
    below: int | None,
    sizes: bool,
) -> Array:
    """Integers.

    Args:
        rng: What is drawn from.
        dtype: Their dtype.
        shape: Of the array.
        integers: As `ortopt.verification.draws.Draw` has it.
        name: The input's.
        below: The size of the smallest table that they are indices into.
        sizes: Whether they may be sizes, counts or positions of something.
    """
    if integers in ("signed", "extreme") and is_wide_integer(name, dtype):
        if integers == "extreme" and is_free_integer(name, dtype, below=below, sizes=sizes):
            return _of_all_integers(rng, dtype, shape)
        few = int(np.prod(shape)) < _MAX_SIZES
        most = below or (_SMALL if few or "position" in name.lower() else _LARGE)
        low, high = max(-most, int(dtype.min)), min(most, int(dtype.max) + 1)
        return np.asarray(rng.integers(low, high, shape)).astype(dtype.numpy())
    if integers in _RANGES:
        return np.asarray(rng.integers(*_RANGES[integers], shape)).astype(dtype.numpy())
    if "mask" in name.lower():
        mask = np.asarray(rng.random(shape) < 0.9)
        if mask.ndim:
            mask[..., :1] = True  # a row of zeros only is no attention at all
        return mask.astype(dtype.numpy())
    if below is None and dtype.bitwidth <= 8:
        return np.asarray(rng.integers(int(dtype.min), int(dtype.max) + 1, shape)).astype(dtype.numpy())
    most = min(below or (8 if "position" in name.lower() else 10), int(dtype.max) + 1)
    return np.asarray(rng.integers(0, most, shape)).astype(dtype.numpy())


def _of_all_integers(rng: np.random.Generator, dtype: ir.DataType, shape: tuple[int, ...]) -> Array:
    """Integers evenly spread over a log scale; of three and more, two are the bounds of the dtype."""
    count, least, most = int(np.prod(shape)), int(dtype.min), int(dtype.max)
    top = most.bit_length() - 1
    exponents = np.linspace(top, 0, count) if count else np.zeros(0)
    numbers = [int(2.0**power) for power in exponents]
    if least < 0:
        numbers = [
            number if i == 0 or keep else -number
            for i, (number, keep) in enumerate(zip(numbers, rng.random(count) < 0.5, strict=True))
        ]
    if count > 2:
        numbers[1:3] = [least, most]
    return np.array(rng.permutation(np.array(numbers, object)), dtype.numpy()).reshape(shape)


def is_wide_integer(name: str, dtype: ir.DataType) -> bool:
    """Whether an input's integers have more than 8 bits, of which all values are drawn anyway, and are no mask."""
    return dtype.is_integer() and dtype.bitwidth > 8 and "mask" not in name.lower()


def is_free_integer(name: str, dtype: ir.DataType, *, below: int | None, sizes: bool) -> bool:
    """Whether an input's integers may be anything, as far as can be seen."""
    return is_wide_integer(name, dtype) and below is None and not sizes and "position" not in name.lower()
