"""Ops that treat each element alike: with or without broadcasting, or by scales, of an axis or in blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Final

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import Dim, attribute, inputs, need, opset, rank, shape_of
from ortopt.semantics.op_traits import BROADCASTING, BROADCASTING_ONE_WAY, UNARY, UNARY_WITH_PARAMETERS
from ortopt.transpose.layout import Perm, inverse, normal
from ortopt.transpose.plan import (
    SMALL_NODE,
    At,
    Demand,
    Lift,
    Plan,
    follows,
    handles,
    is_one,
    rebuilt,
    typical_size,
)

STRETCH: Final = 100
"""What it takes to begin a stretch of elements of a broadcast, in bytes of a Transpose: 10 ns, where each takes 0.1."""


@handles(*UNARY, *UNARY_WITH_PARAMETERS)
def unary(node: ir.Node, at: At) -> Plan:
    """``op(x, parameters…)``: the first input counts; a mask has the layout of the data."""
    return follows(node, at)


@handles(*BROADCASTING, *BROADCASTING_ONE_WAY)
def broadcasting(node: ir.Node, at: At) -> Plan:
    """Operands of the highest rank take the layout; those of a lower one get their missing axes, where that matters."""
    present = [value for value in node.inputs if value is not None]
    highest = max(rank(value) for value in present)
    lead = highest - len(at.layout)
    perm = (*range(lead), *(axis + lead for axis in at.layout))
    demands = tuple(None if value is None else demand_of(value, perm) for value in node.inputs)
    lifts = sum(isinstance(demand, Lift) for demand in demands)
    cost = lifts * SMALL_NODE + _more_stretches(present, perm) * STRETCH
    return Plan(demands, (perm,), lambda operands: rebuilt(node, operands.values), cost)


def _more_stretches(operands: Sequence[ir.Value], perm: Perm) -> int:
    """How many more stretches of elements a broadcast has in another layout.

    A stretch is what lies between two places where one of the operands begins to repeat, or ends: the last dimensions
    that each operand either has or lacks. [784, 3, 64] and [3, 64] have one for each of the 784, [64, 784, 3] and
    [64, 1, 3] one for each three elements.

    Args:
        operands: What is broadcast.
        perm: Where each axis of the result is in the other layout.
    """
    shapes = [shape_of(value) for value in operands]
    known = [(1,) * (len(perm) - len(shape)) + tuple(shape) for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return 0
    axes = [(_sizes(dims), tuple(dim == 1 for dim in dims)) for dims in zip(*known, strict=True)]
    return max(_stretches(axes[at] for at in sorted(range(len(perm)), key=perm.__getitem__)) - _stretches(axes), 0)


def _sizes(dims: Iterable[Dim]) -> int:
    """The size of an axis of the result."""
    return max(map(typical_size, dims))


def _stretches(axes: Iterable[tuple[int, tuple[bool, ...]]]) -> int:
    """How many stretches there are, from the size of each axis and which operands lack it."""
    groups = itertools.groupby((axis for axis in axes if axis[0] != 1), key=lambda axis: axis[1])
    sizes = [math.prod(size for size, _ in group) for _, group in groups]
    return math.prod(sizes[:-1])


def demand_of(value: ir.Value, perm: Perm) -> Demand:
    """What an operand must become where the result of its broadcast has another layout.

    Args:
        value: An operand, of at most the result's rank.
        perm: The result's layout relative to the result that is wanted.
    """
    own = rank(value)
    lead = len(perm) - own
    if is_one(value):
        return None
    if not lead:
        return normal(perm)
    if perm[:lead] == tuple(range(lead)):
        return normal(axis - lead for axis in perm[lead:])
    places = perm[lead:]
    order = sorted(range(own), key=places.__getitem__)
    first = min(places)
    axes = tuple(axis - first for axis in range(first, len(perm)) if axis not in places)
    layout = inverse(normal(order))
    return Lift(layout, axes) if axes else layout


@handles("QuantizeLinear", "DequantizeLinear")
def quantize_linear(node: ir.Node, at: At) -> Plan:
    """The axis of the scales follows; blocks of scales take the data's layout."""
    of = len(at.layout)
    own = rank(inputs(node, 2)[1])
    if own == 0:
        return follows(node, at)
    need(opset(node) >= 13, "scales have no axis before opset 13", node)
    axis = at.layout[ops.OneAxis(node).axis_of(of)]
    blocks = bool(attribute(node, "block_size", 0))
    need(own == of if blocks else own == 1, "the scales are of another rank", node)
    if not blocks:
        return follows(node, at, axis=axis)
    layouts = (at.layout,) * len(node.inputs)
    return Plan(layouts, (at.layout,), lambda operands: rebuilt(node, operands.values, axis=axis))


@handles("DynamicQuantizeLinear")
def dynamic(node: ir.Node, at: At) -> Plan:
    """The scale and the zero point are of the whole tensor, in any layout."""
    need(not at.is_output or at.position == 0, "it is a scale", node)
    return Plan((at.layout,), (at.layout, None, None), lambda operands: rebuilt(node, operands.values))
