"""A constant factor for each channel of what goes into a convolution can be in its weights."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.analysis.magnitudes import need_near
from ortopt.graph.match import inputs, is_op, is_used_once, need
from ortopt.linear.channels import affine_above
from ortopt.linear.folding import LinearFolding
from ortopt.linear.layer import Folded, linear
from ortopt.linear.weights import scaled
from ortopt.options import TransformerLevel


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
        need(not _is_half_of_gelu(scaling.x), "runtimes recognise GELU by the factor", scaling.node)
        layer = linear(root)
        need(is_used_once(layer.weight), "the weights are used elsewhere", layer.weight)
        factors = layer.effect_of(scaling).scale
        assert factors is not None
        need(bool((factors != 0).all()), "a factor is 0", scaling.number)
        need_near(1.0, (np.abs(factors),), layer.kind, scaling.number)
        weight = scaled(layer.weight, layer.beside(factors, of_outputs=False))
        return Folded((scaling.node, root), layer, scaling.x, weight, None)


def _is_half_of_gelu(value: ir.Value) -> bool:
    """Whether a value is ``x · (1 + Erf(…))`` or ``x · (1 + Tanh(…))``, which ½ makes a GELU that has no op here."""
    product = value.producer()
    if product is None or not is_op(product, "Mul"):
        return False
    factors = [factor.producer() for factor in inputs(product, 2)]
    sums = [node for node in factors if node is not None and is_op(node, "Add")]
    return any(is_op(term.producer(), "Erf", "Tanh") for node in sums for term in inputs(node, 2))
