"""A constant row that is added before a linear layer can be in the bias that the layer has."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.linear.channels import affine_above
from ortopt.linear.folding import LinearFolding
from ortopt.linear.layer import Folded, biased
from ortopt.options import TransformerLevel


class AddMatmulFusion(LinearFolding):
    """``MatMul(x + c, W) + b`` → ``MatMul(x, W) + (c · W + b)``.

    It runs at level 2, because at level 1 the summand may still be part of what another pass recognises.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("bias_add_fusion", "layer_norm_fusion", "scaled_residual_merging")
    roots = ("Add",)

    def match(self, root: ir.Node) -> Folded:
        """A number for each row of a constant matrix, and one for each column."""
        layer = biased(root)
        addition = affine_above(layer.x, "Add")
        return layer.fold_before(addition, layer.effect_of(addition))
