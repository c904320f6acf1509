"""The convolution kernel can apply an activation to each result while it is still in a register."""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.kernels import CPU
from ortopt.graph.match import inputs, need, need_float32, plain_attributes, producer
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.convolution_activation import ACTIVATIONS, fused_convolution, parameters_of
from ortopt.patterns.quantization import is_unit
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT


class Found(Struct, frozen=True):
    """The nodes, the activation's name and its parameters."""

    nodes: tuple[ir.Node, ...]
    convolution: ir.Node
    activation: str
    parameters: tuple[float, ...]


class ConvActivationFusion(RewriteRule[Found]):
    """``Activation(Conv(x, w, b))`` → ``com.microsoft.FusedConv<activation>(x, w, b)``."""

    levels = (TransformerLevel.LEVEL2,)
    numerics = Numerics.REORDERED
    roots = ACTIVATIONS
    providers = (CPU,)
    produces = ((MICROSOFT, "FusedConv"),)

    def match(self, root: ir.Node) -> Found:
        """A convolution in single precision, whose result no other node needs."""
        convolution = producer(inputs(root, 1)[0], "Conv")
        x, _ = inputs(convolution, 2)
        need_float32(x, "the kernel is")
        clips = root.op_type in ("Clip", "Relu")  # as a QuantizeLinear may do by itself
        need(not (clips and is_unit(convolution, root.outputs[0])), "a quantized kernel can do all of it", root)
        plain_attributes(convolution)
        parameters = tuple(float(np.float32(number)) for number in parameters_of(root))
        return Found((convolution, root), convolution, root.op_type, parameters)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the convolution with its activation."""
        return fused_convolution(found.convolution, found.activation, found.parameters)
