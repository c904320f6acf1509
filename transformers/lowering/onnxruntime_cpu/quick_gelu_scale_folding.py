"""QuickGELU of a scale is SiLU between two scaled layers, and ONNX Runtime's kernel of SiLU is the faster one."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.analysis.magnitudes import need_near
from ortopt.framework.fusions import check_faster
from ortopt.graph.match import (
    FLOAT,
    attribute,
    inputs,
    need,
    need_float32,
    only_user,
)
from ortopt.linear.folding import Place, layer_alone, node_alone, rebuilt
from ortopt.linear.weights import scaled
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT

FORM = Form(MICROSOFT, "QuickGelu", "with its scale in the layers")
SCALE_OF_THE_OP = 1.702
"""What QuickGelu's attribute is where it is left out."""


class QuickGeluScaleFolding(RewriteRule[Match]):
    """``QuickGelu<alpha>(x·W + b)·V`` → ``QuickGelu<1>(x·(W * alpha) + b * alpha)·(V / alpha)``.

    ONNX Runtime computes SiLU in one vectorized pass.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = (f"{MICROSOFT}::QuickGelu",)
    looks_downstream = True
    providers = (CPU,)
    produces = ((MICROSOFT, "QuickGelu"),)
    weighs = (FORM,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """An activation between two layers with constant weights, which nothing else reads."""
        alpha = float(attribute(root, "alpha", SCALE_OF_THE_OP))
        need(alpha != 1, "its scale is 1", root)
        need(math.isfinite(alpha) and alpha != 0, "its scale is no factor", root)
        check_faster(root, FORM)
        (x,) = inputs(root, 1)
        need_float32(x)
        need_near(1.0, (alpha,), FLOAT, root)
        above, places = layer_alone(node_alone(x, root), root)
        below = only_user(root.outputs[0], "Gemm", "MatMul")
        need(below.inputs[0] is root.outputs[0], "the layer below has no constant weights", below)
        places.append((above[-1], 1))
        contents: dict[Place, np.ndarray] = {
            (node, place): scaled(node.inputs[place], np.asarray(alpha, np.float32)) for node, place in places
        }
        contents[below, 1] = scaled(below.inputs[1], np.asarray(1 / alpha, np.float32))
        nodes, y = (*reversed(above), root, below), below.outputs[0]
        return Match(nodes, lambda: {y: rebuilt(nodes, contents, {root: {"alpha": 1.0}})[y]}, (y,))
