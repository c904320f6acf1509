"""Ops that move, repeat, cut and join."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Final

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import pays_from
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Dim,
    Refusal,
    array_of,
    attribute,
    inputs,
    integers,
    is_constant,
    is_never_zero,
    need,
    need_known,
    opset,
    optional,
    rank,
    shape_of,
)
from ortopt.semantics.opset_changes import (
    BOUNDS_ARE_INPUTS_FROM,
    PADS_ARE_AN_INPUT_FROM,
    REGION_IS_AN_INPUT_FROM,
    SCALES_ARE_AN_INPUT_FROM,
)
from ortopt.transpose.layout import Perm, inverse, normal, reordered, with_axes, without_axes
from ortopt.transpose.plan import (
    SMALL_NODE,
    At,
    Operands,
    Plan,
    axis_of,
    by_axis,
    follows,
    follows_with,
    handles,
    need_data,
    rearranged,
    rebuilt,
    typical_size,
)
from ortopt.views.emission import COPY, INFER, target_of

SINGLE: Final = Form("", "Gather", "of one more number that lies alone")
"""T5's table of relative positions, [32, heads], is read more slowly along its second axis."""

MAX_SINGLE_BITS: Final = 64
"""Numbers that a Transpose moves by loads and stores, and a Gather by a copy of memory each."""

LARGE_SIZE: Final = 128
"""What a dimension that is not known counts at least where a gain grows with it."""


@handles("Concat", "Scatter", "ScatterElements")
def all_along_an_axis(node: ir.Node, at: At) -> Plan:
    """All operands take the layout; the axis follows."""
    axis = axis_of(node, at)
    layouts = (at.layout,) * len(node.inputs)
    return Plan(layouts, (at.layout,), lambda operands: rebuilt(node, operands.values, axis=axis))


@handles("GatherElements")
def gather_elements(node: ir.Node, at: At) -> Plan:
    """All operands take the layout, but what is taken along the last axis still is: a row lies in one place."""
    last = len(at.layout) - 1
    is_last = ops.OneAxis(node).axis_of(len(at.layout)) == last
    need(not is_last or axis_of(node, at) == last, "along another axis elements lie far apart", node)
    return all_along_an_axis(node, at)


@handles("LpNormalization", "Split", "TopK")
def along_an_axis(node: ir.Node, at: At) -> Plan:
    """The data and all results take the layout; the axis follows."""
    return follows(node, at, axis=axis_of(node, at))


@handles("Gather")
def gather(node: ir.Node, at: At) -> Plan:
    """The axis of the data becomes the axes of the indices, at its place in the other layout."""
    need_data(node, at)
    data, indices = inputs(node, 2)
    count = rank(indices)
    axis = ops.OneAxis(node).axis_of(rank(data))
    block = range(axis, axis + count)
    if at.is_output:
        places = tuple(at.layout[at_block] for at_block in block)
        need(not places or places == tuple(range(places[0], places[0] + count)), "the indices' axes part", node)
        layout = _joined(at.layout, axis, count)
        output = normal(at.layout)
    else:
        layout = at.layout
        output = normal(_spread(layout, axis, count))
    return Plan(
        (normal(layout), *(None for _ in node.inputs[1:])),
        (output,),
        lambda operands: rebuilt(node, operands.values, axis=layout[axis]),
        _more_copies(data, shape_of(indices), axis, layout) * pays_from(node, SINGLE, "bytes"),
    )


def _more_copies(data: ir.Value, indices: Sequence[Dim] | None, axis: int, layout: Perm) -> int:
    """How many single numbers a Gather copies in another layout of the data, beyond the blocks that it copies now."""
    shape = shape_of(data)
    if shape is None or indices is None or data.dtype in (None, ir.DataType.STRING):
        return 0
    inside = [dim for place, dim in enumerate(shape) if layout[place] > layout[axis]]
    if math.prod(map(typical_size, inside)) * data.dtype.bitwidth > MAX_SINGLE_BITS:
        return 0  # such blocks are what a Transpose copies, too
    now = math.prod(map(_large_size, shape[:axis]))
    then = math.prod(_large_size(dim) for place, dim in enumerate(shape) if layout[place] < layout[axis])
    return max(then - now, 0) * math.prod(map(_large_size, indices))


