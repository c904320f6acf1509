"""A choice of turned nodes, built: new nodes, the transposes that are left, constants in their new layouts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from ortopt import ops, semantics
from ortopt.graph.edit import constant, discard, new_nodes
from ortopt.graph.match import inputs, integers, is_constant, is_used, need, opset, optional, rank
from ortopt.graph.order import after_what_they_read
from ortopt.graph.provenance import stands_for
from ortopt.options import MEGABYTE
from ortopt.semantics.op_traits import REDUCTIONS
from ortopt.semantics.opset_changes import ONE_AXIS_FROM
from ortopt.transpose.layout import Layout, Perm, compose, inverse, normal, with_axes, without_axes
from ortopt.transpose.matmul import in_place
from ortopt.transpose.plan import (
    At,
    Flexible,
    Lift,
    Operands,
    Plan,
    axes_by,
    follows,
    follows_with,
    handles,
    need_data,
    rebuilt,
)
from ortopt.transpose.region import Region, demanded_layout, layout_of


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


class Rearrangement:
    """Builds what stands for a region in which some nodes are turned; changes nothing.

    Args:
        region: The region.
        turned: Those of its nodes that work in the other layout.

    Attributes:
        members: The nodes that go, each with the plan of what comes.
    """

    def __init__(self, region: Region, turned: Collection[ir.Node]) -> None:
        self._region = region
        self._views = region.views
        self._turned = turned
        self._rebuilt: dict[ir.Value, ir.Value] = {}
        self._fetched: dict[tuple[ir.Value, Layout], ir.Value] = {}
        self._said: set[ir.Node] = set()
        self._lifted: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}
        self.members: dict[ir.Node, Plan] = {node: region.plans[node] for node in region.plans if node in turned}
        self.transposes = [node for root in region.roots for node in self._views.transposes(root)]
        self._demanded = {root: region.demanded(root, turned) for root in region.roots}
        for root in region.roots:
            for port in self._views.ports(root):
                if (
                    port.node is not None
                    and port.node not in self.members
                    and isinstance(region.demand(port, turned), Flexible)
                    and not self._is_there(root, inverse(port.perm))
                ):
                    self.members[port.node] = in_place(port.node)

    def replacements(self) -> dict[ir.Value, ir.Value]:
        """Old value to new value.

        Raises:
            Refusal: If something cannot be built after all; nothing is left behind.
        """
        result: dict[ir.Value, ir.Value] = {}
        try:
            result = self._replacements()
        finally:
            # What has been built and leads to no replacement (a member may be dead) must not count as a user.
            kept = set(new_nodes(result.values()))
            touched = dict.fromkeys(self._region.roots)
            for node in self.members:
                touched.update(dict.fromkeys(value for value in node.inputs if value is not None))
            discard(node for node in new_nodes(self._built()) if node not in kept)
            for value in touched:
                discard([use.node for use in value.uses() if use.node.graph is None and use.node not in kept])
        return result

    def _built(self) -> list[ir.Value]:
        return [*self._rebuilt.values(), *self._fetched.values(), *self._lifted.values()]

    def _replacements(self) -> dict[ir.Value, ir.Value]:
        for node in after_what_they_read(self.members, self.members, lambda value: self._views.of(value).root):
            self._build(node)
        replacements: dict[ir.Value, ir.Value] = {}
        for root in self._region.roots:
            for port in self._views.ports(root):
                if port.node in self.members:
                    continue
                new = self._fetch(root, inverse(port.perm))
                if new is not port.value:
                    replacements[port.value] = new
        for node in self.members:
            for value in node.outputs:
                if value in self._rebuilt and value not in self._region.roots and is_used(value):
                    replacements[value] = self._rebuilt[value]
        return self._with_own_outputs(replacements)

    def _with_own_outputs(self, replacements: dict[ir.Value, ir.Value]) -> dict[ir.Value, ir.Value]:
        """Give each graph output a new node of its own; outputs come last, so that names end with them."""
        inner = {old: new for old, new in replacements.items() if not old.is_graph_output()}
        taken: set[ir.Value] = set()
        for old, new in replacements.items():
            if not old.is_graph_output():
                continue
            producer = new.producer()
            own = new
            if new in taken or producer is None or producer.graph is not None:
                own = ir.node("Identity", [new]).outputs[0]
            taken.add(own)
            inner[old] = own
        return inner

    def _build(self, node: ir.Node) -> None:
        plan = self.members[node]
        values: list[ir.Value | None] = []
        swapped: list[bool] = []
        for value, demand in zip(node.inputs, plan.inputs, strict=True):
            if value is None:
                values.append(None)
                continue
            root, perm = self._views.of(value)
            if isinstance(demand, Flexible):
                there = self._is_there(root, inverse(perm))
                layout = inverse(perm) if there else self._supply(root)
                values.append(self._fetch(root, layout))
                swapped.append(not there)
                continue
            layout = layout_of(demand)
            if layout is None and root not in self._region.roots:
                operand = value
            else:
                operand = self._fetch(root, demanded_layout(perm, layout))
            values.append(self._lift(operand, demand.axes, node) if isinstance(demand, Lift) else operand)
        outputs = plan.build(Operands(values, tuple(swapped)))
        self._say_origin(outputs, (node,))
        self._rebuilt.update(zip(node.outputs, outputs, strict=False))

    def _say_origin(self, values: Iterable[ir.Value], origins: Sequence[ir.Node]) -> None:
        """Say of the nodes behind some values that are new, and of which nothing has been said, what they stand for."""
        pending = [value.producer() for value in values]
        while pending:
            new = pending.pop()
            if new is not None and new.graph is None and new not in self._said:
                self._said.add(stands_for(new, *origins))
                pending += [value.producer() for value in new.inputs if value is not None]

    # -- values in layouts --------------------------------------------------------------------------------------------

    def _supply(self, root: ir.Value) -> Layout:
        return self._region.supply(root, self._turned)

    def _is_there(self, root: ir.Value, layout: Layout) -> bool:
        """Whether a root is to be had in a layout without a Transpose for a node that can do without."""
        if is_constant(root):
            return layout is None
        return layout == self._supply(root) or layout in self._demanded.get(root, ())

    def _fetch(self, root: ir.Value, layout: Layout) -> ir.Value:
        """A root in a layout: ``u`` with ``root = Transpose(u, layout)``."""
        fetched = self._fetched.get((root, layout))
        if fetched is None:
            fetched = self._fetched[root, layout] = self._in_layout(root, layout)
        return fetched

    def _in_layout(self, root: ir.Value, layout: Layout) -> ir.Value:
        perm = inverse(layout)
        if is_constant(root):
            return root if perm is None else _transposed(root, perm)
        base = self._rebuilt.get(root)
        if base is None:
            for node in self._views.transposes(root):
                if node.inputs[0] is root and self._views.of(node.outputs[0]).perm == perm and perm is not None:
                    return node.outputs[0]
            base = root
        perm = compose(self._supply(root), perm)
        if perm is None:
            return base
        transposed = ir.node("Transpose", [base], attributes={"perm": perm}).outputs[0]
        self._say_origin([transposed], list(self._views.transposes(root)) or self.transposes)
        return transposed

    def _lift(self, operand: ir.Value, axes: tuple[int, ...], node: ir.Node) -> ir.Value:
        lifted = self._lifted.get((operand, axes))
        if lifted is None:
            lifted = self._lifted[operand, axes] = _unsqueezed(operand, axes, node)
        return lifted


def _content(value: ir.Value) -> ir.TensorProtocol:
    tensor = value.const_value if value.producer() is None else semantics.constant_tensor(value)
    assert tensor is not None
    return tensor


def _transposed(value: ir.Value, perm: tuple[int, ...]) -> ir.Value:
    """A constant in another layout; computed when it is written, if it is big."""
    tensor = _content(value)
    dims = tuple(int(dim) for dim in tensor.shape.numpy())
    shape = tuple(dims[axis] for axis in perm)
    return constant(_derived(tensor, shape, perm))


def _derived(tensor: ir.TensorProtocol, shape: tuple[int, ...], perm: tuple[int, ...] | None) -> ir.TensorProtocol:
    """A tensor with other dimensions, after a transposition."""

    def compute() -> ir.TensorProtocol:
        array = tensor.numpy()
        array = array if perm is None else array.transpose(perm)
        array = np.ascontiguousarray(array).reshape(shape)
        if tensor.dtype == ir.DataType.STRING:
            return ir.StringTensor(array, shape=ir.Shape(shape))
        return ir.Tensor(array, dtype=tensor.dtype)

    if tensor.nbytes <= MEGABYTE or tensor.dtype == ir.DataType.STRING:
        return compute()
    return ir.LazyTensor(compute, dtype=tensor.dtype, shape=ir.Shape(shape))


def _unsqueezed(value: ir.Value, axes: tuple[int, ...], node: ir.Node) -> ir.Value:
    tensor = value.const_value if value.producer() is None and value.graph is None else None
    if tensor is None and is_constant(value):
        tensor = _content(value)
    if tensor is not None:
        dims = [int(dim) for dim in tensor.shape.numpy()]
        for axis in axes:
            dims.insert(axis, 1)
        return constant(_derived(tensor, tuple(dims), None))
    return ops.unsqueezed(value, axes, opset(node))
