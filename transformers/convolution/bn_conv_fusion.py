"""A factor and a summand for each channel before a convolution can be folded into its weights and bias."""

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import need
from ortopt.linear.channels import affine_above
from ortopt.linear.folding import LinearFolding
from ortopt.linear.layer import Folded, linear
from ortopt.onnx_ir_internals import use_count
from ortopt.options import TransformerLevel


class BnConvFusion(LinearFolding):
    """``Conv(BatchNormalization(x), W, b)`` → ``Conv(x, W', b')`` without padding.

    With padding, the shift must be 0: the convolution pads with zeros after the shift, and a folded bias would shift
    these zeros too.
    """

    levels = (TransformerLevel.LEVEL1,)
    after = ("bn_bn_fusion", "conv_bn_fusion")
    roots = ("Conv",)
    needs = ("BatchNormalization",)
    lookback = 1

    def match(self, root: ir.Node) -> Folded:
        """Constants that no other node uses, and that stay finite."""
        normalization = affine_above(root.inputs[0], "BatchNormalization")
        layer = linear(root)
        need(use_count(layer.weight) == 1, "the weights are no floats of its own", layer.weight)
        effect = normalization.effect(layer.inputs, 0)
        unshifted = effect.shift is None or not effect.shift.any()
        need(unshifted or not ops.Conv(root).is_padded, "a padded zero would be shifted", root)
        return layer.fold_before(normalization, effect)