def _large_size(dim: Dim) -> int:
    """A dimension; what is open in it counts 128: the more single numbers, the more a Transpose gains."""
    return typical_size(dim, LARGE_SIZE)


def _spread(layout: Perm, axis: int, count: int) -> Perm:
    """A layout with `count` axes in order where one stands."""
    pivot = layout[axis]
    moved = [to + (count - 1 if to > pivot else 0) for to in layout]
    return (*moved[:axis], *range(pivot, pivot + count), *moved[axis + 1 :])


def _joined(layout: Perm, axis: int, count: int) -> Perm:
    """A layout with one axis where `count` stand in order."""
    if not count:
        return with_axes(layout, (axis,))
    return without_axes(layout, range(axis + 1, axis + count))


@handles("Slice")
def slice_axes(node: ir.Node, at: At) -> Plan:
    """Axes follow; where none are named they are the first ones."""
    new_axes = [at.layout[axis] for axis in ops.Slice(node).axes]
    if opset(node) < BOUNDS_ARE_INPUTS_FROM["Slice"]:
        return follows(node, at, axes=new_axes)
    dtype = ir.DataType.INT64
    if len(node.inputs) > 1 and node.inputs[1] is not None and node.inputs[1].dtype is not None:
        dtype = node.inputs[1].dtype
    return follows_with(node, at, 3, lambda: constant(new_axes, dtype))


def _checked(node: ir.Node, axes: Sequence[int], of: int) -> tuple[int, ...]:
    need(all(-of <= axis < of for axis in axes), "the axis is out of range", node)
    return tuple(axis % of for axis in axes)


@handles("Pad")
def pad(node: ir.Node, at: At) -> Plan:
    """Paddings follow, before and after; where axes are named, only those do."""
    of = len(at.layout)
    back = _order(at.layout)
    both = (*back, *(axis + of for axis in back))
    if opset(node) < PADS_ARE_AN_INPUT_FROM["Pad"]:
        pads = ops.Pad(node).amounts
        need(len(pads) == 2 * of, "the paddings are not known", node)
        return follows(node, at, pads=tuple(pads[place] for place in both))
    axes = optional(node, 3)
    if axes is None:
        widths = inputs(node, 2)[1]
        return follows_with(node, at, 1, lambda: rearranged(widths, both))
    kind = axes.dtype
    new_axes = [at.layout[axis] for axis in _checked(node, integers(axes), of)]
    return follows_with(node, at, 3, lambda: constant(new_axes, kind))


@handles("Tile")
def tile(node: ir.Node, at: At) -> Plan:
    """Repeats follow."""
    repeats = inputs(node, 2)[1]
    return follows_with(node, at, 1, lambda: by_axis(repeats, at.layout))


@handles("Expand")
def expand(node: ir.Node, at: At) -> Plan:
    """The target follows; the operand has its rank."""
    data, target = inputs(node, 2)
    of = rank(data)
    need(of == len(at.layout), "the operand has a lower rank", node)
    shape = shape_of(target)
    if shape is None or len(shape) != 1 or not isinstance(shape[0], int) or shape[0] > of:
        raise Refusal("the rank of the result is unknown", node)
    missing = of - shape[0]
    need(not missing or is_constant(target), "the target has fewer axes", node)

    def full() -> ir.Value:
        return constant([1] * missing + list(integers(target)), target.dtype) if missing else target

    return follows_with(node, at, 1, lambda: by_axis(full(), at.layout))


@handles("Shape")
def shape(node: ir.Node, at: At) -> Plan:
    """``Shape(Transpose(x))`` is ``Gather(Shape(x), perm)``."""
    need(not at.is_output, "it is a list of sizes", node)
    of = len(at.layout)
    start, end = attribute(node, "start", 0), attribute(node, "end", of)
    picked = list(at.layout[start:end])

    def build(operands: Operands) -> Sequence[ir.Value]:
        (whole,) = rebuilt(node, operands.values, start=None, end=None)
        return ir.node("Gather", [whole, constant(picked)], attributes={"axis": 0}).outputs

    return Plan((at.layout,), (None,), build, SMALL_NODE)


