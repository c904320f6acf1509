"""A Relu with a slope, spelled out, reads x twice or more; it is one kernel, and part of the convolution before it."""

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import inputs, is_op, need, splat
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import need_single
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.transformers.activation._sloped_relu import LARGEST_SLOPE, LOOKBACK, ROOTS, SlopedRelu, sloped_relu


class LeakyReluFusion(RewriteRule[SlopedRelu]):
    """``Max(x, a · x)`` → ``LeakyRelu<alpha = a>(x)``; so for Where, ``Relu(x) - a · Relu(-x)`` and ``PRelu(x, a)``."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("constant_folding", "constant_reassociation", "not_where_fusion", "relu_fusion")
    roots = (*ROOTS, "PRelu")
    opsets = (9, NEWEST_OPSET)  # before, there was no Where
    lookback = LOOKBACK
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> SlopedRelu:
        """A slope that is one number."""
        sloped = _of_prelu(root) if is_op(root, "PRelu") else sloped_relu(root)
        need(sloped.slope.size == 1, "the slope is not one number", sloped.x)
        need_single(sloped.x)
        return sloped

    def rewrite(self, found: SlopedRelu) -> dict[ir.Value, ir.Value]:
        """Build the LeakyRelu."""
        node = ir.node("LeakyRelu", [found.x], {"alpha": float(found.slope.reshape(-1)[0])})
        return {found.y: node.outputs[0]}


def _of_prelu(root: ir.Node) -> SlopedRelu:
    """A PRelu whose slopes are all the same positive number: a zero keeps its sign then."""
    x, slopes = inputs(root, 2)
    slope = splat(slopes).astype(np.float64)
    need(0 < float(slope) <= LARGEST_SLOPE, "a slope is not positive, or large", slopes)
    return SlopedRelu((root,), x, slope, root.outputs[0])
