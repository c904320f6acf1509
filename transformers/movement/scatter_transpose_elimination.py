"""An assignment along an inner axis, as exporters write ``cache[:, :, positions] = rows``, needs no moved axes.

ScatterND names places from the first axis on, so exporters bring the axis to the front and back again: the whole cache
of a decoder is moved twice to write a row. With the places of the axes before it, ScatterND writes where the rows are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Dim,
    dims,
    inputs,
    is_constant,
    is_used_once,
    need,
    opset,
    producer,
)
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule

SHAPE_OF_A_PART = 15
"""The first version of Shape that gives a part of the shape."""


class ScatterTransposeElimination(RewriteRule[Match]):
    """``Transpose⁻¹(ScatterND(Transpose(x), i, u))`` → ``ScatterND(x, (…, i), Transpose⁻¹(u))``."""

    roots = ("Transpose",)
    after = ("scatter_concat_conversion", "scatter_elimination", "transpose_merging")
    opsets = (SHAPE_OF_A_PART, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Match:
        """A scatter of whole rows along one axis, which a Transpose brings to the front and the root back."""
        scatter = producer(inputs(root, 1)[0], "ScatterND")
        moved, positions, updates = inputs(scatter, 3)
        need(is_used_once(scatter.outputs[0]), "others use the result with moved axes", scatter)
        front = producer(moved, "Transpose")
        need(is_used_once(moved), "others use the tensor with moved axes", front)
        order = ops.Transpose(front).order
        need(ops.Transpose(root).order == _inverse(order), "the axes do not go back to where they were", root, front)
        need(dims(positions, 2)[1] == 1, "the indices name more than one axis", positions)
        need(not is_constant(positions), "the indices are constants, which other passes read as a part", positions)
        (data,) = inputs(front, 1)
        shape, axis, version = dims(data, len(order)), order[0], opset(root)

        def build() -> ir.Node:
            indices = _places(data, shape[:axis], positions, version) if axis else positions
            back = ir.node("Transpose", [updates], {"perm": _inverse(order)}).outputs[0]
            return ir.Node("", "ScatterND", [data, indices, back], list(scatter.attributes.values()))

        return Match((root, scatter, front), build)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    """The order that takes an order back."""
    return tuple(int(place) for place in np.argsort(order))


def _places(data: ir.Value, before: Sequence[Dim], positions: ir.Value, version: int) -> ir.Value:
    """The indices of all elements of the axes before one, and of the positions along it: [D, …, S, axis + 1]."""
    axis = len(before)
    positions = ops.squeezed(positions, (1,), version)
    sizes = [_size(data, at) for at in range(axis)]
    count = ir.node("Shape", [positions])
    shape = ir.node("Concat", [*sizes, count.outputs[0]], {"axis": 0}).outputs[0]
    counts = [_count(dim, size, axis - at, version) for at, (dim, size) in enumerate(zip(before, sizes, strict=True))]
    parts = []
    for part in (*counts, positions):
        spread = ir.node("Expand", [part, shape])
        parts.append(ops.unsqueezed(spread.outputs[0], (axis + 1,), version))
    return ir.node("Concat", parts, {"axis": axis + 1}).outputs[0]


def _size(data: ir.Value, axis: int) -> ir.Value:
    """The size of an axis, as a vector of one element."""
    return ir.node("Shape", [data], {"start": axis, "end": axis + 1}).outputs[0]


def _count(dim: Dim, size: ir.Value, behind: int, version: int) -> ir.Value:
    """The numbers from 0 to a size, with so many axes of size 1 behind them."""
    axes = tuple(range(1, behind + 1))
    if isinstance(dim, int):
        return constant(np.arange(dim, dtype=np.int64).reshape(-1, *(1 for _ in axes)))
    numbers = ir.node("Range", [constant(0), ops.squeezed(size, (0,), version), constant(1)])
    return ops.unsqueezed(numbers.outputs[0], axes, version)
