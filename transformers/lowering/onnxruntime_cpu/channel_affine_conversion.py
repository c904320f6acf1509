"""ONNX Runtime's blocked layout ends where a constant is added to an image, or one number scales it.

A BatchNormalization of the same numbers goes on in blocks. Networks for text in images scale and shift what every
activation gives, by learned numbers (PP-LCNetV3, PP-HGNetV2, VoVNet's and ESE's relatives). Outside of blocks it reads
an image once where a product and a sum read it twice, as behind every group normalization.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.analysis.blocked_layout import BLOCK, Layout, blocked_layout, is_blocked_convolution
from ortopt.analysis.blocked_values import is_in_blocks
from ortopt.analysis.kernels import CPU
from ortopt.context import Context
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Refusal,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    need_fixed,
    need_float32,
    opset,
    users,
)
from ortopt.linear.channels import composed, of_channels
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.transformer import GraphTransformer
from ortopt.transformers.lowering.onnxruntime_cpu._rules import FOR_BLOCKS

RANK = 4
NORMALIZATION_FROM = 9
"""Before, the op had an attribute for normalizing each position by itself."""

BOTH = 2
"""Nodes of a product and a sum: one kernel does the work of both outside of blocks, too."""


class Affine(NamedTuple):
    """``scale · x + shift``, with one number a channel.

    Attributes:
        nodes: The nodes that compute it, the last one last.
        x: The image.
        scale: The factors.
        shift: The summands.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    scale: np.ndarray
    shift: np.ndarray


class ChannelAffineConversion(GraphTransformer):
    """``x * s + t`` → ``BatchNormalization(x, s, t)`` where the image stays in ONNX Runtime's blocked layout.

    This is done where the model of that layout (``ortopt.analysis.blocked_layout``) has fewer reorders with it. A
    product and a sum together become one anywhere; before a ReLU and convolutions they become a convolution of single
    channels.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("channel_gate_conversion",)
    providers = (CPU,)
    targets = (Target.ORT,)
    numerics = Numerics.REORDERED
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Find all candidates, drop those that serve nothing, and let normalizations stand for the others."""
        candidates = [node for node in graph if is_op(node, "Add", "Sub", "Mul", "Div")]
        found = dict(context.answered(candidates, _affine))
        chosen = _without_inner(found)
        if not chosen:
            return False
        before = blocked_layout(graph, token=context.cancellation)
        inside = _useful(graph, chosen, before, context)
        changed = False
        for affine in inside.values():
            changed |= _replace(affine, _normalization(affine), "the image stays in blocks", context)
        for node, affine in chosen.items():
            if node not in inside and _is_one_for_two(affine):
                one = _convolution(affine) if _begins_blocks(affine) else _normalization(affine)
                changed |= _replace(affine, one, "one kernel works on the image instead of two", context)
        return changed


def _replace(affine: Affine, one: ir.Node, why: str, context: Context) -> bool:
    last = affine.nodes[-1]
    return context.substitute({last.outputs[0]: one.outputs[0]}, before=last, origin=affine.nodes, why=why)


def _is_one_for_two(affine: Affine) -> bool:
    """Whether a product and a sum work on an image of so many channels that one kernel for both was measured to win."""
    return len(affine.nodes) == BOTH and len(affine.scale) >= BLOCK


def _begins_blocks(affine: Affine) -> bool:
    """Whether only convolutions in blocks read the image behind a ReLU, and it is not in blocks before it is scaled."""
    result = affine.nodes[-1].outputs[0]
    if len(affine.scale) % BLOCK or not is_used_once(result) or is_in_blocks(affine.x):
        return False
    (relu,) = users(result)
    if not is_op(relu, "Relu") or relu.outputs[0].is_graph_output():
        return False
    image = relu.outputs[0]
    return all(is_blocked_convolution(user) and image not in user.inputs[1:] for user in users(image))


