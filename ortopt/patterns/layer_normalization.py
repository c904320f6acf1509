"""What layer and root-mean-square normalizations have in common, in the spellings of exporters and people.

The root of a pattern is its square root: there are few of them in a graph, and the rest is found above and below it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.graph import scope
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    FLOATS,
    Dim,
    attribute,
    axis,
    dims,
    dtype,
    inputs,
    integers,
    is_constant,
    is_op,
    is_scalar,
    is_used_once,
    is_vector_of,
    keeps_rank,
    need,
    only_user,
    opset,
    optional,
    producer,
    same_dim,
    scalar,
    shape_of,
)
from ortopt.onnx_ir_internals import use_count

ROOTS = ("Sqrt", "Pow")


class Mean(NamedTuple):
    """A mean over the last axes of a value.

    Attributes:
        node: The ReduceMean.
        of: What it is the mean of.
        axis: The first axis that it is taken over, counted from the front.
    """

    node: ir.Node
    of: ir.Value
    axis: int


class Quotient(NamedTuple):
    """``numerator / sqrt(mean(base²) + epsilon)``.

    Attributes:
        nodes: All nodes of it.
        base: What is squared.
        numerator: What is divided.
        axis: The first axis of the mean, counted from the front.
        epsilon: What is added to the mean.
        y: The result.
    """

    nodes: tuple[ir.Node, ...]
    base: ir.Value
    numerator: ir.Value
    axis: int
    epsilon: float
    y: ir.Value


class Affine(NamedTuple):
    """``scale * Cast(y) + bias`` below a quotient, as far as it is there.

    Attributes:
        nodes: All nodes of it.
        x: What is normalized; of the result's type.
        scale: Has the shape of the normalized axes; None if there is none.
        bias: Likewise.
        y: The result.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    scale: ir.Value | None
    bias: ir.Value | None
    y: ir.Value


class Normalization(NamedTuple):
    """A layer or root-mean-square normalization that is spelled out, and what one op takes and gives in its place.

    Attributes:
        nodes: All nodes of it, the root among them.
        x: What is normalized.
        scale: Has the shape of the normalized axes; None if there is none.
        bias: Likewise; None for a root-mean-square normalization.
        epsilon: What is added to the mean of the squares.
        dims: The normalized dimensions.
        y: The result, which stands below the root.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    scale: ir.Value | None
    bias: ir.Value | None
    epsilon: float
    dims: tuple[int, ...]
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result."""
        return (self.y,)


def layer_normalization(root: ir.Node) -> Normalization:
    """The layer normalization around its square root.

    The deviation from the mean is above the root; the quotient, scale and bias are below it.

    Raises:
        Refusal: If it is none.
    """
    found = quotient(root)
    nodes: list[ir.Node] = []
    mean = _deviation(found.base, nodes)
    need(mean.axis == found.axis, "the means are over different axes", mean.node)
    if found.numerator is not found.base:
        other = _deviation(found.numerator, nodes)
        need(other[1:] == mean[1:], "another difference is divided", found.numerator)
    below = affine(found, mean.of, with_bias=True)
    return Normalization(
        tuple(dict.fromkeys((*nodes, *found.nodes, *below.nodes))),
        below.x,
        below.scale,
        below.bias,
        found.epsilon,
        static_dims_from(below.x, mean.axis),
        below.y,
    )


def rms_normalization(root: ir.Node) -> Normalization:
    """The root-mean-square normalization around its square root.

    The mean of the squares is above the root; the quotient and the scale are below it.

    Raises:
        Refusal: If it is none.
    """
    found = quotient(root)
    x = found.base
    if found.numerator is not x:
        need(cast_source(x) is found.numerator, "something else is divided", found.numerator)
        x = found.numerator
    below = affine(found, x, with_bias=False)
    nodes = tuple(dict.fromkeys((*found.nodes, *below.nodes)))
    dims_ = static_dims_from(below.x, found.axis)
    return Normalization(nodes, below.x, below.scale, None, found.epsilon, dims_, below.y)


def _deviation(value: ir.Value, nodes: list[ir.Node]) -> Mean:
    """The mean of x behind ``x - mean(x)``; takes up the nodes."""
    node = producer(uncast(value, nodes), "Sub")
    x, average = inputs(node, 2)
    mean = mean_over_last_axes(average)
    need(mean.of is x, "the mean of something else is subtracted", node)
    nodes += [node, mean.node]
    return mean


