"""Activations that the kernel of a convolution can apply to its own result."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import attribute, is_op, need, opset, optional, scalar
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.opset_changes import BOUNDS_ARE_INPUTS_FROM

ACTIVATIONS = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip")
LIMITS = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))


def is_convolution(node: ir.Node | None) -> bool:
    """Whether a node is a convolution of floats, with an activation or without."""
    return is_op(node, "Conv") or is_op(node, "FusedConv", domain=MICROSOFT)


def parameters_of(node: ir.Node) -> tuple[float, ...]:
    """The parameters of an activation, in the kernel's order."""
    if node.op_type != "Clip":
        return tuple(ops.Activation(node).parameters.values())
    bounds = _bounds(node)
    need(bounds[0] <= bounds[1], "the bounds are out of order", node)
    return bounds


def _bounds(node: ir.Node) -> tuple[float, float]:
    if opset(node) < BOUNDS_ARE_INPUTS_FROM["Clip"]:
        return attribute(node, "min", LIMITS[0]), attribute(node, "max", LIMITS[1])
    low, high = optional(node, 1), optional(node, 2)
    return (
        LIMITS[0] if low is None else scalar(low),
        LIMITS[1] if high is None else scalar(high),
    )


def fused_convolution(
    convolution: ir.Node, activation: str, parameters: Sequence[float], residual: ir.Value | None = None
) -> ir.Node:
    """Build a convolution with an activation.

    Args:
        convolution: The Conv that it stands for.
        activation: The activation's op type; empty for none.
        parameters: The activation's parameters (see `parameters_of`).
        residual: What is added before the activation, of the result's shape.
    """
    operands = list(convolution.inputs)
    if residual is not None:
        operands = [*operands, *([None] * (3 - len(operands))), residual]
    node = ir.node("FusedConv", operands, domain=MICROSOFT)
    node.attributes.update(convolution.attributes)
    if activation:
        node.attributes["activation"] = ir.AttrString("activation", activation)
    if parameters:
        node.attributes["activation_params"] = ir.AttrFloat32s("activation_params", parameters)
    return node


def separate_activation(convolution: ir.Node, value: ir.Value) -> ir.Value:
    """Apply the activation of a fused convolution to another value, from opset 11 on.

    Args:
        convolution: A FusedConv, or a Conv, which has no activation.
        value: What the convolution computes, before its activation.
    """
    kind = attribute(convolution, "activation", "")
    if not kind:
        return value
    parameters: Sequence[float] = attribute(convolution, "activation_params", ())
    if kind == "Clip":
        bounds = [constant(np.array(bound, np.float32)) for bound in parameters]
        return ir.node(kind, [value, *bounds]).outputs[0]
    named: dict[str, float] = dict(zip(("alpha", "beta"), parameters, strict=False))
    return ir.node(kind, [value], named).outputs[0]
