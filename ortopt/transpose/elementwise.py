"""Ops that treat each element alike, with or without broadcasting."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph.match import rank, shape_of
from ortopt.semantics.op_traits import BROADCASTING, BROADCASTING_ONE_WAY, UNARY, UNARY_WITH_PARAMETERS
from ortopt.transpose.layout import Perm, inverse, normal
from ortopt.transpose.plan import SMALL_NODE, At, Demand, Lift, Plan, follows, handles, is_one, rebuilt


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
    return Plan(demands, (perm,), lambda operands: rebuilt(node, operands.values), lifts * SMALL_NODE)


def demand_of(value: ir.Value, perm: Perm) -> Demand:
    """What an operand must become where the result of its broadcast has another layout.

    Args:
        value: An operand, of at most the result's rank.
        perm: The result's layout relative to the result that is wanted.
    """
    shape = shape_of(value)
    assert shape is not None
    own = len(shape)
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
