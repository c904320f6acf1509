"""The convolution kernel can add a residual, and apply an activation, to each result while it is in a register."""

from __future__ import annotations

from functools import partial

import numpy as np
import onnx_ir as ir

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
    producer,
    users,
)
from ortopt.graph.symbolic import same_shape
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.convolutions import ACTIVATIONS, fused_convolution, parameters_of
from ortopt.patterns.quantization import is_unit
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT


class ConvActivationFusion(RewriteRule[Match]):
    """``Activation(Conv(x, w, b))`` → ``com.microsoft.FusedConv<activation>(x, w, b)``."""

    levels = (TransformerLevel.LEVEL2,)
    numerics = Numerics.REORDERED
    roots = ACTIVATIONS
    needs = ("Conv",)
    providers = (CPU,)
    produces = ((MICROSOFT, "FusedConv"),)

    def match(self, root: ir.Node) -> Match:
        """A convolution in single precision, whose result no other node needs."""
        convolution = producer(inputs(root, 1)[0], "Conv")
        x, _ = inputs(convolution, 2)
        need_float32(x, "the kernel is")
        clips = root.op_type in ("Clip", "Relu")  # as a QuantizeLinear may do by itself
        need(not (clips and is_unit(convolution, root.outputs[0])), "a quantized kernel can do all of it", root)
        plain_attributes(convolution)
        return _fused((convolution, root), root)


class ConvAddActivationFusion(RewriteRule[Match]):
    """``Activation(Conv(x, w, b) + z)`` → ``com.microsoft.FusedConv<activation>(x, w, b, z)``.

    This also works without an activation.
    """

    levels = (TransformerLevel.LEVEL2, TransformerLevel.LEVEL3)  # what level 3 brings into blocks counts, too
    after = ("conv_add_fusion",)
    roots = ("Add",)
    needs = ("Conv",)
    looks_downstream = True
    providers = (CPU,)  # CUDA's kernel makes 0 of a NaN
    targets = (Target.ORT,)  # WebGPU's leaves out what is added
    produces = ((MICROSOFT, "FusedConv"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A residual of the convolution's own shape."""
        convolution, residual = operand_from(root, "Conv")
        x, _ = inputs(convolution, 2)
        need_float32(x, "the kernel is")
        shape, other = dims(convolution.outputs[0]), dims(residual)
        need(len(shape) == 4 and same_shape(shape, other), "what is added has another shape", residual)
        need(residual is not convolution.outputs[0], "it is added to itself", root)
        need(not is_unit(convolution, root.outputs[0]), "a quantized kernel can do all of it", root)
        plain_attributes(convolution)
        activation = _activation(root.outputs[0])
        nodes = (convolution, root) if activation is None else (convolution, root, activation)
        return _fused(nodes, activation, residual)


def _fused(nodes: tuple[ir.Node, ...], activation: ir.Node | None, residual: ir.Value | None = None) -> Match:
    """The match of a convolution and what follows it, which its kernel does too."""
    name = "" if activation is None else activation.op_type
    parameters = () if activation is None else tuple(float(np.float32(each)) for each in parameters_of(activation))
    build = partial(fused_convolution, nodes[0], name, parameters, residual)
    return Match.ending_in(nodes[-1].outputs[0], nodes, build)


def _activation(value: ir.Value) -> ir.Node | None:
    """The one user of a value, if it is an activation that the kernel knows."""
    if not is_used_once(value):
        return None
    (user,) = users(value)
    return user if is_op(user, *ACTIVATIONS) and user.graph is value.graph and user.inputs[0] is value else None
