"""Between two convolutions of images of height 1 the activation is one of images too, and the axis stays."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Dim,
    Refusal,
    array_of,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    need_present,
    opset,
    plain_attributes,
    rank,
    users,
)
from ortopt.linear.layer import CONVOLUTIONS
from ortopt.options import TransformerLevel
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import BROADCASTING, UNARY, VARIADIC
from ortopt.semantics.opset_changes import BROADCASTS_FROM

OWN_UNARY = frozenset({"Gelu", "QuickGelu"})
"""Ops of ONNX Runtime of one operand: each element of the result is a function of the operand's element there."""

CONVOLVING = (*CONVOLUTIONS, "FusedConv")
ACTIVATIONS = ("HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh")
"""What ONNX Runtime computes together with a convolution."""

FIRST_SPATIAL = 2
"""The first axis of an image behind those of batch and channels."""

FURTHEST = 32
"""How many nodes below are looked at for an Unsqueeze."""


class SqueezeReordering(RewriteRule[Match]):
    """``Relu(Squeeze(x))`` → ``Squeeze(Relu(x))`` on the way from a convolution to an ``Unsqueeze`` of the same axis.

    Each elementwise op on the way is treated in this way, until Squeeze and Unsqueeze cancel. Constant operands and
    residuals get the axis too. So is, wherever it leads, what becomes a convolution's bias or activation.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("conv1d_conversion",)
    roots = tuple(sorted((UNARY - {"Cast"}) | (BROADCASTING - {"Where"}))) + tuple(
        f"{MICROSOFT}::{op}" for op in sorted(OWN_UNARY)
    )
    needs = ("Squeeze",)
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """An elementwise op one of whose operands is squeezed; the others are so too, or constants, or as large."""
        values = inputs(root, len(root.inputs))
        squeezed = [_squeezed(value) for value in values]
        axes = [each[1] for each in squeezed if each is not None]
        need(bool(axes), "no operand is squeezed", root)
        plain_attributes(root)
        axis = axes[0]
        need(all(each == axis for each in axes), "the operands are squeezed at different axes", root)
        _check_form(root)
        of = rank(root.outputs[0])
        sources = []
        for value, before in zip(values, squeezed, strict=True):
            sources.append(None if before is None else before[0])
            fits = rank(value) == of or (before is None and rank(value) < of and is_constant(value))
            need(fits, "an operand has fewer axes, and is no constant", value)
        need(any(source is not None and _is_of_convolution(source) for source in sources), "it is of no image", root)
        joins = len(set(sources) - {None}) > 1
        joins = joins or _goes_into_convolution(root, values, sources, axis)
        need_present(joins or _meets(root.outputs[0], axis), "no Unsqueeze of this axis comes after", root)

        def build() -> ir.Node:
            pairs = zip(sources, values, strict=True)
            operands = [source or _with_axis(value, axis, of, root) for source, value in pairs]
            wide = ops.copied(root, operands).outputs[0]
            return ops.node_along("Squeeze", wide, [axis], opset(root, ""))

        return Match((root,), build)


def _check_form(root: ir.Node) -> None:
    if root.domain:
        need(len(root.inputs) == 1, "it has a bias", root)
    elif root.op_type in BROADCASTING and root.op_type not in VARIADIC:
        need(opset(root) >= BROADCASTS_FROM, "an attribute says how its operands broadcast", root)


def _squeezed(value: ir.Value) -> tuple[ir.Value, int] | None:
    """What one axis was squeezed from, and the axis; None if it comes from no such Squeeze."""
    node = value.producer()
    if not is_op(node, "Squeeze") or node.inputs[0] is None:
        return None
    axis = _axis(node)
    return None if axis is None else (node.inputs[0], axis)


def _axis(node: ir.Node) -> int | None:
    """The one axis of a Squeeze or Unsqueeze; None if there are several, or it is not known."""
    try:
        axes = ops.Axes(node).axes
    except Refusal:
        return None
    return axes[0] if len(axes) == 1 else None


def _is_of_convolution(value: ir.Value) -> bool:
    """Whether a convolution gives a value, or an op of its result's elements."""
    for _ in range(FURTHEST):
        node = value.producer()
        if node is None:
            return False
        if node.op_type in CONVOLVING:
            return True
        if not _is_elementwise(node):
            return False
        value = next((each for each in node.inputs if each is not None and each.producer() is not None), value)
    return False


def _goes_into_convolution(
    root: ir.Node, values: Sequence[ir.Value], sources: Sequence[ir.Value | None], axis: int
) -> bool:
    """Whether an op, once it stands before the Squeeze, becomes the convolution's bias, or its activation.

    TensorFlow's one-dimensional convolutions are exported with their bias behind the Squeeze.
    """
    source, value = next(pair for pair in zip(sources, values, strict=True) if pair[0] is not None)
    assert source is not None
    conv = source.producer()
    if axis < FIRST_SPATIAL or not is_op(conv, "Conv") or not (is_used_once(source) and is_used_once(value)):
        return False
    if root.op_type != "Add":
        return root.op_type in ACTIVATIONS and not root.domain
    (other,) = (each for each, before in zip(values, sources, strict=True) if before is None)
    return is_constant(other) and all(dim == 1 for dim in _but_channels(dims(other), rank(value)))


def _but_channels(shape: Sequence[Dim], of: int) -> Iterator[Dim]:
    """The dimensions of an operand beside one of so many axes, without that of channels."""
    return (dim for place, dim in enumerate(shape, of - len(shape)) if place != 1)


def _meets(value: ir.Value, axis: int) -> bool:
    """Whether elementwise ops lead from a value to an Unsqueeze of this axis, or to another operand squeezed there."""
    pending, seen = deque([value]), {value}
    while pending and len(seen) < FURTHEST:
        for node in users(pending.popleft()):
            if is_op(node, "Unsqueeze"):
                if _axis(node) == axis:
                    return True
            elif _is_elementwise(node) and node.outputs[0] not in seen:
                if any(each is not None and (_squeezed(each) or (None, -1))[1] == axis for each in node.inputs):
                    return True
                seen.add(node.outputs[0])
                pending.append(node.outputs[0])
    return False


def _is_elementwise(node: ir.Node) -> bool:
    if node.domain:
        return node.domain == MICROSOFT and node.op_type in OWN_UNARY
    return node.op_type in UNARY or node.op_type in BROADCASTING


def _with_axis(value: ir.Value, axis: int, of: int, at: ir.Node) -> ir.Value:
    """An operand that broadcasts beside those that have the axis, counted in the rank of the result."""
    if not is_constant(value):
        return ops.unsqueezed(value, [axis], opset(at, ""))
    place = axis - (of - len(dims(value)))
    if place <= 0:
        return value  # it has no axis in front of that one
    content = array_of(value)
    return constant(np.expand_dims(content, place), dtype(value))
