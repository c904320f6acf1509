"""Ops along axes: reductions, normalizations, running sums, and those that add or drop axes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import inputs, integers, need, optional, rank
from ortopt.semantics.op_traits import REDUCTIONS
from ortopt.semantics.opset_changes import ONE_AXIS_FROM
from ortopt.transpose.layout import Perm, normal, with_axes, without_axes
from ortopt.transpose.plan import At, Plan, axes_by, follows, follows_with, handles, need_data, rebuilt


def _with(node: ir.Node, x: ir.Value | None, axes: Sequence[int]) -> Sequence[ir.Value]:
    if optional(node, 1) is not None:
        return rebuilt(node, [x, constant(list(axes))])
    return rebuilt(node, [x], axes=tuple(axes))


def _data(node: ir.Node) -> ir.Value:
    return inputs(node, 1)[0]


def _input_layout(at: At, axes: Sequence[int], *, keeps: bool) -> Perm:
    return with_axes(at.layout, axes) if at.is_output and not keeps else at.layout


@handles(*REDUCTIONS)
def reduction(node: ir.Node, at: At) -> Plan:
    """Axes follow the layout; without ``keepdims`` the axes that are left may even be in order."""
    need_data(node, at)
    of = rank(_data(node))
    reduce = ops.Reduce(node)
    keeps = reduce.keeps_axes
    if reduce.does_nothing:
        return follows(node, at)
    if not reduce.stated_axes:
        layout = _input_layout(at, range(of), keeps=keeps)
        output = normal(layout) if keeps else None
        return Plan((layout, *_none(node)), (output,), lambda operands: rebuilt(node, operands.values))
    return _dropping(node, at, reduce.axes, keeps=keeps)


def _none(node: ir.Node) -> tuple[None, ...]:
    return (None,) * (len(node.inputs) - 1)


def _dropping(node: ir.Node, at: At, axes: Sequence[int], *, keeps: bool) -> Plan:
    layout = _input_layout(at, axes, keeps=keeps)
    output = normal(layout if keeps else without_axes(layout, axes))
    new_axes = axes_by(axes, layout)
    return Plan((layout, *_none(node)), (output,), lambda operands: _with(node, operands.values[0], new_axes))


@handles("Squeeze")
def squeeze(node: ir.Node, at: At) -> Plan:
    """The axes that are left keep their order, or take another."""
    need_data(node, at)
    return _dropping(node, at, ops.Squeeze(node).axes, keeps=False)


@handles("Unsqueeze")
def unsqueeze(node: ir.Node, at: At) -> Plan:
    """New axes stay where they are, unless the layout comes from below."""
    need_data(node, at)
    axes = ops.Unsqueeze(node).axes
    layout = at.layout if at.is_output else with_axes(at.layout, axes)
    new_axes = axes_by(axes, layout)
    return Plan(
        (normal(without_axes(layout, axes)), *_none(node)),
        (layout,),
        lambda operands: _with(node, operands.values[0], new_axes),
    )


@handles("ArgMax", "ArgMin")
def arg_extremum(node: ir.Node, at: At) -> Plan:
    """As a reduction of one axis."""
    keeps = ops.Reduce(node).keeps_axes
    axis = ops.OneAxis(node).axis_of(rank(_data(node)))
    layout = _input_layout(at, (axis,), keeps=keeps)
    output = normal(layout if keeps else without_axes(layout, (axis,)))
    return Plan((layout,), (output,), lambda operands: rebuilt(node, operands.values, axis=layout[axis]))


@handles(*ONE_AXIS_FROM)
def softmax(node: ir.Node, at: At) -> Plan:
    """The axis follows; before opset 13 it is the last one, or all after it are one with it.

    It does not leave the last place: over another axis, ONNX Runtime's kernel takes up to three times as long.
    """
    of = len(at.layout)
    flattens = ops.Softmax(node).flattens
    axis = ops.OneAxis(node).axis_of(of)
    new_axis = at.layout[axis]
    last = axis == new_axis == of - 1
    need(axis != of - 1 or last, f"{node.op_type} would no longer be over the last axis", node)
    need(not flattens or last, f"{node.op_type} flattens before opset {ONE_AXIS_FROM[node.op_type]}", node)
    return follows(node, at, axis=new_axis)


@handles("LayerNormalization", "RMSNormalization")
def layer_normalization(node: ir.Node, at: At) -> Plan:
    """The axes that are normalized, and so the scale's, stay; those before them may change."""
    need_data(node, at)
    of = len(at.layout)
    axis = ops.OneAxis(node).axis_of(of)
    stay = at.layout[axis:] == tuple(range(axis, of))
    need(stay, "the axes that are normalized would move", node)
    return follows(node, at, axis=axis)


@handles("InstanceNormalization")
def instance_normalization(node: ir.Node, at: At) -> Plan:
    """Batch and channel stay; the others are all normalized."""
    need_data(node, at)
    need(at.layout[:2] == (0, 1), "the channel would move", node)
    return follows(node, at)


@handles("CumSum")
def cumulative_sum(node: ir.Node, at: At) -> Plan:
    """The axis follows, where it is known."""
    (axis,) = integers(node.inputs[1])
    new_axis = at.layout[axis % len(at.layout)]
    return follows_with(node, at, 1, lambda: constant(new_axis))


@handles("Trilu")
def triangle(node: ir.Node, at: At) -> Plan:
    """The matrices stay; the axes before them may change."""
    need_data(node, at)
    of = len(at.layout)
    need(at.layout[-2:] == (of - 2, of - 1), "the matrices would be transposed", node)
    return follows(node, at)