@handles("Size")
def size(node: ir.Node, at: At) -> Plan:
    """The number of elements is the same in any layout."""
    need(not at.is_output, "it is a number", node)
    return Plan((at.layout,), (None,), lambda operands: rebuilt(node, operands.values))


@handles("Resize", "Upsample")
def resize(node: ir.Node, at: At) -> Plan:
    """Scales or sizes follow; what interpolates keeps the layout that kernels have: the resized axes last."""
    of = len(at.layout)
    mode = attribute(node, "mode", "nearest")
    need(
        attribute(node, "coordinate_transformation_mode", "") != "tf_crop_and_resize", "Resize crops by a region", node
    )
    if node.op_type == "Upsample" and opset(node) < SCALES_ARE_AN_INPUT_FROM["Upsample"]:
        return _upsample_by_attribute(node, at)
    vectors = [place for place, value in enumerate(node.inputs) if place and value is not None and not _empty(value)]
    if opset(node) >= REGION_IS_AN_INPUT_FROM["Resize"] and 1 in vectors:
        vectors.remove(1)  # a region that only tf_crop_and_resize looks at
    need(len(vectors) == 1, "the scales are not known", node)
    (vector,) = vectors
    value = need_known(optional(node, vector), "the scales are not known", node)
    if ops.Resize(node).names_axes:
        axes = ops.Resize(node).axes
        _check_kernel(node, mode, axes, at.layout)
        return follows(node, at, axes=tuple(at.layout[axis] for axis in axes))
    if mode != "nearest":
        _check_kernel(node, mode, _resized(node, value, sizes=vector == 3), at.layout)
    dims = shape_of(value)
    need(dims is not None and len(dims) == 1 and dims[0] == of, "the scales are not known", node)
    return follows_with(node, at, vector, lambda: _moved(value, at.layout))


def _upsample_by_attribute(node: ir.Node, at: At) -> Plan:
    """An Upsample whose scales are an attribute: they follow."""
    of = len(at.layout)
    scales: tuple[float, ...] = attribute(node, "scales", ())
    need(len(scales) == of, "the scales are not known", node)
    moved = ir.AttrFloat32s("scales", [scales[place] for place in _order(at.layout)])
    resized = [place for place in range(of) if scales[place] != 1]
    _check_kernel(node, attribute(node, "mode", "nearest"), resized, at.layout)

    def build(operands: Operands) -> Sequence[ir.Value]:
        outputs = rebuilt(node, operands.values, scales=None)
        upsample = outputs[0].producer()
        assert upsample is not None
        upsample.attributes["scales"] = moved
        return outputs

    return Plan((at.layout,), (at.layout,), build)


def _order(layout: Perm) -> Perm:
    back = inverse(layout)
    assert back is not None
    return back


def _moved(value: ir.Value, layout: Perm) -> ir.Value:
    if value.dtype == ir.DataType.FLOAT and is_constant(value):
        return constant(array_of(value)[list(_order(layout))])
    return by_axis(value, layout)


def _empty(value: ir.Value) -> bool:
    dims = shape_of(value)
    return dims is not None and len(dims) == 1 and dims[0] == 0


def _resized(node: ir.Node, value: ir.Value, *, sizes: bool) -> list[int]:
    """The axes that a node resizes, as far as that is known."""
    content = array_of(value).reshape(-1)
    if not sizes:
        return [axis for axis, scale in enumerate(content) if scale != 1]
    (data,) = inputs(node, 1)
    dims = shape_of(data) or ()
    need(len(dims) == len(content), "the shape is unknown", data)
    return [axis for axis, (to, dim) in enumerate(zip(content, dims, strict=True)) if int(to) != dim]


