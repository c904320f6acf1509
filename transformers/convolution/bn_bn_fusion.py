"""Scaling and shifting channels twice can be done at once."""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.edit import constant
from ortopt.graph.match import FLOATS, dtype, inputs, need, tensor_of
from ortopt.linear.channels import affine_above, composed, normalization
from ortopt.linear.weights import Array
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """Both normalizations, what is normalized, and the scale and shift of both together."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    scale: Array
    shift: Array


class BnBnFusion(RewriteRule[Found]):
    """``BatchNormalization(BatchNormalization(x))`` → one ``BatchNormalization``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("conv_bn_fusion", "gemm_bn_fusion", "matmul_bn_fusion")
    roots = ("BatchNormalization",)
    opsets = (9, NEWEST_OPSET)  # before, each position could have numbers of its own
    numerics = Numerics.REORDERED
    lookback = 1

    def match(self, root: ir.Node) -> Found:
        """Two normalizations by constants whose product and sum stay finite."""
        middle, gamma = inputs(root, 2)
        first = affine_above(middle, "BatchNormalization")
        tensor = tensor_of(gamma)
        kinds = {dtype(middle), tensor.dtype, tensor_of(inputs(first.node, 2)[1]).dtype}
        need(len(kinds) == 1 and kinds <= FLOATS, "the constants have another type", gamma)
        inner, outer = (normalization(node, tensor.size) for node in (first.node, root))
        scale, shift = composed(inner, outer, tensor.dtype, root)
        return Found((first.node, root), first.x, scale, shift)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the one BatchNormalization, of mean 0 and variance 1."""
        parameters = (found.scale, found.shift, np.zeros(found.scale.shape), np.ones(found.scale.shape))
        kind = dtype(found.nodes[0].outputs[0])
        numbers = [constant(parameter.astype(kind.numpy()), kind) for parameter in parameters]
        return ir.node("BatchNormalization", [found.x, *numbers], {"epsilon": 0.0})