def attributes_of(found: Normalization) -> dict[str, int | float]:
    """The attributes of LayerNormalization or RMSNormalization in the place of what was found."""
    attributes: dict[str, int | float] = {"axis": -len(found.dims), "epsilon": found.epsilon}
    if dtype(found.x) == DOUBLE:
        attributes["stash_type"] = DOUBLE.value
    elif scope.of(scope.graph_of(found.nodes[0])).in_function:
        attributes["stash_type"] = FLOAT.value  # ONNX Runtime 1.31 crashes on a function without it
    return attributes


def scale_of(found: Normalization) -> ir.Value:
    """The scale, which the op must have; ones where there is none."""
    return constant(np.ones(found.dims), dtype(found.x)) if found.scale is None else found.scale


def mean_over_last_axes(value: ir.Value) -> Mean:
    """The mean behind a value, which keeps the rank.

    Raises:
        Refusal: If it is none, or over other axes than the last ones.
    """
    node = producer(value, "ReduceMean")
    need(attribute(node, "keepdims", 1) == 1, "the mean drops its axes", node)
    (of,) = inputs(node, 1)
    rank = len(dims(of))
    if opset(node) >= 18:
        given = optional(node, 1)
        axes = () if given is None else integers(given)
    else:
        axes = attribute(node, "axes", ())
    need(bool(axes) or not attribute(node, "noop_with_empty_axes", 0), "the mean is over no axis", node)
    taken = sorted({axis % rank for axis in axes}) if axes and rank else list(range(rank))
    need(bool(taken) and taken == list(range(taken[0], rank)), "the mean is not over the last axes", node)
    return Mean(node, of, taken[0])


def quotient(root: ir.Node) -> Quotient:
    """What is divided by the square root that a node takes.

    Args:
        root: A Sqrt, or a Pow with an exponent of ½ or -½.

    Raises:
        Refusal: If it is not that.
    """
    inverse = is_op(root, "Pow") and is_scalar(optional(root, 1), -0.5)
    need(is_op(root, "Sqrt") or inverse or is_scalar(optional(root, 1), 0.5), "it takes no square root", root)
    nodes = [root]
    (radicand, *_) = inputs(root, 1)
    shifted = producer(radicand, "Add")
    a, b = inputs(shifted, 2)
    number, variance = (a, b) if is_constant(a) else (b, a)
    epsilon = scalar(number)
    need(0 <= epsilon < math.inf, "epsilon is negative", number)
    mean = mean_over_last_axes(uncast(variance, nodes))
    need(keeps_rank(number, mean.of), "the constant would raise the rank", number)
    squaring = producer(mean.of, "Pow", "Mul")
    nodes += [shifted, mean.node, squaring]
    wide, other = inputs(squaring, 2)
    if is_op(squaring, "Mul"):
        need(wide is other, "it is the mean of no square", squaring)
    else:
        need(is_scalar(other, 2.0), "the exponent is not 2", other)
        need(keeps_rank(other, wide), "the constant would raise the rank", other)
    numerator, y = _divided(root, inverse, nodes)
    return Quotient(tuple(nodes), wide, numerator, mean.axis, epsilon, y)


def _divided(root: ir.Node, inverse: bool, nodes: list[ir.Node]) -> tuple[ir.Value, ir.Value]:
    """What is divided by the root, or multiplied with its reciprocal; and the result."""
    value = _cast_below(root.outputs[0], nodes)
    user = only_user(value, "Mul" if inverse else "Div", "Div" if inverse else "Reciprocal")
    if not inverse:
        if is_op(user, "Div"):
            numerator, denominator = inputs(user, 2)
            need(denominator is value and numerator is not value, "the root is divided", user)
            if not (is_scalar(numerator, 1.0) and keeps_rank(numerator, value)):
                nodes.append(user)
                return numerator, user.outputs[0]
        nodes.append(user)
        value = _cast_below(user.outputs[0], nodes)
        user = only_user(value, "Mul")
    need(is_op(user, "Mul"), "the reciprocal root is no factor", user)
    nodes.append(user)
    a, b = inputs(user, 2)
    need(a is not b, "the reciprocal root is squared", user)
    return (b if a is value else a), user.outputs[0]


