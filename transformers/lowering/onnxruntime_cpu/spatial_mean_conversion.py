"""A mean over height, width or both ends ONNX Runtime's blocked layout as a ReduceMean; as a pooling it goes on."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK
from ortopt.analysis.blocked_values import is_in_blocks
from ortopt.analysis.kernels import CPU
from ortopt.graph.match import (
    Refusal,
    dims,
    inputs,
    is_constant,
    is_never_zero,
    is_op,
    need,
    need_float32,
    opset,
)
from ortopt.graph.symbolic import Dim
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.convolution_activation import is_convolution
from ortopt.rule import NEWEST_OPSET, RewriteRule

RANK = 4
MAX_STEPS = 4
SAME_SIZE = (
    "Relu",
    "Clip",
    "Sigmoid",
    "Tanh",
    "LeakyRelu",
    "HardSigmoid",
    "HardSwish",
    "Add",
    "Mul",
    "BatchNormalization",
)
"""Ops that give something of an image's size, if nothing else that they take is computed."""


class Found(Struct, frozen=True):
    """The mean.

    Attributes:
        nodes: The mean.
        x: The image.
        kernel: The height and width of what is averaged; None for the whole image.
        dropped: The axis that the result lacks, or None.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    kernel: tuple[int, int] | None
    dropped: int | None


class SpatialMeanConversion(RewriteRule[Found]):
    """``ReduceMean<axes = [2, 3]>(x)`` → ``GlobalAveragePool(x)`` for an x that convolutions give, in whole blocks.

    A mean over one axis of fixed size becomes an ``AveragePool``: readers of text take the mean over the height.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("ReduceMean",)
    opsets = (1, NEWEST_OPSET)
    providers = (CPU,)
    targets = (Target.ORT,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """The last two of four axes, which stay as ones, or one of them."""
        x = inputs(root, len(root.inputs))[0]
        batch, channels, height, width = dims(x, RANK)
        need_float32(x, "the blocked kernels are")
        mean = ops.Reduce(root)
        over, keeps = set(mean.axes), mean.keeps_axes
        need(bool(over) and over <= {2, 3}, "it is no mean over height and width", root)
        need(keeps or len(over) == 1, "it drops the axes", root)
        kernel = None if len(over) == 2 else _kernel(over, height, width)
        full = is_never_zero(height, root) and is_never_zero(width, root)
        need(full or _is_never_empty(x), "the image may be empty", x)
        # The kernel of the mean gives a result of the image's size for a batch of 0 if axes are counted from the end.
        need(min(mean.stated_axes) >= 0 or is_never_zero(batch, root), "the batch may be empty", x)
        need(isinstance(channels, int) and channels % BLOCK == 0, "the channels fill no blocks", x)
        need(is_in_blocks(x), "the image is not in the blocked layout", x)
        return Found((root,), x, kernel, None if keeps else over.pop())

    def rewrite(self, found: Found) -> ir.Node:
        """Build the pooling."""
        if found.kernel is None:
            return ir.node("GlobalAveragePool", [found.x])
        pooled = ir.node("AveragePool", [found.x], {"kernel_shape": found.kernel})
        if found.dropped is None:
            return pooled
        return ops.node_along("Squeeze", pooled.outputs[0], [found.dropped], opset(found.nodes[0]))


def _kernel(over: set[int], height: Dim, width: Dim) -> tuple[int, int]:
    """The window of a mean over one axis."""
    size = height if over == {2} else width
    if not isinstance(size, int):
        raise Refusal("the size of the axis is not fixed")
    need(size > 1, "the axis has one element")
    return (size, 1) if over == {2} else (1, size)


def _is_never_empty(value: ir.Value) -> bool:
    """Whether a value has the size of a convolution's result that is at least as large as its input minus its steps.

    ONNX Runtime runs no convolution of an empty image.
    """
    for _ in range(MAX_STEPS):
        node = value.producer()
        if node is None or is_convolution(node):
            return node is not None and _is_padded_enough(node)
        images = [one for one in node.inputs if one is not None and not is_constant(one)]
        if len(images) != 1 or not is_op(node, *SAME_SIZE):
            return False
        (value,) = images
    return False


def _is_padded_enough(node: ir.Node) -> bool:
    """Whether a convolution gives an element for each place where its kernel can lie with its first one inside."""
    conv = ops.Conv(node)
    if conv.auto_pad.startswith("SAME"):
        return True
    kernel = dims(node.inputs[1])[2:] if node.inputs[1] is not None else ()
    pads, axes = conv.stated_pads, len(kernel)
    return bool(kernel) and all(
        isinstance(size, int) and pads[axis] + pads[axis + axes] >= (size - 1) * conv.dilations[axis]
        for axis, size in enumerate(kernel)
    )
