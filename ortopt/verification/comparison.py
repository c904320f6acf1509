"""Outputs side by side: what agrees, what differs, by how much.

Dtype and shape must be the same; integers, booleans and strings too. Floats agree where

- NaN stands where NaN stands, and each infinity where the same infinity stands, and
- elsewhere ``|got - expected| <= t * max(scale, |expected|)``, ``scale`` being the root mean square of the output's
  finite numbers (1 where all are 0), and ``t`` within the `Limits` of the output's dtype: an error below ``sure`` is
  rounding, one above ``cap`` is a mistake, and in between the model's own noise decides
  (`ortopt.verification.doubtful_outputs`), or the usual tolerance of the dtype where the noise is not measured. What is
  computed from something of a coarser dtype, or quantized, has the tolerance of that dtype
  (`ortopt.verification.tolerances`).

Some outputs are uneven: one number of a million among ones, or a row of coordinates beside a row of probabilities. With
one scale for the whole output, the large numbers would hide errors of the small ones. There an error is also measured
by the scale of its surroundings (`OutputRow.local`): the least of the median and of the root mean squares of the slices
that it stands in. Numbers that cancel out may rightly have such errors, so what is beyond the usual tolerance there is
compared with the noise of the original, measured in the same way.

A zero of the other sign is a difference, too (its reciprocal is the other infinity), unless a copy of the original that
differs from it by rounding only has such zeros in the same output, or gives other numbers where they are: then the sign
depends on the order in which a kernel computes. Nor does it count where inputs hold many zeros: whole sums are of zeros
then.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from ortopt.terminal_text import quoted
from ortopt.verification.tolerances import LIMITS, TOLERANCES

Array = np.ndarray[Any, Any]

_NAMES = {dtype.name.lower(): dtype for dtype in TOLERANCES}

_UNEVEN: Final = 32
"""How many times the scale of the surroundings that of the output is, where it is called uneven."""

_UNEVEN_IF_COARSE: Final = 1 << 12
"""The same for what is quantized or of 16 bits, of which a step may be as large as 1/255 of the greatest number."""

_SAMPLE: Final = 1 << 16  # elements of which a median is taken
_SLICE: Final = 4  # elements that a slice has at least


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One output on the input set where it differs most.

    Attributes:
        name: The output's name.
        worst: The greatest error relative to the scale of the output: 0 is equal, infinity is not comparable.
        tolerance: What it may be.
        agrees: Whether it is within the tolerance.
        detail: What differs, in words; empty where it agrees.
        absolute: The greatest absolute error.
        relative: The greatest error relative to the element itself, where that is not 0.
        mean: The root mean square of the errors, relative to the scale.
        index: Where the worst element stands.
        expected: What it should be.
        got: What it is.
        noise: The model's own noise, as `worst` is measured; None where it was not measured.
        zeros: How many zeros have the other sign.
        first_zero: Where the first of them stands.
        doubtful: Whether the model's own noise decides.
        local: The greatest error relative to the scale of its surroundings, where the output is uneven and one is
            greater than is usual.
        local_detail: That one, in words.
        shown: Whether it shows anything: an output that is NaN everywhere does not.
    """

    name: str
    worst: float = 0.0
    tolerance: float = 0.0
    agrees: bool = True
    detail: str = ""
    absolute: float = 0.0
    relative: float = 0.0
    mean: float = 0.0
    index: tuple[int, ...] = ()
    expected: str = ""
    got: str = ""
    noise: float | None = None
    zeros: int = 0
    first_zero: tuple[int, ...] = ()
    doubtful: bool = False
    local: float = 0.0
    local_detail: str = ""
    shown: bool = True


def worst_of(rows: list[OutputRow], name: str) -> OutputRow:
    """The row that disagrees most."""
    return max(rows, key=lambda row: (not row.agrees, row.worst), default=OutputRow(name))