def affine(found: Quotient, x: ir.Value, *, with_bias: bool) -> Affine:
    """Scale and bias below a quotient, and a Cast before them that narrows it to the type of what is normalized.

    Args:
        found: The quotient.
        x: What is normalized, in any type.
        with_bias: Whether a bias may follow.

    Raises:
        Refusal: If the result has another type than what is normalized, or something is computed in a narrower one.
    """
    need(dtype(x) in FLOATS, "it is no float", x)
    shape = static_dims_from(x, found.axis)
    nodes: list[ir.Node] = []
    y, scale, bias = found.y, None, None
    source = cast_source(x)
    narrow = _user(y, "Cast")
    if narrow is not None and narrow.outputs[0].dtype in {dtype(x), source and source.dtype} - {None}:
        nodes.append(narrow)
        y = narrow.outputs[0]
        if dtype(y) != dtype(x) and source is not None:
            x = source
    need(dtype(y) == dtype(x), "the result has another type than what is normalized", y)
    scaling = _user(y, "Mul")
    scale = None if scaling is None else _parameter(scaling, y, shape)
    if scaling is not None and scale is not None:
        nodes.append(scaling)
        y = scaling.outputs[0]
    shifting = _user(y, "Add") if with_bias else None
    bias = None if shifting is None or (scaling is not None and scale is None) else _parameter(shifting, y, shape)
    if shifting is not None and bias is not None:
        nodes.append(shifting)
        y = shifting.outputs[0]
    allowed = {dtype(x)} | ({FLOAT} if dtype(x) in (FLOAT16, BFLOAT16) else set())
    for node in (*found.nodes, *nodes):
        need(node.outputs[0].dtype in allowed, "something is computed in another type", node)
    if dtype(x) == DOUBLE:
        need(float(np.float32(found.epsilon)) == found.epsilon, "epsilon is no single-precision number", found.y)
    return Affine(tuple(nodes), x, scale, bias, y)


def static_dims_from(x: ir.Value, axis: int) -> tuple[int, ...]:
    """The dimensions from an axis on: numbers, and none of them 0, which ONNX Runtime's kernels refuse.

    Raises:
        Refusal: If that is not so.
    """
    last = dims(x)[axis:]
    known = tuple(dim for dim in last if isinstance(dim, int))
    need(len(known) == len(last), "a normalized dimension is not fixed", x)
    need(0 not in known, "a normalized dimension is 0", x)
    return known


def cast_source(value: ir.Value) -> ir.Value | None:
    """What a Cast between float types has made a value from, or None."""
    node = value.producer()
    source = node.inputs[0] if node is not None and is_op(node, "Cast") else None
    return source if source is not None and source.dtype in FLOATS and value.dtype in FLOATS else None


def uncast(value: ir.Value, nodes: list[ir.Node]) -> ir.Value:
    """A value before a Cast between float types, if there is one.

    Args:
        value: Any value.
        nodes: Takes up the Cast.
    """
    source, node = cast_source(value), value.producer()
    if source is None or node is None:
        return value
    nodes.append(node)
    return source


def _cast_below(value: ir.Value, nodes: list[ir.Node]) -> ir.Value:
    cast = _user(value, "Cast")
    if cast is None or cast.outputs[0].dtype not in FLOATS:
        return value
    nodes.append(cast)
    return cast.outputs[0]


def _user(value: ir.Value, op: str) -> ir.Node | None:
    """The one user of a value, if it is of an op."""
    if not is_used_once(value):
        return None
    (use,) = value.uses()
    inside = use.node.graph is value.graph or value.producer() is None
    return use.node if is_op(use.node, op) and inside else None


def _parameter(node: ir.Node, value: ir.Value, shape: tuple[int, ...]) -> ir.Value | None:
    """The other operand of a two-operand node, if it has this very shape and the value's type."""
    a, b = inputs(node, 2)
    other = b if a is value else a
    if other is value or other.dtype != value.dtype:
        return None
    own = dims(other) if other.shape is not None else ()
    return other if own == shape else None


