"""Group normalization, as exporters spell it: by a normalization of groups of channels between two Reshapes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import (
    FLOAT,
    FLOAT16,
    Dim,
    Refusal,
    attribute,
    dims,
    dtype,
    inputs,
    is_op,
    is_used_once,
    need,
    only_user,
    optional,
    producer,
    same_dim,
    splat,
    users,
)
from ortopt.linear.channels import of_channels
from ortopt.patterns.layer_normalization import quotient
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import RESHAPING


class GroupNormalization(Struct, frozen=True):
    """``scale · (x - mean) / sqrt(variance + epsilon) + bias`` with the mean and variance of groups of channels.

    Attributes:
        nodes: The nodes that compute it.
        x: What is normalized.
        groups: The number of groups.
        epsilon: What is added to the variance.
        scale: One number a channel.
        bias: Likewise.
        silu: Whether the result is multiplied by its own sigmoid.
        y: The result.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    groups: int
    epsilon: float
    scale: np.ndarray
    bias: np.ndarray
    silu: bool
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result, which stands below the root."""
        return (self.y,)


class Core(Struct, frozen=True):
    """What is between the Reshapes: its nodes, operand, result and epsilon."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    y: ir.Value
    epsilon: float


def group_normalization(root: ir.Node, *, with_silu: bool) -> GroupNormalization:
    """The group normalization around a node.

    Args:
        root: An InstanceNormalization or LayerNormalization of the groups, or the square root in a spelled-out one.
        with_silu: Whether a SiLU may be part of it.

    Raises:
        Refusal: If it is none.
    """
    core = _core(root)
    above = producer(core.x, *sorted(RESHAPING))
    (x,) = inputs(above, 1)
    below = only_user(core.y, *sorted(RESHAPING))
    shape, grouped = dims(x), dims(core.x)
    need(len(shape) >= 3, "it has no channels", x)
    groups = _groups(shape, grouped, above)
    y = below.outputs[0]
    back = dims(y)
    need(len(back) == len(shape) and all(map(same_dim, back, shape)), "the groups are not taken apart again", below)
    need(dtype(x) in (FLOAT, FLOAT16), "it is not of single or half precision", x)
    channels = int(shape[1]) if isinstance(shape[1], int) else 0
    nodes = [above, *core.nodes, below]
    scale, y = _parameter(y, "Mul", channels, len(shape), nodes)
    bias, y = _parameter(y, "Add", channels, len(shape), nodes)
    activated = _silu(y, nodes) if with_silu else None
    return GroupNormalization(
        tuple(nodes), x, groups, core.epsilon,
        np.ones(channels) if scale is None else scale, np.zeros(channels) if bias is None else bias,
        activated is not None, y if activated is None else activated,
    )  # fmt: skip


def _groups(shape: tuple[Dim, ...], grouped: tuple[Dim, ...], reshape: ir.Node) -> int:
    """The number of groups of channels in ``[N, groups, …]``."""
    channels, groups = shape[1], grouped[1] if len(grouped) >= 3 else None
    need(isinstance(channels, int) and isinstance(groups, int), "the number of channels is not fixed", reshape)
    assert isinstance(channels, int)
    assert isinstance(groups, int)
    need(same_dim(shape[0], grouped[0]), "the groups are of more than one image", reshape)
    need(groups > 0 and channels > 0 and channels % groups == 0, "the groups do not divide the channels", reshape)
    return groups


def _core(root: ir.Node) -> Core:
    """The normalization of each group, without scale and bias."""
    if is_op(root, "InstanceNormalization"):
        x, scale, bias = inputs(root, 3)
        need(float(splat(scale)) == 1 and float(splat(bias)) == 0, "the groups are scaled or shifted", root)
        return Core((root,), x, root.outputs[0], attribute(root, "epsilon", 1e-5))
    if is_op(root, "LayerNormalization"):
        x, scale = inputs(root, 2)
        shift = optional(root, 2)
        plain = float(splat(scale)) == 1 and (shift is None or float(splat(shift)) == 0)
        need(plain, "the groups are scaled or shifted", root)
        need(not any(value.name and value.uses() for value in root.outputs[1:]), "its statistics are needed", root)
        need(len(dims(x)) > 2 and ops.OneAxis(root).axis == 2, "it is not over all of a group", root)
        return Core((root,), x, root.outputs[0], attribute(root, "epsilon", 1e-5))
    return _spelled(root)


def _spelled(root: ir.Node) -> Core:
    division = quotient(root)
    need(division.axis == 2, "it is not over all of a group", root)
    difference = producer(division.base, "Sub")
    need(division.numerator is division.base, "another difference is divided", root)
    x, mean = inputs(difference, 2)
    average = producer(mean, "ReduceMean")
    need(inputs(average, 1)[0] is x, "the mean of something else is subtracted", difference)
    variance = next(node for node in division.nodes if is_op(node, "ReduceMean"))
    alike = dims(average.outputs[0]), dims(variance.outputs[0])
    need(len(alike[0]) == len(alike[1]) and all(map(same_dim, *alike)), "the means are over different axes", average)
    need(all(dim == 1 for dim in alike[0][2:]), "the means are over different axes", average)
    return Core((average, difference, *division.nodes), x, division.y, division.epsilon)


def _parameter(
    value: ir.Value, op: str, channels: int, rank: int, nodes: list[ir.Node]
) -> tuple[np.ndarray | None, ir.Value]:
    """A scale or bias of each channel below a value, and the value below that; nothing where there is none."""
    if not is_used_once(value):
        return None, value
    (user,) = users(value)
    if not is_op(user, op) or user.graph is not value.graph:
        return None, value
    a, b = inputs(user, 2)
    other = b if a is value else a
    try:
        numbers = of_channels(other, channels, rank)
    except Refusal:
        return None, value
    nodes.append(user)
    return numbers, user.outputs[0]


def _silu(value: ir.Value, nodes: list[ir.Node]) -> ir.Value | None:
    """``y · Sigmoid(y)`` below a value, in two nodes or as a QuickGelu; None where there is none."""
    below = users(value)
    if value.is_graph_output() or any(node.graph is not value.graph for node in below):
        return None
    if len(below) == 1:
        (gelu,) = below
        if not is_op(gelu, "QuickGelu", domain=MICROSOFT) or attribute(gelu, "alpha", 1.702) != 1:
            return None
        nodes.append(gelu)
        return gelu.outputs[0]
    sigmoid = next((node for node in below if is_op(node, "Sigmoid")), None)
    product = next((node for node in below if is_op(node, "Mul")), None)
    if len(below) != 2 or sigmoid is None or product is None or not is_used_once(sigmoid.outputs[0]):
        return None
    if set(product.inputs) != {value, sigmoid.outputs[0]}:
        return None
    nodes += [sigmoid, product]
    return product.outputs[0]


__all__ = ["GroupNormalization", "group_normalization"]