@dataclass(frozen=True, slots=True)
class Comparison:
    """How outputs are compared.

    Attributes:
        tolerances: The least tolerance of an output's floats, by its name.
        random: Outputs of which only dtypes and shapes are compared.
        rtol: If it or ``atol`` is given, floats agree where ``|got - expected| <= atol + rtol * |expected|``, whatever
            their dtype, and noise is not asked for.
        atol: See ``rtol``; if it is None, they agree where ``|got - expected| <= rtol * max(scale, |expected|)``.
        caps: The greatest error of an output that noise may excuse, by its name, where it is not its dtype's.
        steps: Absolute errors of floats that the kernel alone may make, by the output's name: what is measured is what
            errors are beyond (`ortopt.verification.kernel_steps.kernel_steps`).
    """

    tolerances: Mapping[str, float] = field(default_factory=dict)
    random: Collection[str] = frozenset()
    rtol: float | None = None
    atol: float | None = None
    caps: Mapping[str, float] = field(default_factory=dict)
    steps: Mapping[str, float] = field(default_factory=dict)

    def of(self, name: str, type_: str, expected: Any, got: Any, *, extreme: bool = False) -> OutputRow:
        """Compare two outputs: arrays (bfloat16 and float8 as their bits), lists, dicts or None.

        Args:
            name: The output's name.
            type_: Its type in ONNX's spelling.
            expected: What the original gave.
            got: What the result gave.
            extreme: Whether the inputs were such that only the noise of the original can tell what is an error.
        """
        if _kind(expected) is not _kind(got):
            return _incomparable(name, "only one of the two is there")
        if isinstance(expected, list):
            return self._sequences(name, type_, expected, got)
        if isinstance(expected, dict):
            return self._maps(name, expected, got)
        if expected is None:
            return OutputRow(name)
        row = self._arrays(name, type_, expected, got)
        if not extreme or self.rtol is not None or self.atol is not None or expected.shape != got.shape:
            return row
        usual = row.agrees and row.local <= LIMITS[row.tolerance].cap if row.local else row.agrees
        return dataclasses.replace(row, doubtful=not usual and expected.dtype == got.dtype)

    def _sequences(self, name: str, type_: str, expected: list[Any], got: list[Any]) -> OutputRow:
        if len(expected) != len(got):
            return _incomparable(name, f"a sequence of {len(got)} instead of {len(expected)}")
        inner = type_.removeprefix("optional(").removeprefix("seq(")
        return worst_of([self.of(name, inner, *pair) for pair in zip(expected, got, strict=True)], name)

    def _maps(self, name: str, expected: dict[Any, Any], got: dict[Any, Any]) -> OutputRow:
        if expected.keys() != got.keys():
            return _incomparable(name, "the keys of the map differ")
        values = [np.array([mapping[key] for key in expected]) for mapping in (expected, got)]
        return self._arrays(name, "float" if values[0].dtype.kind == "f" else "", *values)

    def _arrays(self, name: str, type_: str, expected: Array, got: Array) -> OutputRow:
        if expected.dtype != got.dtype or expected.shape != got.shape:
            return _incomparable(
                name, f"{got.dtype}{list(got.shape)} instead of {expected.dtype}{list(expected.shape)}"
            )
        if name in self.random or expected.size == 0:
            return OutputRow(name)
        dtype = _NAMES.get(type_.removeprefix("optional(").removeprefix("tensor(").rstrip(")"))
        if dtype is None:
            return _exact(name, np.atleast_1d(expected), np.atleast_1d(got))
        numbers = _numbers(expected, dtype), _numbers(got, dtype)
        if np.isnan(numbers[0]).all() and np.isnan(numbers[1]).all():
            return OutputRow(name, shown=False)
        if self.rtol is not None or self.atol is not None:
            return _within(_measured(name, *numbers, 0.0), *numbers, self.rtol or 0.0, self.atol)
        tolerance = max(self.tolerances.get(name, 0.0), TOLERANCES[dtype])
        row = _measured(name, *numbers, tolerance, self.steps.get(name, 0.0))
        return row if math.isinf(row.worst) else _judged(row, self.caps.get(name))