class Skip(NamedTuple):
    """``x + skip + bias`` above a normalization over the last axis.

    Attributes:
        nodes: The additions.
        x: Has the sum's shape.
        skip: Has it too, or lacks the first dimension, or has 1 there.
        bias: Has the last dimension only; None if there is none.
        total: The sum.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    skip: ir.Value
    bias: ir.Value | None
    total: ir.Value


def skip_above(root: ir.Node, parameters: Sequence[ir.Value | None]) -> Skip:
    """The sum that a normalization normalizes, if ONNX Runtime's Skip kernels take its operands.

    Args:
        root: The normalization; its first input is the sum.
        parameters: Its scale, and its bias if there may be one.

    Raises:
        Refusal: If they do not.
    """
    (total, *_) = inputs(root, 1)
    addition = producer(total, "Add")
    need(addition.graph is root.graph, "the sum is computed in another graph", total)
    shape = dims(total)
    need(len(shape) in (2, 3), "the kernel takes two or three dimensions", total)
    need(axis(root, len(shape), -1) == len(shape) - 1, "it is not over the last axis alone", root)
    need(
        not any(use_count(value) or value.is_graph_output() for value in root.outputs[1:]),
        "its statistics are used",
        root,
    )
    for parameter in parameters:
        need(
            parameter is None or is_vector_of(parameter, shape[-1]), "a parameter has not the last dimension", parameter
        )
        # Else it could depend on the sum, which is about to come out of the normalization itself.
        early = parameter is None or parameter.producer() is None or is_constant(parameter)
        need(early, "a parameter is computed", parameter)
    a, b = inputs(addition, 2)
    biased = [(x, found) for x in (a, b) if (found := _biased(x, shape)) is not None and _skips(b if x is a else a, x)]
    if biased:
        x, (inner, plain, bias) = biased[0]
        return Skip((inner, addition), plain, b if x is a else a, bias, total)
    if not _has_shape(a, shape):
        a, b = b, a
    need(_has_shape(a, shape) and _skips(b, a), "the kernel does not broadcast the operands so", addition)
    return Skip((addition,), a, b, None, total)


def _biased(value: ir.Value, shape: Sequence[Dim]) -> tuple[ir.Node, ir.Value, ir.Value] | None:
    """The addition of a row to what has the whole shape, its operand and the row; None if it is not that."""
    node = value.producer()
    if node is None or not is_op(node, "Add") or not is_used_once(value):
        return None
    a, b = inputs(node, 2)
    if not is_vector_of(b, shape[-1]):
        a, b = b, a
    early = b.producer() is None or is_constant(b)
    return (node, a, b) if early and is_vector_of(b, shape[-1]) and _has_shape(a, shape) else None


def _has_shape(value: ir.Value, shape: Sequence[Dim]) -> bool:
    own = shape_of(value)
    return own is not None and len(own) == len(shape) and all(map(same_dim, own, shape))


def _skips(skip: ir.Value, x: ir.Value) -> bool:
    """Whether the kernel broadcasts a skip to x: it looks at the last two dimensions alone, and at the first for 1."""
    own, whole = shape_of(skip), shape_of(x)
    if own is None or whole is None or len(own) < 2 or not all(map(same_dim, own[-2:], whole[-2:])):
        return False
    return len(own) == 2 or (len(own) == len(whole) and (own[0] == 1 or same_dim(own[0], whole[0])))


def skip_node(op: str, found: Skip, parameters: Sequence[ir.Value | None], epsilon: float) -> ir.Node:
    """One of ONNX Runtime's Skip kernels, with the sum as its fourth output if that is needed.

    Args:
        op: Its op type.
        found: What it adds.
        parameters: Scale, and bias where the op has one.
        epsilon: Of the normalization.
    """
    inputs = [found.x, found.skip, *parameters, found.bias]
    while inputs[-1] is None:
        inputs.pop()
    outputs = [ir.Value()]
    if not is_used_once(found.total):
        outputs += [ir.Value(name=""), ir.Value(name=""), ir.Value()]
    return ir.node(op, inputs, {"epsilon": epsilon}, domain="com.microsoft", outputs=outputs)


__all__ = [
    "ROOTS",
    "Affine",
    "Mean",
    "Normalization",
    "Quotient",
    "Skip",
    "affine",
    "attributes_of",
    "cast_source",
    "layer_normalization",
    "mean_over_last_axes",
    "quotient",
    "rms_normalization",
    "scale_of",
    "skip_above",
    "skip_node",
    "static_dims_from",
    "uncast",
]