def _check_kernel(node: ir.Node, mode: str, axes: Sequence[int], layout: Perm) -> None:
    of = len(layout)
    last = sorted(layout[axis] for axis in axes) == list(range(of - len(axes), of))
    kept = all(layout[a] < layout[b] for a, b in itertools.pairwise(sorted(axes)))
    need(mode == "nearest" or (last and kept), "the resized axes would not be the last ones", node)


@handles("Reshape", "Flatten")
def reshape(node: ir.Node, at: At) -> Plan:
    """Groups of axes that are split or joined move as wholes, as far as sizes prove it."""
    need_data(node, at)
    (data,) = inputs(node, 1)
    before, after = shape_of(data), shape_of(node.outputs[0])
    if before is None or after is None:
        raise Refusal("the shape is unknown", node)
    need(0 not in before and 0 not in after, "a dimension is 0", node)
    groups = _groups(before, after)
    need(bool(groups), "the axes that are split or joined are not proven", node)
    own, other = (1, 0) if at.is_output else (0, 1)
    layout = {own: at.layout, other: _carried(node, groups, own, at.layout)}
    wanted = reordered_dims(after, layout[1])
    source = reordered_dims(before, layout[0])
    target = _target(node, source, wanted)

    def build(operands: Operands) -> Sequence[ir.Value]:
        return rebuilt(node, [operands.values[0], constant(target)], op_type="Reshape", allowzero=None, axis=None)

    return Plan((normal(layout[0]), *(None for _ in node.inputs[1:])), (normal(layout[1]),), build)


def reordered_dims(dims: Sequence[Dim], layout: Perm) -> list[Dim]:
    """The dimensions of what a value is the transposed of."""
    places = reordered(range(len(dims)), layout)
    return [dims[place] for place in places]


Group = tuple[tuple[int, ...], tuple[int, ...]]


def _groups(before: Sequence[Dim], after: Sequence[Dim]) -> list[Group]:
    """The smallest runs of axes with equal sizes on both sides; none where that is not proven."""
    groups: list[Group] = []
    i = j = 0
    while i < len(before) and j < len(after):
        found = _first_equal(before, i, after, j)
        if found is None:
            return []
        groups.append((tuple(range(i, found[0])), tuple(range(j, found[1]))))
        i, j = found
    if any(dim != 1 for dim in (*before[i:], *after[j:])) or not groups:
        return []
    last = groups[-1]
    groups[-1] = ((*last[0], *range(i, len(before))), (*last[1], *range(j, len(after))))
    return groups


def _first_equal(before: Sequence[Dim], i: int, after: Sequence[Dim], j: int) -> tuple[int, int] | None:
    for length in range(2, len(before) - i + len(after) - j + 1):
        for a in range(1, length):
            b = length - a
            if i + a > len(before) or j + b > len(after):
                continue
            if symbolic.equal(symbolic.product(before[i : i + a]), symbolic.product(after[j : j + b])):
                return i + a, j + b
    return None


def _carried(node: ir.Node, groups: Sequence[Group], own: int, layout: Perm) -> Perm:
    """The layout of the other side of a Reshape."""
    starts: list[int] = []
    for group in groups:
        places = [layout[axis] for axis in group[own]]
        need(places == list(range(places[0], places[0] + len(places))), "axes that belong together would part", node)
        starts.append(places[0])
    other = 1 - own
    found = [0] * sum(len(group[other]) for group in groups)
    place = 0
    for number in sorted(range(len(groups)), key=starts.__getitem__):
        for axis in groups[number][other]:
            found[axis] = place
            place += 1
    return tuple(found)


def _target(node: ir.Node, source: Sequence[Dim], wanted: Sequence[Dim]) -> list[int]:
    target = target_of(source, wanted)
    need(target.count(INFER) <= 1, "two dimensions of the target are unknown", node)
    taken = [dim for dim, entry in zip(wanted, target, strict=True) if entry == COPY]
    certain = INFER not in target or all(is_never_zero(dim, node) for dim in taken)
    need(certain, "beside a dimension of 0, another would be unknown", node)
    return target
