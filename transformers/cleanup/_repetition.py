"""Values that repeat a smaller one along axes, as all images of a batch get the same embedding of positions.

What `narrowed` says of a value is the shape of the smaller one. It has the value's rank, and along each axis the
value's size, or 1: there the value repeats it, however often. An axis of a fixed size may be either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    Dim,
    Refusal,
    array_of,
    attribute,
    dims,
    dtype,
    inputs,
    integers,
    is_constant,
    need,
    need_fixed,
    need_known,
    opset,
    optional,
    plain_attributes,
    rank,
    same_dim,
    splat,
    static_dims,
)
from ortopt.semantics.op_traits import BROADCASTING, REDUCTIONS, UNARY
from ortopt.semantics.opset_changes import BROADCASTS_FROM

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[ir.Value, Shape]
"""The shapes of what is repeated, for values of which they are known."""

Built: TypeAlias = Mapping[ir.Value, ir.Value]
"""What is repeated, for values of which it has been built."""


class Narrow(Struct, frozen=True):
    """What a value repeats.

    Attributes:
        shape: Its shape.
        build: Builds it from what the operands repeat.
    """

    shape: Shape
    build: Callable[[Built], ir.Value]


Rule: TypeAlias = Callable[[ir.Node, Shapes], Narrow]

SOURCES: Final = frozenset({"ConstantOfShape", "Expand"})
"""Ops whose results repeat something even where no operand does."""


def narrowed(node: ir.Node, known: Shapes) -> Narrow:
    """What the one result of a node repeats.

    Args:
        node: A node of which an operand is in `known`, or one of `SOURCES`.
        known: The shapes of what its operands repeat; its other operands are constants.

    Raises:
        Refusal: It is not known to repeat anything, or of which shape.
    """
    need(node.domain == "" and len(node.outputs) == 1, "it has another domain, or several results", node)
    rule = _elementwise if node.op_type in UNARY | BROADCASTING else RULES.get(node.op_type)
    rule = need_known(rule, f"{node.op_type} may mix what is repeated", node)
    narrow = rule(node, known)
    full = dims(node.outputs[0], len(narrow.shape))
    sized = all(size in (1, dim) for size, dim in zip(narrow.shape, full, strict=True))
    need(sized, "its size is not known", node)
    return narrow


def _shape(value: ir.Value, known: Shapes) -> Shape:
    if value in known:
        return known[value]
    need(is_constant(value), "an operand is not the same for all", value)
    shape = static_dims(value)
    need(all(shape), "an operand is empty", value)
    return shape


def _copy(node: ir.Node, operands: Iterable[ir.Value | None]) -> ir.Value:
    """The same op for other operands."""
    return ir.Node(node.domain, node.op_type, list(operands), list(plain_attributes(node).values())).outputs[0]


def _reshaped(value: ir.Value, shape: Shape) -> ir.Value:
    return ir.node("Reshape", [value, constant(np.array(shape, np.int64))]).outputs[0]


def _in_full(value: ir.Value, axes: Iterable[int], known: Shapes) -> Narrow:
    """What a value repeats, but in full along some axes, whose sizes must be fixed."""
    own = _shape(value, known)
    full = list(own)
    for place in axes:
        dim = dims(value, len(own))[place]
        if not isinstance(dim, int) or dim == 0:
            raise Refusal("the size of an axis is not fixed", value)
        full[place] = dim
    return _widened(value, own, tuple(full))


def _widened(value: ir.Value, own: Shape, shape: Shape) -> Narrow:
    def build(built: Built) -> ir.Value:
        narrow = built.get(value, value)
        if shape == own:
            return narrow
        return ir.node("Expand", [narrow, constant(np.array(shape, np.int64))]).outputs[0]

    return Narrow(shape, build)


def _broadcast(*shapes: Shape) -> Shape:
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError as error:
        raise Refusal("the operands do not broadcast") from error


# -- elementwise ------------------------------------------------------------------------------------------------------


def _elementwise(node: ir.Node, known: Shapes) -> Narrow:
    need(opset(node) >= BROADCASTS_FROM, "an attribute says how its operands broadcast", node)
    operands = inputs(node, len(node.inputs))
    if node.op_type in DIVISIONS and dtype(operands[0]) not in FLOATS:
        need(is_constant(operands[1]), "it may divide by zero, for no image too", node)
        need(not np.isin(array_of(operands[1]), (0, -1)).any(), "it divides by zero, or by -1", node)
    shape = _broadcast(*(_shape(value, known) for value in operands))
    return Narrow(shape, lambda built: _copy(node, (built.get(value, value) for value in operands)))


# -- what repeats -----------------------------------------------------------------------------------------------------


def _constant_of_shape(node: ir.Node, _known: Shapes) -> Narrow:
    ones = (1,) * rank(node.outputs[0])
    return Narrow(ones, lambda _built: _copy(node, (constant(np.array(ones, np.int64)),)))


def _expand(node: ir.Node, known: Shapes) -> Narrow:
    x, _ = inputs(node, 2)
    own = _shape(x, known)
    shape = (1,) * (rank(node.outputs[0]) - len(own)) + own
    return Narrow(
        shape,
        lambda built: built.get(x, x) if shape == own else _reshaped(built.get(x, x), shape),
    )


# -- moving elements --------------------------------------------------------------------------------------------------


def _squeeze(node: ir.Node, known: Shapes) -> Narrow:
    """Of Squeeze and Unsqueeze."""
    x, places = node.inputs[0], ops.Axes(node).axes
    assert x is not None
    own = _shape(x, known)
    if node.op_type == "Unsqueeze":
        rest = iter(own)
        shape = tuple(1 if place in places else next(rest) for place in range(len(own) + len(places)))
    else:
        shape = tuple(size for place, size in enumerate(own) if place not in places)
        need(math.prod(shape) == math.prod(own), "an axis has more elements", node)
    return Narrow(shape, lambda built: _copy(node, (built.get(x, x), *node.inputs[1:])))


def _transpose(node: ir.Node, known: Shapes) -> Narrow:
    (x,) = inputs(node, 1)
    own = _shape(x, known)
    order = ops.Transpose(node).order
    return Narrow(tuple(own[place] for place in order), lambda built: _copy(node, (built.get(x, x),)))


def _reshape(node: ir.Node, known: Shapes) -> Narrow:
    """Of Reshape and Flatten: what is repeated is one number, or repeats along leading axes only, which stay."""
    (x,) = inputs(node, 1)
    own, old, new = _shape(x, known), dims(x), dims(node.outputs[0])
    if math.prod(own) == 1:
        shape: Shape = (1,) * len(new)
    else:
        kept = _leading(own, old)
        need(len(new) >= kept and all(map(same_dim, old[:kept], new)), "an axis along which it repeats changes", node)
        rest = tuple(dim for dim in new[kept:] if isinstance(dim, int))
        fits = len(rest) == len(new) - kept and math.prod(rest) == math.prod(own[kept:])
        need(fits, "its size is not known", node)
        shape = own[:kept] + rest
    return Narrow(shape, lambda built: _reshaped(built.get(x, x), shape))


def _leading(own: Shape, full: tuple[Dim, ...]) -> int:
    """So many leading axes hold all along which something repeats."""
    return max((place + 1 for place, dim in enumerate(full) if not same_dim(dim, own[place])), default=0)


def _slice(node: ir.Node, known: Shapes) -> Narrow:
    (x,) = inputs(node, 1)
    own = _shape(x, known)
    if math.prod(own) == 1:
        return Narrow(own, lambda built: built.get(x, x))
    bounds = ops.Slice(node).bounds
    full = _in_full(x, [cut.axis for cut in bounds], known)
    shape = list(full.shape)
    for place, *cut in bounds:
        first, end, step = (bound if isinstance(bound, int) else None for bound in cut)
        if first is None or end is None or not step:
            raise Refusal("a bound is no number", node)
        shape[place] = len(range(shape[place])[first:end:step])
    need(all(shape), "nothing is left", node)
    return Narrow(tuple(shape), lambda built: _copy(node, (full.build(built), *node.inputs[1:])))


def _gather(node: ir.Node, known: Shapes) -> Narrow:
    data, indices = inputs(node, 2)
    own = _shape(data, known)
    if math.prod(own) == 1:
        return _one_number(node, known)
    place = ops.Gather(node).axis
    full, listed = _in_full(data, (place,), known), _shape(indices, known)
    numbers = array_of(indices) if is_constant(indices) else splat(indices)
    inside = numbers.min() >= -full.shape[place] and numbers.max() < full.shape[place]
    need(inside, "an index may be outside, which only matters where there are images", indices)
    shape = full.shape[:place] + listed + full.shape[place + 1 :]
    return Narrow(shape, lambda built: _copy(node, (full.build(built), built.get(indices, indices))))


def _one_number(node: ir.Node, known: Shapes) -> Narrow:
    """Of ops that move elements: they move one number, wherever to."""
    (x,) = inputs(node, 1)
    own = _shape(x, known)
    need(math.prod(own) == 1, "more than one number is moved", node)
    ones = (1,) * rank(node.outputs[0])
    return Narrow(ones, lambda built: _reshaped(built.get(x, x), ones))


def _resize(node: ir.Node, known: Shapes) -> Narrow:
    need(attribute(node, "mode", "nearest") == "nearest", "neighbours are mixed", node)
    inside = attribute(node, "coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize"
    need(inside, "places outside of the image get another number", node)
    return _one_number(node, known)


def _concat(node: ir.Node, known: Shapes) -> Narrow:
    operands = inputs(node, len(node.inputs))
    place = ops.Concat(node).axis
    along = [_in_full(value, (place,), known) for value in operands]
    common = _broadcast(*((*one.shape[:place], 1, *one.shape[place + 1 :]) for one in along))
    parts = [
        _widened(value, _shape(value, known), (*common[:place], one.shape[place], *common[place + 1 :]))
        for value, one in zip(operands, along, strict=True)
    ]
    shape = (*common[:place], sum(one.shape[place] for one in parts), *common[place + 1 :])
    return Narrow(shape, lambda built: _copy(node, (part.build(built) for part in parts)))


# -- sums -------------------------------------------------------------------------------------------------------------


def _cumsum(node: ir.Node, known: Shapes) -> Narrow:
    x, along = inputs(node, 2)
    (place,) = integers(along)
    return _along(node, x, (place,), known)


def _along_axis(node: ir.Node, known: Shapes) -> Narrow:
    """Of Softmax and LogSoftmax."""
    need(not ops.Softmax(node).flattens, "it flattens axes", node)
    (x,) = inputs(node, 1)
    return _along(node, x, (ops.Softmax(node).axis,), known)


def _along(node: ir.Node, x: ir.Value, axes: tuple[int, ...], known: Shapes) -> Narrow:
    full = _in_full(x, axes, known)
    return Narrow(full.shape, lambda built: _copy(node, (full.build(built), *node.inputs[1:])))


def _reduction(node: ir.Node, known: Shapes) -> Narrow:
    x, places = node.inputs[0], ops.Reduce(node).axes
    assert x is not None
    full, keeps = _in_full(x, places, known), ops.Reduce(node).keeps_axes
    sizes = (1 if place in places else size for place, size in enumerate(full.shape) if keeps or place not in places)
    return Narrow(tuple(sizes), lambda built: _copy(node, (full.build(built), *node.inputs[1:])))


def _layer_normalization(node: ir.Node, known: Shapes) -> Narrow:
    (x,) = inputs(node, 1)
    first = ops.OneAxis(node).axis
    for value in node.inputs[1:]:
        need(value is None or is_constant(value), "scale and bias are not constant", node)
    return _along(node, x, tuple(range(first, rank(x))), known)


def _product(node: ir.Node, known: Shapes) -> Narrow:
    a, b = inputs(node, 2)
    need(min(rank(a), rank(b)) >= MATRIX, "an operand is a vector", node)
    left, right = _in_full(a, (-1,), known), _in_full(b, (-2,), known)
    lead = _broadcast(left.shape[:-MATRIX], right.shape[:-MATRIX])
    shape = (*lead, left.shape[-2], right.shape[-1])
    return Narrow(shape, lambda built: _copy(node, (left.build(built), right.build(built))))


def _linear(node: ir.Node, known: Shapes) -> Narrow:
    """Of Gemm, whose second and third operand are constants."""
    x, weight = inputs(node, len(node.inputs))[:MATRIX]
    bias = optional(node, MATRIX)
    need(not ops.Gemm(node).transposes_a, "the first operand is transposed", node)
    need(is_constant(weight), "the weights are not constant", weight)
    need(bias is None or (is_constant(bias) and rank(bias) <= 1), "the bias is not the same for all rows", node)
    (columns,) = need_fixed(dims(node.outputs[0], MATRIX)[-1:], "the size of a row is not fixed", node)
    need(columns > 0, "the size of a row is not fixed", node)
    full = _in_full(x, (-1,), known)
    return Narrow((full.shape[0], columns), lambda built: _copy(node, (full.build(built), *node.inputs[1:])))


DIVISIONS: Final = ("Div", "Mod")
MATRIX: Final = 2

RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "Concat": _concat,
        "ConstantOfShape": _constant_of_shape,
        "CumSum": _cumsum,
        "Expand": _expand,
        "Flatten": _reshape,
        "Gather": _gather,
        "GatherElements": _one_number,
        "GatherND": _one_number,
        "Gemm": _linear,
        "LayerNormalization": _layer_normalization,
        "LogSoftmax": _along_axis,
        "MatMul": _product,
        "Reshape": _reshape,
        "Resize": _resize,
        "Slice": _slice,
        "Softmax": _along_axis,
        "Squeeze": _squeeze,
        "Tile": _one_number,
        "Transpose": _transpose,
        "Unsqueeze": _squeeze,
        **dict.fromkeys(REDUCTIONS, _reduction),
    }
)
"""What the results of other ops than elementwise ones repeat."""
