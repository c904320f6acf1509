"""Layer and root-mean-square normalizations that are spelled out in nodes, as exporters and people write them.

A pattern is matched from its square root, because graphs have few of them; the rest is above and below it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
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
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_scalar,
    is_used,
    is_used_once,
    is_vector_of,
    keeps_rank,
    need,
    need_float,
    only_user,
    optional,
    producer,
    scalar,
)

ROOTS = ("Sqrt", "Pow")


class Mean(NamedTuple):
    """A mean over the last axes of a value.

    Attributes:
        node: The ReduceMean.
        of: The value that it is the mean of.
        axis: The first axis that it is taken over, counted from the front.
    """

    node: ir.Node
    of: ir.Value
    axis: int


class Quotient(Struct, frozen=True):
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
    """``scale * Cast(y) + bias`` below a quotient; Cast, scale and bias may each be missing.

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


class Normalization(Struct, frozen=True):
    """A layer or root-mean-square normalization that is spelled out, with the operands and the result of one op for it.

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
    division = quotient(root)
    nodes: list[ir.Node] = []
    mean = _deviation(division.base, nodes)
    need(mean.axis == division.axis, "the means are over different axes", mean.node)
    if division.numerator is not division.base:
        other = _deviation(division.numerator, nodes)
        need(other[1:] == mean[1:], "another difference is divided", division.numerator)
    below = affine(division, mean.of, with_bias=True)
    return Normalization(
        tuple(dict.fromkeys((*nodes, *division.nodes, *below.nodes))),
        below.x,
        below.scale,
        below.bias,
        division.epsilon,
        static_dims_from(below.x, mean.axis),
        below.y,
    )


def rms_normalization(root: ir.Node) -> Normalization:
    """The root-mean-square normalization around its square root.

    The mean of the squares is above the root; the quotient and the scale are below it.

    Raises:
        Refusal: If it is none.
    """
    division = quotient(root, shifted=False)
    x = division.base
    if division.numerator is not x:
        need(cast_source(x) is division.numerator, "something else is divided", division.numerator)
        x = division.numerator
    below = affine(division, x, with_bias=False)
    nodes = tuple(dict.fromkeys((*division.nodes, *below.nodes)))
    dims_ = static_dims_from(below.x, division.axis)
    return Normalization(nodes, below.x, below.scale, None, division.epsilon, dims_, below.y)


def _deviation(value: ir.Value, nodes: list[ir.Node]) -> Mean:
    """The mean of x in ``x - mean(x)``; its nodes are added to `nodes`."""
    node = producer(uncast(value, nodes), "Sub")
    x, average = inputs(node, 2)
    mean = mean_over_last_axes(average)
    need(mean.of is x, "the mean of something else is subtracted", node)
    nodes += [node, mean.node]
    return mean


def attributes_of(normalization: Normalization) -> dict[str, int | float]:
    """The attributes of the LayerNormalization or RMSNormalization that replaces a normalization."""
    attributes: dict[str, int | float] = {"axis": -len(normalization.dims), "epsilon": normalization.epsilon}
    if dtype(normalization.x) == DOUBLE:
        attributes["stash_type"] = DOUBLE.value
    elif scope.of_node(normalization.nodes[0]).in_function:
        attributes["stash_type"] = FLOAT.value  # ONNX Runtime 1.31 crashes on a function without it
    return attributes


def scale_of(normalization: Normalization) -> ir.Value:
    """The scale of the op, which needs one: ones where the normalization has none."""
    if normalization.scale is not None:
        return normalization.scale
    return constant(np.ones(normalization.dims), dtype(normalization.x))


def mean_over_last_axes(value: ir.Value) -> Mean:
    """The mean that a value is; it keeps the rank.

    Raises:
        Refusal: If it is none, or over other axes than the last ones.
    """
    node = producer(value, "ReduceMean")
    mean = ops.Reduce(node)
    need(mean.keeps_axes, "the mean drops its axes", node)
    need(not mean.does_nothing, "the mean is over no axis", node)
    (of,) = inputs(node, 1)
    taken = sorted(mean.axes)
    need(bool(taken) and taken == list(range(taken[0], len(dims(of)))), "the mean is not over the last axes", node)
    return Mean(node, of, taken[0])


def quotient(root: ir.Node, *, shifted: bool = True) -> Quotient:
    """The division by the square root that a node computes.

    Args:
        root: A Sqrt, or a Pow with an exponent of ½ or -½.
        shifted: Whether an epsilon must be added to the mean; else it may be missing.

    Raises:
        Refusal: If it is not that.
    """
    inverse = is_op(root, "Pow") and is_scalar(optional(root, 1), -0.5)
    need(is_op(root, "Sqrt") or inverse or is_scalar(optional(root, 1), 0.5), "it takes no square root", root)
    nodes = [root]
    (radicand, *_) = inputs(root, 1)
    number, variance = None, radicand
    if shifted or not is_op(radicand.producer(), "Cast", "ReduceMean"):
        sum_ = producer(radicand, "Add")
        a, b = inputs(sum_, 2)
        number, variance = (a, b) if is_constant(a) else (b, a)
        nodes.append(sum_)
    epsilon = 0.0 if number is None else scalar(number)
    need(0 <= epsilon < math.inf, "epsilon is negative", radicand)
    mean = mean_over_last_axes(uncast(variance, nodes))
    need(number is None or keeps_rank(number, mean.of), "the constant would raise the rank", radicand)
    squaring = producer(mean.of, "Pow", "Mul")
    nodes += [mean.node, squaring]
    wide, other = inputs(squaring, 2)
    if is_op(squaring, "Mul"):
        need(wide is other, "it is the mean of no square", squaring)
    else:
        need(is_scalar(other, 2.0), "the exponent is not 2", other)
        need(keeps_rank(other, wide), "the constant would raise the rank", other)
    numerator, y = _divided(root, inverse, nodes)
    return Quotient(tuple(nodes), wide, numerator, mean.axis, epsilon, y)


def _divided(root: ir.Node, inverse: bool, nodes: list[ir.Node]) -> tuple[ir.Value, ir.Value]:
    """The value that is divided by the root, or multiplied with its reciprocal; and the result."""
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


def affine(division: Quotient, x: ir.Value, *, with_bias: bool) -> Affine:
    """Scale and bias below a quotient, and a Cast before them back to the type of the normalized value.

    Args:
        division: The quotient.
        x: What is normalized, in any type.
        with_bias: Whether a bias may follow.

    Raises:
        Refusal: If the result has another type than what is normalized, or something is computed in a narrower one.
    """
    need_float(x)
    shape = static_dims_from(x, division.axis)
    nodes: list[ir.Node] = []
    y, scale, bias = division.y, None, None
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
    for node in (*division.nodes, *nodes):
        need(node.outputs[0].dtype in allowed, "something is computed in another type", node)
    if dtype(x) == DOUBLE:
        epsilon = division.epsilon
        need(float(np.float32(epsilon)) == epsilon, "epsilon is no single-precision number", division.y)
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
    """The operand of the Cast between float types that a value comes from, or None."""
    node = value.producer()
    source = node.inputs[0] if is_op(node, "Cast") else None
    return source if source is not None and source.dtype in FLOATS and value.dtype in FLOATS else None


def uncast(value: ir.Value, nodes: list[ir.Node]) -> ir.Value:
    """A value before a Cast between float types, if there is one.

    Args:
        value: Any value.
        nodes: The Cast is added to it.
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


def check_fused_normalization(root: ir.Node, parameters: Sequence[ir.Value | None], size: Dim) -> None:
    """Refuse a normalization that ONNX Runtime's kernels do not compute together with the sum before it.

    Args:
        root: The normalization.
        parameters: Its scale, and its bias, if it has them.
        size: The last dimension of what is normalized.

    Raises:
        Refusal: The reason.
    """
    need(ops.OneAxis(root).is_last, "it is not over the last axis alone", root)
    need(not any(map(is_used, root.outputs[1:])), "its statistics are used", root)
    need(attribute(root, "epsilon", 1e-5) >= 0, "the kernel wants an epsilon of at least 0", root)
    for parameter in parameters:
        fits = parameter is None or is_vector_of(parameter, size)
        need(fits, "a parameter has not the last dimension", parameter)
        # Else it could depend on the sum, which is about to come out of the normalization itself.
        early = parameter is None or parameter.producer() is None or is_constant(parameter)
        need(early, "a parameter is computed", parameter)