def _affine(node: ir.Node) -> Affine:
    """A factor and a summand for each channel of an image, computed by one node or two.

    Raises:
        Refusal: If the node computes something else.
    """
    outer = _step(node)
    inner_node = outer.x.producer()
    if not is_op(inner_node, "Add", "Sub", "Mul", "Div") or not is_used_once(outer.x):
        return outer
    try:
        inner = _step(inner_node)
    except Refusal:
        return outer
    need(inner_node.graph is node.graph, "it is in another graph", node)
    scale, shift = composed((inner.scale, inner.shift), (outer.scale, outer.shift), FLOAT, node)
    return Affine((inner_node, node), inner.x, scale, shift)


def _step(node: ir.Node) -> Affine:
    """One node that combines an image with a constant."""
    need(opset(node) >= NORMALIZATION_FROM, "the opset is too old for the op", node)
    a, b = inputs(node, 2)
    number, x = (b, a) if is_constant(b) else (a, b)
    need(is_constant(number) and not is_constant(x), "no operand is a constant", node)
    need(number is b or is_op(node, "Add", "Mul"), "the constant comes first", node)
    need_float32(x, FOR_BLOCKS)
    (channels,) = need_fixed(dims(x, RANK)[1:2], "the number of channels is not fixed", x)
    numbers = of_channels(number, channels, RANK)
    ones, zeros = np.ones(channels), np.zeros(channels)
    if is_op(node, "Add", "Sub"):
        return Affine((node,), x, ones, numbers if is_op(node, "Add") else -numbers)
    if is_op(node, "Div"):
        need(bool((numbers != 0).all()), "it divides by 0", number)
        numbers = 1 / numbers
        need(bool(np.isfinite(numbers.astype(np.float32)).all()), "a number is not finite", number)
    return Affine((node,), x, numbers, zeros)


def _without_inner(found: Mapping[ir.Node, Affine]) -> dict[ir.Node, Affine]:
    """The candidates without those that are a part of another one."""
    inner = {node for affine in found.values() for node in affine.nodes[:-1]}
    return {node: affine for node, affine in found.items() if node not in inner}


def _useful(graph: ir.Graph, found: dict[ir.Node, Affine], before: Layout, context: Context) -> dict[ir.Node, Affine]:
    """The candidates that go on in blocks from an image, and that something in blocks reads."""
    while found:
        context.cancellation.check()
        affine = {node: (one.x, one.nodes[:-1]) for node, one in found.items()}
        layout = blocked_layout(graph, affine=affine, token=context.cancellation)
        kept = {node: one for node, one in found.items() if node in layout.kernels and _is_read(node, layout)}
        for node in found.keys() - kept.keys():
            _refuse(found[node], "the image would not stay in the blocked layout", context)
        if len(kept) == len(found):
            if layout.reorders < before.reorders:
                return found
            for one in found.values():
                _refuse(one, "there would be as many reorders", context)
            return {}
        found = kept
    return {}


def _refuse(affine: Affine, reason: str, context: Context) -> None:
    if not _is_one_for_two(affine):
        context.refuse(affine.nodes[-1], reason)


def _is_read(node: ir.Node, layout: Layout) -> bool:
    return any(user in layout.kernels for user in users(node.outputs[0]))


def _normalization(affine: Affine) -> ir.Node:
    """The op: with a mean of 0, a variance of 1 and an epsilon of 0, its factors and summands are what it is given."""
    zeros, ones = np.zeros(len(affine.scale)), np.ones(len(affine.scale))
    numbers = [constant(one.astype(np.float32), FLOAT) for one in (affine.scale, affine.shift, zeros, ones)]
    return ir.node("BatchNormalization", [affine.x, *numbers], {"epsilon": 0.0})


def _convolution(affine: Affine) -> ir.Node:
    """The op that ONNX Runtime works on in blocks whatever comes before it, together with the activation behind it."""
    weights = constant(affine.scale.astype(np.float32).reshape(-1, 1, 1, 1), FLOAT)
    biases = constant(affine.shift.astype(np.float32), FLOAT)
    return ir.node("Conv", [affine.x, weights, biases], {"group": len(affine.scale)})
