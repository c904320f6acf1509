"""A constant for each channel of what goes into a convolution can be in its bias, unless zeros are padded behind it."""

from __future__ import annotations

import msgspec
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import is_op, need, users
from ortopt.linear.channels import affine_above
from ortopt.linear.folding import LinearFolding
from ortopt.linear.layer import Folded, linear
from ortopt.options import TransformerLevel


class AddConvFusion(LinearFolding):
    """``Conv(x + c, W, b)`` → ``Conv(x, W, b + W · c)`` without padding, also ``- c``.

    It runs at level 2, because at level 1 the summand may still be part of an activation that another pass recognises.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding", "hard_swish_fusion", "opset_conversion")
    roots = ("Conv",)
    looks_downstream = True

    def match(self, root: ir.Node) -> Folded:
        """A constant that differs along the channels only, before convolutions that need it nowhere else."""
        addition = affine_above(root.inputs[0], "Add", "Sub")
        moved = addition.node.outputs[0]
        need(not ops.Conv(root).is_padded, "a padded zero would be shifted", root)
        others = (user for user in users(moved) if user is not root)
        gone = all(is_op(user, "Conv") and not ops.Conv(user).is_padded for user in others)
        need(gone and not moved.is_graph_output(), "the sum is used elsewhere", moved)
        layer = linear(root)
        folded = layer.fold_before(addition, layer.effect_of(addition))
        return msgspec.structs.replace(folded, nodes=(root,))
