"""What is asked of a model in another precision: how large its values are, how far its outputs are off by slices."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.serialization.load import load
from ortopt.verification.comparison import Array

PREFIX: Final = "ortopt.range:"
"""What the names of such outputs begin with; the value's name follows."""


def with_ranges(model: ir.Model, names: Collection[str], token: CancellationToken = NEVER) -> ir.Model:
    """The copy.

    Args:
        model: The model; it is not changed.
        names: Names of values of its main graph; all of them are tensors of floats.
        token: Cancellation token.
    """
    copy = load(model, token, checked=False)
    graph = copy.graph
    for value in [value for node in graph for value in node.outputs if value.name in names]:
        size = ir.node("Abs", [value])
        largest = ir.node("ReduceMax", [size.outputs[0]], {"keepdims": 0})
        size.outputs[0].name, largest.outputs[0].name = f"{PREFIX}{value.name}:abs", f"{PREFIX}{value.name}"
        largest.outputs[0].type, largest.outputs[0].shape = value.type, ir.Shape([])
        graph.extend([size, largest])
        graph.outputs.append(largest.outputs[0])
    return copy


_FAINT: Final = 32
"""How many times the scale of the whole output that of a slice is, where it counts as noise beside it."""

_AXES: Final = 2
"""Leading axes whose indices tell slices apart: samples, and their channels or positions."""


def slice_error(expected: Any, got: Any) -> float:
    """The greatest error of an output, relative to the root mean square of the slice that it stands in.

    A slice is what has the same first two indices (the first, where there are two axes). One that is much fainter than
    the whole output is measured against that. Of integers and booleans, the share that differs.

    Args:
        expected: What it should be.
        got: What it is.

    Returns:
        0 where both are equal; infinity where they cannot be compared, or NaN or an infinity stands elsewhere.
    """
    if isinstance(expected, list) and isinstance(got, list):
        pairs = zip(expected, got, strict=False)
        return max((slice_error(*pair) for pair in pairs), default=0.0) if len(expected) == len(got) else math.inf
    if not isinstance(expected, np.ndarray) or not isinstance(got, np.ndarray):
        return 0.0 if type(expected) is type(got) else math.inf
    if expected.shape != got.shape:
        return math.inf
    if expected.size == 0:
        return 0.0
    if expected.dtype.kind != "f":
        return float(np.mean(expected != got))
    return _of_floats(np.atleast_1d(expected).astype(np.float64), np.atleast_1d(got).astype(np.float64))


def _of_floats(expected: Array, got: Array) -> float:
    finite = np.isfinite(expected)
    alike = np.where(finite, np.isfinite(got), (expected == got) | (np.isnan(expected) & np.isnan(got)))
    if not alike.all():
        return math.inf
    wanted = np.where(finite, expected, 0)
    differences = np.abs(np.where(finite, got, 0) - wanted)
    axes = tuple(range(min(_AXES, expected.ndim - 1), expected.ndim))
    scales = np.sqrt(np.mean(wanted**2, axis=axes, keepdims=True))
    whole = math.sqrt(float(np.mean(wanted**2)))
    scales = np.maximum(scales, whole / _FAINT) if whole else np.ones_like(scales)
    return float((differences / np.maximum(scales, np.abs(wanted))).max())
