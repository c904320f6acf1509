"""The convolution kernel can add a residual, and apply an activation, to each result while it is in a register."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.kernels import CPU
from ortopt.graph.match import (
    dims,
    inputs,
    is_op,
    is_used_once,
    need,
    need_float32,
    operand_from,
    plain_attributes,
    same_dim,
    users,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.convolution_activation import ACTIVATIONS, fused_convolution, parameters_of
from ortopt.patterns.quantization import is_unit
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT


class Found(Struct, frozen=True):
    """The nodes, the residual, the activation's name and its parameters; and the result."""

    nodes: tuple[ir.Node, ...]
    convolution: ir.Node
    residual: ir.Value
    activation: str
    parameters: tuple[float, ...]
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result, which may stand below the root."""
        return (self.y,)


class ConvAddActivationFusion(RewriteRule[Found]):
    """``Activation(Conv(x, w, b) + z)`` → ``com.microsoft.FusedConv<activation>(x, w, b, z)``.

    This also works without an activation.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("conv_add_fusion",)
    roots = ("Add",)
    needs = ("Conv",)
    looks_downstream = True
    providers = (CPU,)  # CUDA's kernel makes 0 of a NaN
    produces = ((MICROSOFT, "FusedConv"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A residual of the convolution's own shape."""
        convolution, residual = operand_from(root, "Conv")
        x, _ = inputs(convolution, 2)
        need_float32(x, "the kernel is")
        shape, other = dims(convolution.outputs[0]), dims(residual)
        alike = len(shape) == len(other) and all(map(same_dim, shape, other))
        need(len(shape) == 4 and alike, "what is added has another shape", residual)
        need(residual is not convolution.outputs[0], "it is added to itself", root)
        need(not is_unit(convolution, root.outputs[0]), "a quantized kernel can do all of it", root)
        plain_attributes(convolution)
        activation = _activation(root.outputs[0])
        if activation is None:
            return Found((convolution, root), convolution, residual, "", (), root.outputs[0])
        parameters = tuple(float(np.float32(number)) for number in parameters_of(activation))
        nodes = (convolution, root, activation)
        return Found(nodes, convolution, residual, activation.op_type, parameters, activation.outputs[0])

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the convolution with the residual and the activation."""
        node = fused_convolution(found.convolution, found.activation, found.parameters, found.residual)
        return {found.y: node.outputs[0]}


def _activation(value: ir.Value) -> ir.Node | None:
    """The one user of a value, if it is an activation that the kernel knows."""
    if not is_used_once(value):
        return None
    (user,) = users(value)
    return user if is_op(user, *ACTIVATIONS) and user.graph is value.graph and user.inputs[0] is value else None
