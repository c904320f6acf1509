"""What layer and root-mean-square normalizations have in common, in the spellings of exporters and people.

The root of a pattern is its square root: there are few of them in a graph, and the rest is found above and below it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    FLOATS,
    attribute,
    dims,
    dtype,
    fits,
    integers,
    is_constant,
    is_op,
    is_scalar,
    is_used_once,
    need,
    only_user,
    opset,
    optional,
    producer,
    scalar,
    values,
)

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


def mean_over_last_axes(value: ir.Value) -> Mean:
    """The mean behind a value, which keeps the rank.

    Raises:
        Refusal: If it is none, or over other axes than the last ones.
    """
    node = producer(value, "ReduceMean")
    need(attribute(node, "keepdims", 1) == 1, "the mean drops its axes", node)
    (of,) = values(node, 1)
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
    (radicand, *_) = values(root, 1)
    shifted = producer(radicand, "Add")
    a, b = values(shifted, 2)
    number, variance = (a, b) if is_constant(a) else (b, a)
    epsilon = scalar(number)
    need(0 <= epsilon < math.inf, "epsilon is negative", number)
    mean = mean_over_last_axes(uncast(variance, nodes))
    need(fits(number, mean.of), "the constant would raise the rank", number)
    squaring = producer(mean.of, "Pow", "Mul")
    nodes += [shifted, mean.node, squaring]
    wide, other = values(squaring, 2)
    if is_op(squaring, "Mul"):
        need(wide is other, "it is the mean of no square", squaring)
    else:
        need(is_scalar(other, 2.0), "the exponent is not 2", other)
        need(fits(other, wide), "the constant would raise the rank", other)
    numerator, y = _divided(root, inverse, nodes)
    return Quotient(tuple(nodes), wide, numerator, mean.axis, epsilon, y)


def _divided(root: ir.Node, inverse: bool, nodes: list[ir.Node]) -> tuple[ir.Value, ir.Value]:
    """What is divided by the root, or multiplied with its reciprocal; and the result."""
    value = _cast_below(root.outputs[0], nodes)
    user = only_user(value, "Mul" if inverse else "Div", "Div" if inverse else "Reciprocal")
    if not inverse:
        if is_op(user, "Div"):
            numerator, denominator = values(user, 2)
            need(denominator is value and numerator is not value, "the root is divided", user)
            if not (is_scalar(numerator, 1.0) and fits(numerator, value)):
                nodes.append(user)
                return numerator, user.outputs[0]
        nodes.append(user)
        value = _cast_below(user.outputs[0], nodes)
        user = only_user(value, "Mul")
    need(is_op(user, "Mul"), "the reciprocal root is no factor", user)
    nodes.append(user)
    a, b = values(user, 2)
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
    a, b = values(node, 2)
    other = b if a is value else a
    if other is value or other.dtype != value.dtype:
        return None
    own = dims(other) if other.shape is not None else ()
    return other if own == shape else None


__all__ = [
    "ROOTS",
    "Affine",
    "Mean",
    "Quotient",
    "affine",
    "mean_over_last_axes",
    "quotient",
    "static_dims_from",
    "uncast",
]
