"""Outputs side by side: what agrees, what differs, by how much.

Dtype and shape must be the same; integers, booleans and strings too. Floats agree where

- NaN stands where NaN stands, and each infinity where the same infinity stands, and
- elsewhere ``|got - expected| <= t * max(scale, |expected|)``, ``scale`` being the root mean square of the output's
  finite numbers (1 where all are 0) and ``t`` the tolerance: 1e-9 for float64, 1e-4 for float32, 2e-2 for float16, 8e-2
  for bfloat16, 0.3 for float8. What is computed from something of a coarser dtype, or quantized, is held to that
  one's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from ortopt.graph import scope
from ortopt.semantics import subgraphs

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
_QUANTIZING: Final = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"})
_DTYPES: Final = frozenset({"to", "dtype", "output_dtype"})
_SHAPES: Final = frozenset({"Shape", "Size"})
"""Ops whose results do not depend on how their input was rounded."""


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


def tolerances(model: ir.Model) -> dict[str, float]:
    """For each output, the tolerance of the coarsest dtype among all that it is computed from.

    A coarse dtype comes in by an input, a constant or a Cast, and stays in all that depends on it: no types need to be
    known in between. A step of quantization may go the other way after a rounding: that is float16's. Linear in the
    nodes.
    """
    functions = _FunctionTolerances(model)
    known: dict[ir.Value, float] = {}

    def of(value: ir.Value) -> float:
        return known[value] if value in known else _of_type(value.dtype)

    for node in model.graph:
        coarsest = functions.of_node(node)
        if node.op_type not in _SHAPES or node.domain:
            for one in (node, *_inside(node)):
                for value in one.inputs:
                    coarsest = max(coarsest, of(value)) if value is not None else coarsest
        for value in node.outputs:
            known[value] = coarsest
    return {value.name or "": of(value) for value in model.graph.outputs}


def _inside(node: ir.Node) -> list[ir.Node]:
    """The nodes of a node's subgraphs, at any depth."""
    if not node.attributes:
        return []
    return [one for held in subgraphs(node) for graph in scope.below(held) for one in graph]


class _FunctionTolerances:
    """What nodes bring in by themselves: by their attributes, their subgraphs and the functions that they call."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._known: dict[ir.OperatorIdentifier, float] = {}

    def of_node(self, node: ir.Node) -> float:
        """The greatest tolerance that a node brings in."""
        found = _own(node)
        pending = [graph for held in subgraphs(node) for graph in scope.below(held)]
        called = [node.op_identifier()] if self._functions else []
        seen: set[ir.OperatorIdentifier] = set()
        while pending or called:
            if not pending:
                identifier = called.pop()
                if identifier in seen or identifier not in self._functions:
                    continue
                seen.add(identifier)
                if identifier in self._known:
                    found = max(found, self._known[identifier])
                    continue
                pending.extend(scope.below(self._functions[identifier].graph))
                continue
            graph = pending.pop()
            found = max(found, *(_of_type(value.dtype) for value in graph.initializers.values()), 0.0)
            for inner in graph:
                found = max(found, _own(inner))
                if self._functions:
                    called.append(inner.op_identifier())
        if node.op_identifier() in self._functions:
            self._known[node.op_identifier()] = found
        return found


def _of_type(dtype: ir.DataType | None) -> float:
    return 0.0 if dtype is None else TOLERANCES.get(dtype, 0.0)


def _own(node: ir.Node) -> float:
    """The tolerance of what a node makes, whatever it is given."""
    found = 0.0
    if node.op_type in _QUANTIZING or node.op_type.startswith("QLinear"):
        found = TOLERANCES[ir.DataType.FLOAT16]
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        if name in _DTYPES and attribute.type == ir.AttributeType.INT:
            number = attribute.as_int()
            found = max(found, *(tolerance for dtype, tolerance in TOLERANCES.items() if dtype.value == number), 0.0)
        elif attribute.type == ir.AttributeType.TENSOR:
            found = max(found, _of_type(attribute.as_tensor().dtype))
    return max(found, *(_of_type(value.dtype) for value in node.outputs), 0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How outputs are compared.

    Attributes:
        tolerances: The least tolerance of an output's floats, by its name.
        contents: Whether contents are compared, or, of a random model, only dtypes and shapes.
    """

    tolerances: Mapping[str, float] = field(default_factory=dict)
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
        tolerance = max(self.tolerances.get(name, 0.0), TOLERANCES[dtype])
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


__all__ = ["TOLERANCES", "Comparison", "OutputRow", "tolerances", "worst_of"]
