"""Splitting channels ends ONNX Runtime's blocked layout; convolutions that give the parts do not.

Detectors split what a convolution gives in two halves, one of which goes on alone (CSP blocks, YOLO).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK
from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Absent,
    Refusal,
    array_of,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    need_float32,
    optional,
    users,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.convolution_activation import is_convolution
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT

ACTIVATIONS = ("Relu", "Clip", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "HardSwish", "Gelu")
MAX_STEPS = 3


class Found(Struct, frozen=True):
    """What is done once for each part.

    Attributes:
        nodes: The Split, and what comes before it, the convolution last.
        sizes: The channels of the parts.
        replaced: What is split, if something else reads it too.
    """

    nodes: tuple[ir.Node, ...]
    sizes: tuple[int, ...]
    replaced: tuple[ir.Value, ...]


class ConvSplitDecomposition(RewriteRule[Found]):
    """``Split(Relu(Conv(x, W)))`` → ``Relu(Conv(x, W₁))``, ``Relu(Conv(x, W₂))``, … for parts in whole blocks.

    What joins the whole with other channels joins the parts instead.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Split",)
    providers = (CPU,)
    targets = (Target.ORT,)
    numerics = Numerics.REORDERED  # with fewer outputs, a kernel may sum in another order
    produces = ((MICROSOFT, "FusedConv"), (MICROSOFT, "QuickGelu"))

    def match(self, root: ir.Node) -> Found:
        """Parts of channels, out of a convolution and activations that nothing else reads."""
        value = inputs(root, len(root.inputs))[0]
        need(len(dims(value)) == 4 and ops.Split(root).axis == 1, "it splits no channels of an image", root)
        need_float32(value, "the blocked kernels are")
        sizes = tuple(_channels(part) for part in root.outputs)
        need(all(size > 0 and size % BLOCK == 0 for size in sizes), "the parts are no whole blocks", root)
        need(any(map(_is_convolved, root.outputs)), "no convolution reads a part", root)
        others = [user for user in users(value) if user is not root]
        joined = all(is_op(user, "Concat") and ops.Concat(user).axis == 1 for user in others)
        need(joined and not value.is_graph_output(), "what is split is used elsewhere", value)
        nodes = [root, *_producers(value)]
        convolution = nodes[-1]
        need(ops.Conv(convolution).group == 1, "the convolution has groups", convolution)
        need(optional(convolution, 3) is None, "it adds another value", convolution)
        weight = convolution.inputs[1]
        need(array_of(weight).shape[0] == sum(sizes), "the parts are not all channels", root)
        bias = optional(convolution, 2)
        if bias is not None:
            array_of(bias)
        return Found(tuple(nodes), sizes, (value,) if others else ())

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build for each part a convolution with its weights, and the activations."""
        root, *activations, convolution = found.nodes
        starts = (0, *itertools.accumulate(found.sizes))
        parts = {}
        for old, (start, end) in zip(root.outputs, itertools.pairwise(starts), strict=True):
            weights = [value and _of_channels(value, start, end) for value in convolution.inputs[1:3]]
            value = _again(convolution, [convolution.inputs[0], *weights])
            for activation in reversed(activations):
                value = _again(activation, [value, *activation.inputs[1:]])
            parts[old] = value
        for whole in found.replaced:
            parts[whole] = ir.node("Concat", list(parts.values()), {"axis": 1}).outputs[0]
        return parts


def _channels(value: ir.Value) -> int:
    channels = dims(value, rank=4)[1]
    if not isinstance(channels, int):
        raise Refusal("a part's channels are not known", value)
    return channels


def _is_convolved(value: ir.Value) -> bool:
    return any(map(is_convolution, users(value)))


def _producers(value: ir.Value) -> list[ir.Node]:
    """The activations before a value, and the convolution before these."""
    nodes: list[ir.Node] = []
    while len(nodes) <= MAX_STEPS:
        node = value.producer()
        need(not nodes or is_used_once(value), "the activation's operand is used elsewhere", value)
        if node is None or not (is_convolution(node) or _is_activation(node)):
            break
        nodes.append(node)
        if is_convolution(node):
            return nodes
        value = inputs(node, len(node.inputs))[0]
    raise Absent("no convolution comes before", value)


def _is_activation(node: ir.Node) -> bool:
    if is_op(node, "QuickGelu", domain=MICROSOFT):
        return True
    return is_op(node, *ACTIVATIONS) and all(value is None or is_constant(value) for value in node.inputs[1:])


def _of_channels(value: ir.Value, start: int, end: int) -> ir.Value:
    """A constant's numbers for some of the channels."""
    return constant(np.ascontiguousarray(array_of(value)[start:end]), dtype(value))


def _again(old: ir.Node, operands: Sequence[ir.Value | None]) -> ir.Value:
    """The result of the same op for other operands."""
    return ops.copied(old, operands).outputs[0]
