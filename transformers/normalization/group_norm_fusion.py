"""Group normalization, as exporters spell it: by a normalization of groups of channels between two Reshapes.

It is five kernels; the standard, and CUDA, have one op for it.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.kernels import CUDA
from ortopt.framework import placement
from ortopt.graph import scope
from ortopt.graph.edit import constant
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
    need_never_zero,
    only_user,
    opset,
    optional,
    producer,
    same_dim,
    splat,
    users,
)
from ortopt.graph.symbolic import same_shape
from ortopt.linear.channels import of_channels
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.layer_normalization import ROOTS, measured, normalization
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import RESHAPING

STANDARD_FROM = 21
LARGEST_GROUP = 512
"""Channels of a group that CUDA's kernel takes, two at a time."""


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


class Core(Struct, frozen=True):
    """What is between the Reshapes: its nodes, operand, result and epsilon."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    y: ir.Value
    epsilon: float


class GroupNormFusion(RewriteRule[Match]):
    """``Reshape(InstanceNormalization(Reshape(x))) · scale + bias`` → ``GroupNormalization(x, scale, bias)``.

    On CUDA it is ONNX Runtime's own ``GroupNorm`` between Transposes, with the SiLU that often follows.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding", "layer_norm_fusion", "opset_conversion", "quick_gelu_fusion")
    roots = ("InstanceNormalization", "LayerNormalization", *ROOTS)
    needs = ("GlobalAveragePool", "InstanceNormalization", "LayerNormalization", "ReduceMean")
    lookback = 7
    looks_downstream = True
    produces = ((MICROSOFT, "GroupNorm"),)
    fuses = (("", "GroupNormalization"), *produces)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """The normalization of fixed channels, if there is an op for it."""
        options = scope.of_node(root).options
        own = options.target is Target.ORT and placement.provider_of(root, options.providers) == CUDA
        found = _group_normalization(root, with_silu=own)
        shape = dims(found.x)
        own = own and len(shape) == 4
        if own:
            size = found.scale.size // found.groups
            need(size % 2 == 0 and size <= LARGEST_GROUP, "there is no kernel for so many channels a group", found.x)
            need_never_zero(shape, "a dimension may be 0", root)
        else:
            need(opset(root, "") >= STANDARD_FROM, f"opset {opset(root, '')} has no GroupNormalization", root)
            need(not found.silu, "there is no op with an activation", root)
        return Match.ending_in(found.y, found.nodes, partial(_own_op if own else _standard_op, found))


def _standard_op(norm: GroupNormalization) -> ir.Node:
    parameters = [constant(numbers, dtype(norm.x)) for numbers in (norm.scale, norm.bias)]
    attributes: dict[str, int | float] = {"epsilon": norm.epsilon, "num_groups": norm.groups}
    return ir.node("GroupNormalization", [norm.x, *parameters], attributes)


def _own_op(norm: GroupNormalization) -> ir.Node:
    """CUDA's own op, which has the channels last."""
    last = ir.node("Transpose", [norm.x], {"perm": [0, 2, 3, 1]}).outputs[0]
    parameters = [constant(numbers, FLOAT) for numbers in (norm.scale, norm.bias)]
    attributes = {"activation": int(norm.silu), "channels_last": 1, "epsilon": norm.epsilon, "groups": norm.groups}
    node = ir.node("GroupNorm", [last, *parameters], attributes, domain=MICROSOFT)
    return ir.node("Transpose", [node.outputs[0]], {"perm": [0, 3, 1, 2]})


def _group_normalization(root: ir.Node, *, with_silu: bool) -> GroupNormalization:
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
    need(same_shape(back, shape), "the groups are not taken apart again", below)
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
    if not (isinstance(channels, int) and isinstance(groups, int)):
        raise Refusal("the number of channels is not fixed", reshape)
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
    measure = measured(root)
    need(measure.axis == 2, "it is not over all of a group", root)
    found = normalization(measure, None)
    need(found.x is measure.x, "a Cast is part of it", root)
    return Core(found.nodes, found.x, found.y, found.epsilon)


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
