"""A factor and a summand for each channel before a convolution can be folded into its weights and bias."""

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.magnitudes import need_near, need_no_larger
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOATS,
    array_of,
    inputs,
    is_constant,
    is_used_once,
    need,
    optional,
    producer,
    tensor_of,
)
from ortopt.onnx_ir_internals import use_count
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.batch_normalization import scale_and_shift
from ortopt.patterns.convolution import vector
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """The normalization, the convolution, and its new constants."""

    nodes: tuple[ir.Node, ...]
    weight: np.ndarray
    bias: np.ndarray


class BnConvFusion(RewriteRule[Found]):
    """``Conv(BatchNormalization(x), W, b)`` → ``Conv(x, W', b')`` without padding.

    With padding, the shift must be 0: the convolution pads with zeros after the shift, and a folded bias would shift
    these zeros too.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = ("bn_bn_fusion", "conv_bn_fusion")
    roots = ("Conv",)
    needs = ("BatchNormalization",)
    opsets = (7, NEWEST_OPSET)
    numerics = Numerics.REORDERED
    lookback = 1

    def match(self, root: ir.Node) -> Found:
        """Constants that no other node uses, and that stay finite."""
        middle, weight = inputs(root, 2)
        normalization = producer(middle, "BatchNormalization")
        need(
            middle is normalization.outputs[0] and is_used_once(middle),
            "the normalized value is used elsewhere",
            middle,
        )
        tensor = tensor_of(weight)
        need(tensor.dtype in FLOATS and use_count(weight) == 1, "the weights are no floats of its own", weight)
        group = ops.Conv(root).group
        content = array_of(weight).astype(np.float64)
        need(content.size > 0, "the weights are empty", weight)
        outputs, channels = content.shape[:2]
        scale, shift = scale_and_shift(normalization, channels * group)
        need(not ops.Conv(root).is_padded or not shift.any(), "a padded zero would be shifted", root)
        bias = optional(root, 2)
        need(bias is None or is_constant(bias), "the bias is not a constant", bias)
        by_group = content.reshape(group, outputs // group, channels, -1)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = by_group * scale.reshape(group, 1, channels, 1)
            moved = (by_group * shift.reshape(group, 1, channels, 1)).sum(axis=(2, 3)).reshape(outputs)
            if bias is not None:
                moved = moved + vector(bias, outputs)
            new = scaled.reshape(content.shape).astype(tensor.dtype.numpy()), moved.astype(tensor.dtype.numpy())
        finite = all(bool(np.isfinite(array).all()) for array in new)
        need(finite, "a folded number would not be finite", root)
        behind = np.abs(scaled).sum(axis=(1, 3)).reshape(-1)  # what comes of each input channel of magnitude 1
        need_near(scale, (1.0, behind), tensor.dtype, normalization)
        need_no_larger(np.abs(shift), (1.0, scale), tensor.dtype, normalization)
        return Found((normalization, root), *new)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the convolution."""
        normalization, root = found.nodes
        dtype = tensor_of(root.inputs[1]).dtype
        operands = [normalization.inputs[0], constant(found.weight, dtype), constant(found.bias, dtype)]
        return ir.Node("", "Conv", operands, list(root.attributes.values()))
