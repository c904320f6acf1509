"""The convolution kernel can apply an activation to each result while it is still in a register."""

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.analysis.kernels import CPU
from ortopt.graph.match import (
    FLOAT,
    attribute,
    dtype,
    inputs,
    need,
    opset,
    optional,
    plain_attributes,
    producer,
    scalar,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.quantization import is_unit
from ortopt.rule import RewriteRule
from ortopt.semantics.opset_changes import BOUNDS_ARE_INPUTS_FROM

MICROSOFT = "com.microsoft"
LIMITS = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))


class Found(NamedTuple):
    """The nodes, the activation's name and its parameters."""

    nodes: tuple[ir.Node, ...]
    convolution: ir.Node
    activation: str
    parameters: tuple[float, ...]


class ConvActivationFusion(RewriteRule[Found]):
    """``Activation(Conv(x, w, b))`` → ``com.microsoft.FusedConv<activation>(x, w, b)``."""

    levels = (TransformerLevel.LEVEL2,)
    numerics = Numerics.REORDERED
    roots = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip")
    providers = (CPU,)
    produces = ((MICROSOFT, "FusedConv"),)

    def match(self, root: ir.Node) -> Found:
        """A convolution in single precision, whose result no other node needs."""
        convolution = producer(inputs(root, 1)[0], "Conv")
        x, _ = inputs(convolution, 2)
        need(dtype(x) == FLOAT, "the kernel is for single precision only", x)
        clips = root.op_type in ("Clip", "Relu")  # as a QuantizeLinear may do by itself
        need(not (clips and is_unit(convolution, root.outputs[0])), "a quantized kernel can do all of it", root)
        plain_attributes(convolution)
        parameters = tuple(float(np.float32(number)) for number in parameters_of(root))
        return Found((convolution, root), convolution, root.op_type, parameters)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the convolution with its activation."""
        node = ir.node("FusedConv", found.convolution.inputs, domain=MICROSOFT)
        node.attributes.update(found.convolution.attributes)
        node.attributes["activation"] = ir.AttrString("activation", found.activation)
        if found.parameters:
            node.attributes["activation_params"] = ir.AttrFloat32s("activation_params", found.parameters)
        return node


def parameters_of(node: ir.Node) -> tuple[float, ...]:
    """The parameters of an activation, in the kernel's order."""
    match node.op_type:
        case "LeakyRelu":
            return (attribute(node, "alpha", 0.01),)
        case "HardSigmoid":
            return attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)
        case "Clip":
            bounds = _bounds(node)
            need(bounds[0] <= bounds[1], "the bounds are out of order", node)
            return bounds
    return ()


def _bounds(node: ir.Node) -> tuple[float, float]:
    if opset(node) < BOUNDS_ARE_INPUTS_FROM["Clip"]:
        return attribute(node, "min", LIMITS[0]), attribute(node, "max", LIMITS[1])
    low, high = optional(node, 1), optional(node, 2)
    return (
        LIMITS[0] if low is None else scalar(low),
        LIMITS[1] if high is None else scalar(high),
    )
