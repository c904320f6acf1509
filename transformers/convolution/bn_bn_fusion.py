"""Scaling and shifting channels twice can be done at once."""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.magnitudes import need_near, need_no_larger
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOATS, dtype, inputs, need, tensor_of
from ortopt.linear.channels import affine_above, normalization
from ortopt.linear.weights import Array, rounded
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
        scale, shift = normalization(first.node, tensor.size)
        scale_after, shift_after = normalization(root, tensor.size)
        with np.errstate(over="ignore", invalid="ignore"):
            both, total = scale * scale_after, shift * scale_after + shift_after
        folded = rounded(both, tensor.dtype, root), rounded(total, tensor.dtype, root)
        need_near(scale, (1.0, both), tensor.dtype, first.node)
        need_no_larger(np.abs(shift), (1.0, scale, total), tensor.dtype, first.node)
        return Found((first.node, root), first.x, *folded)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the one BatchNormalization, of mean 0 and variance 1."""
        parameters = (found.scale, found.shift, np.zeros(found.scale.shape), np.ones(found.scale.shape))
        numbers = [constant(parameter, dtype(found.nodes[0].outputs[0])) for parameter in parameters]
        return ir.node("BatchNormalization", [found.x, *numbers], {"epsilon": 0.0})
