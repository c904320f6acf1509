"""Outputs side by side: what agrees, what differs, by how much.

Dtype and shape must be the same; integers, booleans and strings too. Floats agree where

- NaN stands where NaN stands, and each infinity where the same infinity stands, and
- elsewhere ``|got - expected| <= t * max(scale, |expected|)``, ``scale`` being the root mean square of the output's
  finite numbers (1 where all are 0) and ``t`` the tolerance: 1e-9 for float64, 1e-4 for float32, 2e-2 for float16, 8e-2
  for bfloat16, 0.3 for float8. What is computed in a coarser dtype inside, or quantized, is held to that one's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]

TOLERANCES: Final = {
    ir.DataType.DOUBLE: 1e-9,
    ir.DataType.COMPLEX128: 1e-9,
    ir.DataType.FLOAT: 1e-4,
    ir.DataType.COMPLEX64: 1e-4,
    ir.DataType.FLOAT16: 2e-2,
    ir.DataType.BFLOAT16: 8e-2,
    ir.DataType.FLOAT8E4M3FN: 0.3,
    ir.DataType.FLOAT8E4M3FNUZ: 0.3,
    ir.DataType.FLOAT8E5M2: 0.3,
    ir.DataType.FLOAT8E5M2FNUZ: 0.3,
}
_NAMES = {dtype.name.lower(): dtype for dtype in TOLERANCES}
_QUANTIZING = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One output on the input set where it differs most.

    Attributes:
        name: The output's name.
        worst: The greatest error relative to the scale of the output: 0 is equal, infinity is not comparable.
        tolerance: What it may be.
        agrees: Whether it is within the tolerance.
        detail: What differs, in words; empty where it agrees.
    """

    name: str
    worst: float = 0.0
    tolerance: float = 0.0
    agrees: bool = True
    detail: str = ""


def worst_of(rows: list[OutputRow], name: str) -> OutputRow:
    """The row that disagrees most."""
    return max(rows, key=lambda row: (not row.agrees, row.worst), default=OutputRow(name))


def coarsest_tolerance(model: ir.Model) -> float:
    """The tolerance of the coarsest dtype that the model computes in: its outputs cannot promise more.

    A step of quantization may go the other way after a rounding: that is float16's.
    """
    found = TOLERANCES[ir.DataType.DOUBLE]
    for node in model.graph.all_nodes():
        if node.op_type in _QUANTIZING:
            found = max(found, TOLERANCES[ir.DataType.FLOAT16])
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.dtype in TOLERANCES:
                found = max(found, TOLERANCES[value.dtype])
    return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """How outputs are compared.

    Attributes:
        tolerance: The least tolerance of floats.
        contents: Whether contents are compared, or, of a random model, only dtypes and shapes.
    """

    tolerance: float = 0.0
    contents: bool = True

    def of(self, name: str, type_: str, expected: Any, got: Any) -> OutputRow:
        """Compare two outputs: arrays (bfloat16 and float8 as their bits), lists, dicts or None.

        Args:
            name: The output's name.
            type_: Its type in ONNX's spelling.
            expected: What the original gave.
            got: What the result gave.
        """
        if type(expected) is not type(got):
            return _incomparable(name, "only one of the two is there")
        if isinstance(expected, list):
            return self._sequences(name, type_, expected, got)
        if isinstance(expected, dict):
            return self._maps(name, expected, got)
        return OutputRow(name) if expected is None else self._arrays(name, type_, expected, got)

    def _sequences(self, name: str, type_: str, expected: list[Any], got: list[Any]) -> OutputRow:
        if len(expected) != len(got):
            return _incomparable(name, f"a sequence of {len(got)} instead of {len(expected)}")
        inner = type_.removeprefix("optional(").removeprefix("seq(")
        return worst_of([self.of(name, inner, one, other) for one, other in zip(expected, got, strict=True)], name)

    def _maps(self, name: str, expected: dict[Any, Any], got: dict[Any, Any]) -> OutputRow:
        if expected.keys() != got.keys():
            return _incomparable(name, "the keys of the map differ")
        values = [np.array([one[key] for key in expected]) for one in (expected, got)]
        return self._arrays(name, "float" if values[0].dtype.kind == "f" else "", *values)

    def _arrays(self, name: str, type_: str, expected: Array, got: Array) -> OutputRow:
        if expected.dtype != got.dtype or expected.shape != got.shape:
            return _incomparable(
                name, f"{got.dtype}{list(got.shape)} instead of {expected.dtype}{list(expected.shape)}"
            )
        if not self.contents or expected.size == 0:
            return OutputRow(name)
        dtype = _NAMES.get(type_.removeprefix("optional(").removeprefix("tensor(").rstrip(")"))
        if dtype is None:
            return _exact(name, np.atleast_1d(expected), np.atleast_1d(got))
        tolerance = max(self.tolerance, TOLERANCES[dtype])
        return _floats(name, _numbers(expected, dtype), _numbers(got, dtype), tolerance)


def _incomparable(name: str, detail: str) -> OutputRow:
    return OutputRow(name, math.inf, 0.0, False, detail)


def _numbers(array: Array, dtype: ir.DataType) -> Array:
    """Numbers of double precision, of at least one dimension; bits are read as what they stand for."""
    array = np.atleast_1d(array)
    numbers = array.view(dtype.numpy()) if array.dtype.kind == "u" else array
    return numbers.astype(np.complex128 if numbers.dtype.kind == "c" else np.float64)


def _first(mask: Array) -> tuple[int, ...]:
    return tuple(int(one) for one in np.argwhere(mask)[0])


def _exact(name: str, expected: Array, got: Array) -> OutputRow:
    different = np.asarray(expected != got)
    if not different.any():
        return OutputRow(name)
    where = _first(different)
    many = f"{int(different.sum())} of {expected.size} elements differ"
    return _incomparable(name, f"{many}, the first at {list(where)}: {got[where]} instead of {expected[where]}")


def _floats(name: str, expected: Array, got: Array, tolerance: float) -> OutputRow:
    finite = np.isfinite(expected)
    alike = np.where(finite, np.isfinite(got), (expected == got) | (np.isnan(expected) & np.isnan(got)))
    if not alike.all():
        where = _first(~alike)
        return _incomparable(name, f"{got[where]} instead of {expected[where]} at {list(where)}")
    if not finite.any():
        return OutputRow(name, 0.0, tolerance)
    sizes = np.abs(np.where(finite, expected, 0))
    most = float(sizes.max()) or 1.0
    scale = most * float(np.sqrt(np.sum((sizes / most) ** 2) / finite.sum())) or 1.0
    errors = np.abs(np.where(finite, got, 0) - np.where(finite, expected, 0)) / np.maximum(scale, sizes)
    worst = float(errors.max())
    if worst <= tolerance:
        return OutputRow(name, worst, tolerance)
    where = _first(errors == worst)
    detail = f"{got[where]} instead of {expected[where]} at {list(where)}"
    allowed = f"an error of {worst:.2g} of the output's scale, where {tolerance:.2g} is allowed"
    return OutputRow(name, worst, tolerance, False, f"{detail}: {allowed}")


__all__ = ["TOLERANCES", "Comparison", "OutputRow", "coarsest_tolerance", "worst_of"]
