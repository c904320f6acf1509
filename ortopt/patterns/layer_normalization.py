"""Layer and root-mean-square normalizations that are spelled out in nodes, as exporters and people write them.

A pattern is matched from its square root, because graphs have few of them. What stands above it says what is measured:
the variance of x, as ``mean((x - mean(x))²)`` or as ``mean(x²) - mean(x)²``, or the mean of its squares. What stands
below is multiplied out (`ortopt.patterns.standardized`), so the order of factors and summands is of no importance.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from typing import Final

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
    Dim,
    Refusal,
    array_of,
    attribute,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_scalar,
    is_used,
    is_vector_of,
    keeps_rank,
    need,
    need_float,
    optional,
    producer,
    rank,
    scalar,
    users,
)
from ortopt.graph.symbolic import same_shape
from ortopt.patterns.standardized import (
    ARITHMETIC,
    MEANS,
    Affine,
    Mean,
    Measure,
    Products,
    mean_of,
    restores,
    source_of,
)

ROOTS = ("Sqrt", "Pow")

_MAX_NODES: Final = 16
"""Nodes below the root that may be part of a normalization: more than any spelling has."""


class Normalization(Struct, frozen=True):
    """A layer or root-mean-square normalization that is spelled out, with the operands and the result of one op for it.

    Attributes:
        nodes: All nodes of it, the root among them.
        x: What is normalized.
        scale: Has the shape of the normalized axes, but for sizes of 1 in front of a constant; None if there is none.
        bias: Likewise; None for a root-mean-square normalization.
        axis: The first normalized axis, counted from the front.
        epsilon: What is added to the mean of the squares.
        y: The result, which stands below the root.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    scale: ir.Value | None
    bias: ir.Value | None
    axis: int
    epsilon: float
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result."""
        return (self.y,)


def layer_normalization(root: ir.Node) -> Normalization:
    """The layer normalization around its square root.

    Raises:
        Refusal: If it is none.
    """
    measure = measured(root)
    return normalization(measure, static_dims_from(measure.x, measure.axis))


def rms_normalization(root: ir.Node) -> Normalization:
    """The root-mean-square normalization around its square root.

    Raises:
        Refusal: If it is none.
    """
    measure = measured(root, centred=False)
    return normalization(measure, static_dims_from(measure.x, measure.axis))


def measured(root: ir.Node, *, centred: bool = True) -> Measure:
    """What a square root measures.

    Args:
        root: A Sqrt, or a Pow with an exponent of ½ or -½.
        centred: Whether it measures the variance, and not the mean of squares, where epsilon may be missing.

    Raises:
        Refusal: If it does not.
    """
    inverse = is_op(root, "Pow") and is_scalar(optional(root, 1), -0.5)
    need(is_op(root, "Sqrt") or inverse or is_scalar(optional(root, 1), 0.5), "it takes no square root", root)
    nodes = [root]
    (radicand, *_) = inputs(root, 1)
    number, value = None, radicand
    if centred or not is_op(radicand.producer(), "Cast", *MEANS):
        sum_ = producer(radicand, "Add")
        a, b = inputs(sum_, 2)
        number, value = (a, b) if is_constant(a) else (b, a)
        nodes.append(sum_)
    epsilon = 0.0 if number is None else scalar(number)
    need(0 <= epsilon < math.inf, "epsilon is negative", radicand)
    need(number is None or keeps_rank(number, value), "the constant would raise the rank", radicand)
    value = _positive(_moved_back(value, nodes), nodes)
    x, squares, mean = _variance(value, nodes) if centred else _squares(value, nodes)
    for node in nodes:
        moves = is_op(node, "Reshape", "Unsqueeze")
        need(not moves or restores(node, x, squares.axis), "elements are moved", node)
    return Measure(tuple(nodes), root, 1 if inverse else -1, x, mean, squares.axis, epsilon)


def _squares(value: ir.Value, nodes: list[ir.Node]) -> tuple[ir.Value, Mean, None]:
    """The x of ``mean(x²)``, and the mean."""
    mean = mean_of(value)
    nodes.append(mean.node)
    return _squared(mean.of, nodes), mean, None


def _variance(value: ir.Value, nodes: list[ir.Node]) -> tuple[ir.Value, Mean, ir.Value]:
    """The x of ``mean((x - mean(x))²)`` or ``mean(x²) - mean(x)²``, the mean of squares, and the mean of x."""
    difference = value.producer()
    if is_op(difference, "Sub"):
        a, b = inputs(difference, 2)
        x, squares, _ = _squares(_moved_back(a, nodes), nodes)
        average = _squared(_moved_back(b, nodes), nodes)
        need(same_shape(dims(a), dims(b)), "one of the means dropped its axes", difference)
    else:
        base, squares, _ = _squares(value, nodes)
        difference = producer(_uncast(base, nodes), "Sub")
        x, average = inputs(difference, 2)
        need(rank(average) == rank(x), "the mean dropped its axes", difference)
    nodes.append(difference)
    average = _moved_back(average, nodes)
    mean = mean_of(average)
    need(mean.of is x, "the mean of something else is subtracted", difference)
    need(mean.axis == squares.axis, "the means are over different axes", mean.node)
    nodes.append(mean.node)
    return x, squares, average


def _squared(value: ir.Value, nodes: list[ir.Node]) -> ir.Value:
    """What is squared; the node is added to `nodes`."""
    squaring = producer(value, "Pow", "Mul")
    base, other = inputs(squaring, 2)
    if is_op(squaring, "Mul"):
        need(base is other, "it is the mean of no square", squaring)
    else:
        need(is_scalar(other, 2.0), "the exponent is not 2", other)
        need(keeps_rank(other, base), "the constant would raise the rank", other)
    nodes.append(squaring)
    return base


def _positive(value: ir.Value, nodes: list[ir.Node]) -> ir.Value:
    """What a variance was before rounding could not make it negative any more; the node is added to `nodes`."""
    node = value.producer()
    if not is_op(node, "Relu"):
        return value
    nodes.append(node)
    return _moved_back(inputs(node, 1)[0], nodes)


def _uncast(value: ir.Value, nodes: list[ir.Node]) -> ir.Value:
    """A value before a Cast between float types, if there is one, which is added to `nodes`."""
    source, node = source_of(value), value.producer()
    if source is None or node is None:
        return value
    nodes.append(node)
    return source


def _moved_back(value: ir.Value, nodes: list[ir.Node]) -> ir.Value:
    """A value before Casts, and before dropped axes came back (which is for the caller to look at)."""
    value = _uncast(value, nodes)
    node = value.producer()
    if not is_op(node, "Reshape", "Unsqueeze"):
        return value
    nodes.append(node)
    return _uncast(inputs(node, 1)[0], nodes)


def normalization(measure: Measure, shape: tuple[int, ...] | None) -> Normalization:
    """The normalization below a square root, with as much of scale, bias and Casts as one op computes.

    Args:
        measure: The root, and what it measures.
        shape: The shape of scale and bias; None to leave them outside.

    Raises:
        Refusal: If nothing below is one.
    """
    found: Normalization | None = None
    refusal: Refusal | None = None
    products = Products(measure, shape)
    try:
        for y in _results(measure.root):
            try:
                affine = products.affine(y)
                need(measure.mean is not None or affine.bias is None, "there is no op with a bias", y)
                _check_types(measure, affine)
            except Refusal as reason:
                if found is not None:
                    break
                refusal = reason
                continue
            nodes = tuple(dict.fromkeys((*measure.nodes, *affine.nodes)))
            found = Normalization(nodes, affine.x, affine.scale, affine.bias, measure.axis, measure.epsilon, y)
    except Refusal as reason:  # what comes next is no part of it
        refusal = refusal or reason
    if found is None:
        raise refusal or Refusal("nothing is computed from the root", measure.root)
    return found


def _results(root: ir.Node) -> Iterator[ir.Value]:
    """The values below a root that all that is computed from it goes through, the nearest first.

    Raises:
        Refusal: If more than sums and products comes before the next.
    """
    inside = {root: None}
    while True:
        ends = [node.outputs[0] for node in inside if _is_used_outside(node.outputs[0], inside)]
        if len(ends) == 1 and len(inside) > 1:
            yield ends[0]
        need(bool(ends) and len(inside) <= _MAX_NODES, "too much is computed from the root", root)
        for value in ends:
            need(not value.is_graph_output(), "the value is used elsewhere", value)
            for user in users(value):
                need(is_op(user, *ARITHMETIC) and user.graph is root.graph, "the value is used elsewhere", value)
                inside[user] = None


def _is_used_outside(value: ir.Value, nodes: Container[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in nodes for use in value.uses())


def _check_types(measure: Measure, affine: Affine) -> None:
    """Refuse a normalization that computes in another type than the op would."""
    x = affine.x
    need_float(x)
    allowed = {dtype(x)} | ({FLOAT} if dtype(x) in (FLOAT16, BFLOAT16) else set())
    for node in (*measure.nodes, *affine.nodes):
        need(node.outputs[0].dtype in allowed, "something is computed in another type", node)
    if dtype(x) == DOUBLE:
        epsilon = measure.epsilon
        need(float(np.float32(epsilon)) == epsilon, "epsilon is no single-precision number", measure.root)


def node_of(op: str, found: Normalization) -> ir.Node:
    """The LayerNormalization or RMSNormalization that replaces a normalization.

    Args:
        op: The op.
        found: The normalization.
    """
    shape = static_dims_from(found.x, found.axis)
    attributes: dict[str, int | float] = {"axis": -len(shape), "epsilon": found.epsilon}
    if dtype(found.x) == DOUBLE:
        attributes["stash_type"] = DOUBLE.value
    elif scope.of_node(found.nodes[0]).in_function:
        attributes["stash_type"] = FLOAT.value  # ONNX Runtime 1.31 crashes on a function without it
    scale = constant(np.ones(shape), dtype(found.x)) if found.scale is None else _shaped(found.scale, shape)
    bias = [] if found.bias is None else [_shaped(found.bias, shape)]
    return ir.node(op, [found.x, scale, *bias], attributes)


def _shaped(parameter: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """A parameter without the sizes of 1 in front."""
    if rank(parameter) == len(shape):
        return parameter
    return constant(array_of(parameter).reshape(shape), dtype(parameter))


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
