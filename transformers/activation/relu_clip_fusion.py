"""A Clip can do what a Relu before it does."""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import attribute, inputs, need, opset, optional, producer, scalar, tensor_of
from ortopt.options import TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.semantics.opset_changes import BOUNDS_ARE_INPUTS_FROM

FLOAT32_LOWEST, FLOAT32_HIGHEST = (float(bound) for bound in (np.finfo(np.float32).min, np.finfo(np.float32).max))


class Found(Struct, frozen=True):
    """The Relu and the Clip."""

    nodes: tuple[ir.Node, ...]


class ReluClipFusion(RewriteRule[Found]):
    """``Clip(Relu(x), min, max)`` → ``Clip(x, larger of min and 0, max)``, in every type."""

    levels = (TransformerLevel.LEVEL1,)
    roots = ("Clip",)
    opsets = (6, NEWEST_OPSET)

    def match(self, root: ir.Node) -> Found:
        """Constant bounds; a max below 0 or below min would make a Clip that versions read differently."""
        (middle,) = inputs(root, 1)
        relu = producer(middle, "Relu")
        low, high = _bounds(root)
        need(high >= 0, "max is below 0", root)
        need(low <= high, "min is above max", root)
        return Found((relu, root))

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Clip."""
        relu, clip = found.nodes
        (x,) = inputs(relu, 1)
        low, _ = _bounds(clip)
        if opset(clip) < BOUNDS_ARE_INPUTS_FROM["Clip"]:
            return ops.copied(clip, [x], min=0.0 if np.signbit(low) else float(low))
        minimum = optional(clip, 1)
        if minimum is None or np.signbit(low):  # -0.0 too: the Relu gives 0.0
            minimum = _zero(clip, minimum)
        maximum = optional(clip, 2)
        return ir.Node("", "Clip", [x, minimum, *([] if maximum is None else [maximum])])


def _bounds(clip: ir.Node) -> tuple[float, float]:
    """The bounds of a Clip."""
    if opset(clip) < BOUNDS_ARE_INPUTS_FROM["Clip"]:
        return attribute(clip, "min", FLOAT32_LOWEST), attribute(clip, "max", FLOAT32_HIGHEST)
    minimum, maximum = optional(clip, 1), optional(clip, 2)
    low = -np.inf if minimum is None else scalar(minimum)
    return low, np.inf if maximum is None else scalar(maximum)


def _zero(clip: ir.Node, minimum: ir.Value | None) -> ir.Value:
    if minimum is not None:
        tensor = tensor_of(minimum)
        return constant(np.zeros(tensor.shape.numpy(), tensor.dtype.numpy()), tensor.dtype)
    dtype = clip.inputs[0].dtype if clip.inputs[0] is not None else None
    need(dtype is not None, "the type is unknown", clip)
    assert dtype is not None
    return constant(np.zeros((), dtype.numpy()), dtype)
