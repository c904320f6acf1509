"""Scaling and shifting channels twice can be done at once."""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.magnitudes import need_near, need_no_larger
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOATS, dtype, inputs, is_used_once, need, producer, tensor_of
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.batch_normalization import scale_and_shift
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """Both normalizations, and the scale and shift of both together."""

    nodes: tuple[ir.Node, ...]
    scale: np.ndarray
    shift: np.ndarray


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
        (middle, gamma) = inputs(root, 2)
        first = producer(middle, "BatchNormalization")
        need(middle is first.outputs[0] and is_used_once(middle), "the first result is used elsewhere", middle)
        kind = tensor_of(gamma).dtype
        need(kind in FLOATS and dtype(middle) == kind, "the constants have another type", gamma)
        need(tensor_of(inputs(first, 2)[1]).dtype == kind, "the constants have another type", gamma)
        channels = tensor_of(gamma).size
        scale, shift = scale_and_shift(first, channels)
        scale_after, shift_after = scale_and_shift(root, channels)
        with np.errstate(over="ignore", invalid="ignore"):
            both = (scale * scale_after).astype(kind.numpy())
            moved = (shift * scale_after + shift_after).astype(kind.numpy())
        finite = all(bool(np.isfinite(array).all()) for array in (both, moved))
        need(finite, "a folded number would not be finite", root)
        need_near(scale, (1.0, scale * scale_after), kind, first)
        need_no_larger(np.abs(shift), (1.0, scale, moved.astype(np.float64)), kind, first)
        return Found((first, root), both, moved)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the one BatchNormalization, of mean 0 and variance 1."""
        first = found.nodes[0]
        kind = tensor_of(first.inputs[1]).dtype
        zeros, ones = np.zeros(found.scale.shape), np.ones(found.scale.shape)
        numbers = [constant(parameter, kind) for parameter in (found.scale, found.shift, zeros, ones)]
        return ir.node("BatchNormalization", [first.inputs[0], *numbers], {"epsilon": 0.0})