def is_float(value: Any, type_: str) -> bool:
    """Whether an output is an array of floats that numpy has; its type in ONNX's spelling."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and "seq(" not in type_


def _kind(value: Any) -> type:
    """The type of an output; an array that is mapped from a file is an array."""
    return np.ndarray if isinstance(value, np.ndarray) else type(value)


def _incomparable(name: str, detail: str) -> OutputRow:
    return OutputRow(name, math.inf, 0.0, False, detail)


def _numbers(array: Array, dtype: ir.DataType) -> Array:
    """Numbers of double precision, of at least one dimension; bits are read as what they stand for."""
    array = np.atleast_1d(array)
    numbers = array.view(dtype.numpy()) if array.dtype.kind == "u" else array
    return numbers.astype(np.complex128 if numbers.dtype.kind == "c" else np.float64)


def _first(mask: Array) -> tuple[int, ...]:
    return tuple(int(place) for place in np.argwhere(mask)[0])


def _exact(name: str, expected: Array, got: Array) -> OutputRow:
    different = np.asarray(expected != got)
    if not different.any():
        return OutputRow(name)
    where = _first(different)
    many = f"{int(different.sum())} of {expected.size} elements differ"
    texts = _shown(expected[where]), _shown(got[where])
    detail = f"{many}, the first at {list(where)}: {texts[1]} instead of {texts[0]}"
    numeric = expected.dtype.kind in "iub"
    absolute = float(np.abs(expected.astype(np.float64) - got.astype(np.float64)).max()) if numeric else math.inf
    return OutputRow(
        name,
        math.inf,
        0.0,
        False,
        detail,
        absolute=absolute,
        relative=math.inf,
        mean=math.inf,
        index=where,
        expected=texts[0],
        got=texts[1],
        doubtful=True,
    )


def _shown(element: Any) -> str:
    """An element for people; strings come from untrusted files."""
    return quoted(element) if isinstance(element, str | bytes) else str(element)


def _texts(expected: Any, got: Any) -> tuple[str, str]:
    """Two floats, with as many digits as tell them apart."""
    short = f"{expected:.9g}", f"{got:.9g}"
    return short if short[0] != short[1] or expected == got else (f"{expected:.17g}", f"{got:.17g}")


def _measured(name: str, expected: Array, got: Array, tolerance: float, step: float = 0.0) -> OutputRow:
    """The errors of floats beyond ``step``; a row that agrees unless NaN or infinities stand elsewhere."""
    finite = np.isfinite(expected)
    alike = np.where(finite, np.isfinite(got), (expected == got) | (np.isnan(expected) & np.isnan(got)))
    if not alike.all():
        where = _first(~alike)
        many = f"NaN or infinity at {int((~alike).sum())} of {expected.size} places where the other has it not"
        texts = _texts(expected[where], got[where])
        row = _incomparable(name, f"{texts[1]} instead of {texts[0]} at {list(where)} ({many})")
        return dataclasses.replace(row, index=where, expected=texts[0], got=texts[1])
    if not finite.any():
        return OutputRow(name, 0.0, tolerance)
    wanted, given = np.where(finite, expected, 0), np.where(finite, got, 0)
    sizes, differences = np.abs(wanted), np.abs(given - wanted)
    most = float(sizes.max()) or 1.0
    scale = most * float(np.sqrt(np.sum((sizes / most) ** 2) / finite.sum())) or 1.0
    beyond = np.maximum(differences - step, 0)
    errors = beyond / np.maximum(scale, sizes)
    where = tuple(int(place) for place in np.unravel_index(int(errors.argmax()), errors.shape))
    turned = finite & (wanted == 0) & (given == 0) & (np.signbit(wanted.real) != np.signbit(given.real))
    texts = _texts(expected[where], got[where])
    zeros = int(turned.sum())
    return OutputRow(
        name,
        float(errors[where]),
        tolerance,
        absolute=float(differences.max()),
        relative=float(np.divide(differences, sizes, out=np.zeros_like(differences), where=sizes > 0).max()),
        mean=float(np.sqrt(np.mean(errors**2))),
        index=where,
        expected=texts[0],
        got=texts[1],
        zeros=zeros,
        first_zero=_first(turned) if zeros else (),
        **_locally(wanted, given, beyond, scale, tolerance),
    )


def _locally(wanted: Array, given: Array, differences: Array, scale: float, tolerance: float) -> dict[str, Any]:
    """The greatest error by the scale of its surroundings, for an `OutputRow`; nothing where it is usual."""
    sizes = np.abs(wanted)
    suspect = differences > tolerance * sizes  # the scale of the surroundings can only forgive more
    if not suspect.any():
        return {}
    local = _surroundings(sizes)
    uneven = local * (_UNEVEN if tolerance <= TOLERANCES[ir.DataType.FLOAT] else _UNEVEN_IF_COARSE) < scale
    suspect &= uneven
    if not suspect.any():
        return {}
    errors = np.where(suspect, differences / np.maximum(np.maximum(local, sizes), np.finfo(np.float64).tiny), 0)
    where = tuple(int(place) for place in np.unravel_index(int(errors.argmax()), errors.shape))
    if errors[where] <= tolerance:
        return {}
    texts = _texts(wanted[where], given[where])
    detail = f"{texts[1]} instead of {texts[0]} at {list(where)}: an error of {errors[where]:.2g} of what is around it"
    return {"local": float(errors[where]), "local_detail": detail}


def _surroundings(sizes: Array) -> Array:
    """For each place the scale of what is around it: the least of the median and of its slices' root mean squares."""
    flat = sizes.reshape(-1)
    some = flat[:: max(1, flat.size // _SAMPLE)]
    some = some[some > 0]
    median = float(np.median(some)) if some.size else math.inf
    scales = np.full(sizes.shape, median)
    for axis, size in enumerate(sizes.shape):
        if size < 2 or sizes.size // size < _SLICE:
            continue
        others = tuple(other for other in range(sizes.ndim) if other != axis)
        most = sizes.max(axis=others, keepdims=True)
        safe = np.where(most > 0, most, 1)
        means = most * np.sqrt(np.mean((sizes / safe) ** 2, axis=others, keepdims=True))
        scales = np.minimum(scales, np.where(means > 0, means, math.inf))
    return scales


def _judged(row: OutputRow, cap: float | None) -> OutputRow:
    """A row by what is usual; doubtful if the noise may say otherwise."""
    limits = LIMITS[row.tolerance]
    doubtful = row.worst <= (cap or limits.cap) and (row.worst > limits.sure or row.zeros > 0 or row.local > 0)
    if row.worst > row.tolerance:
        return dataclasses.replace(row, agrees=False, detail=error_text(row), doubtful=doubtful)
    if row.zeros:
        return dataclasses.replace(row, agrees=False, detail=zero_text(row), doubtful=doubtful)
    return dataclasses.replace(row, doubtful=doubtful)


def regardless_of_signs(row: OutputRow, cap: float | None = None) -> OutputRow:
    """A row whose zeros may have either sign; ``cap`` is its own in `Comparison.caps`."""
    if not row.zeros or math.isinf(row.worst):
        return row
    row = dataclasses.replace(row, zeros=0, first_zero=(), agrees=True, detail="", doubtful=False)
    return _judged(row, cap)


def zero_text(row: OutputRow) -> str:
    """A row's zeros of the other sign, in words."""
    places = f"{row.zeros} places, the first at " if row.zeros > 1 else ""
    return f"a zero has the other sign at {places}{list(row.first_zero)}"


def error_text(row: OutputRow) -> str:
    """A row's greatest error, in words."""
    where = f"{row.got} instead of {row.expected} at {list(row.index)}"
    return f"{where}: an error of {row.worst:.2g} of the output's scale, where {row.tolerance:.2g} is allowed"


def _within(row: OutputRow, expected: Array, got: Array, rtol: float, atol: float | None) -> OutputRow:
    """A row by the measure of numpy's ``allclose``; without ``atol``, numbers below the output's scale count as it."""
    if math.isinf(row.worst):
        return row
    if atol is None:
        row = dataclasses.replace(row, tolerance=rtol)
        return row if row.worst <= rtol else dataclasses.replace(row, agrees=False, detail=error_text(row))
    finite = np.isfinite(expected)
    sizes = np.abs(np.where(finite, expected, 0))
    differences = np.abs(np.where(finite, got, 0) - np.where(finite, expected, 0))
    excess = differences - (atol + rtol * sizes)
    where = tuple(int(place) for place in np.unravel_index(int(excess.argmax()), excess.shape))
    texts = _texts(expected[where], got[where])
    row = dataclasses.replace(row, tolerance=rtol, index=where, expected=texts[0], got=texts[1])
    if excess[where] <= 0:
        return row
    detail = f"{row.got} instead of {row.expected} at {list(where)}: beyond rtol {rtol:.2g} and atol {atol:.2g}"
    return dataclasses.replace(row, agrees=False, detail=detail)
