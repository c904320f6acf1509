"""Constants that scale and shift channels beside a convolution go into its weights and its bias."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.magnitudes import need_near
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOATS, dtype, inputs, is_op, is_used_once, need, need_known, tensor_of, users
from ortopt.linear.channels import affine_above, composed, normalization
from ortopt.linear.folding import LinearFolding
from ortopt.linear.layer import CONVOLUTIONS, Folded, linear
from ortopt.linear.weights import Array, scaled
from ortopt.onnx_ir_internals import use_count
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.affine import check_no_half_of_gelu
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule


class ConvAddFusion(LinearFolding):
    """``Conv(x, W, b) + c`` → ``Conv(x, W, b + c)``, ``- c``, a Sum of both and ``ConvTranspose`` too."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL3)
    roots = ("Add", "Sub", "Sum")
    needs = CONVOLUTIONS


class ConvMulFusion(LinearFolding):
    """``Conv(x, W, b) * c`` → ``Conv(x, W * c, b * c)``, ``/ c`` and ``ConvTranspose`` too."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL3)
    roots = ("Mul", "Div")
    needs = CONVOLUTIONS


class ConvBnFusion(LinearFolding):
    """``BatchNormalization(Conv(x, W, b))`` → ``Conv(x, W', b')``, ``ConvTranspose`` too."""

    roots = ("BatchNormalization",)


class BnBnFusion(RewriteRule[Match]):
    """``BatchNormalization(BatchNormalization(x))`` → one ``BatchNormalization``."""

    after = ("conv_bn_fusion", "gemm_bn_fusion", "matmul_bn_fusion")
    roots = ("BatchNormalization",)
    opsets = (9, NEWEST_OPSET)  # before, each position could have numbers of its own
    numerics = Numerics.REORDERED
    lookback = 1

    def match(self, root: ir.Node) -> Match:
        """Two normalizations by constants whose product and sum stay finite."""
        middle, gamma = inputs(root, 2)
        first = affine_above(middle, "BatchNormalization")
        tensor = tensor_of(gamma)
        kinds = {dtype(middle), tensor.dtype, tensor_of(inputs(first.node, 2)[1]).dtype}
        need(len(kinds) == 1 and kinds <= FLOATS, "the constants have another type", gamma)
        inner, outer = (normalization(node, tensor.size) for node in (first.node, root))
        scale, shift = composed(inner, outer, tensor.dtype, root)
        return Match((first.node, root), lambda: _normalization(first.x, scale, shift, tensor.dtype))


class BnConvFusion(LinearFolding):
    """``Conv(BatchNormalization(x), W, b)`` → ``Conv(x, W', b')`` without padding.

    With padding, the shift must be 0: the convolution pads with zeros after the shift, and a folded bias would shift
    these zeros too.
    """

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


class MulConvFusion(LinearFolding):
    """``Conv(x * c, W, b)`` → ``Conv(x, W * c, b)``, also ``/ c``: padding is 0 in both.

    It runs at level 2, because at level 1 the factor may still be part of an activation that another pass recognises.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("constant_folding", "fast_gelu_fusion", "gelu_fusion", "opset_conversion", "quick_gelu_fusion")
    roots = ("Conv",)

    def match(self, root: ir.Node) -> Folded:
        """A constant that differs along the channels only, and constant weights that nothing else needs."""
        scaling = affine_above(root.inputs[0], "Mul", "Div")
        check_no_half_of_gelu(scaling.x)
        layer = linear(root)
        need(is_used_once(layer.weight), "the weights are used elsewhere", layer.weight)
        factors = need_known(layer.effect_of(scaling).scale, "it scales nothing", root)
        need(bool((factors != 0).all()), "a factor is 0", scaling.number)
        need_near(1.0, (np.abs(factors),), layer.kind, scaling.number)
        weight = scaled(layer.weight, layer.beside(factors, of_outputs=False))
        return Folded((scaling.node, root), layer, scaling.x, weight, None)


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


def _normalization(x: ir.Value, scale: Array, shift: Array, kind: ir.DataType) -> ir.Node:
    """A BatchNormalization of mean 0 and variance 1."""
    parameters = (scale, shift, np.zeros(scale.shape), np.ones(scale.shape))
    numbers = [constant(parameter.astype(kind.numpy()), kind) for parameter in parameters]
    return ir.node("BatchNormalization", [x, *numbers], {"epsilon": 0.0})
