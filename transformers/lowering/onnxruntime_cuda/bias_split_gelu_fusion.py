"""A gated GELU layer adds its bias, splits, activates one half and multiplies: in one pass over memory."""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.kernels import CUDA
from ortopt.graph.match import (
    attribute,
    choose,
    dims,
    inputs,
    is_never_zero,
    is_used_once,
    is_vector_of,
    need,
    only_user,
    producer,
    same_type,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT

HALVES = (1280, 2560, 3072, 5120, 6144)
"""The sizes of a half that the kernel has code for."""


class BiasSplitGeluFusion(RewriteRule[Match]):
    """``left · Gelu(right)`` of ``left, right = Split(x + bias)`` → ``com.microsoft.BiasSplitGelu(x, bias)``."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("gather_slice_to_split_fusion", "gelu_fusion")
    roots = ("Gelu", f"{MICROSOFT}::Gelu")
    lookback = 3
    looks_downstream = True
    providers = (CUDA,)
    produces = ((MICROSOFT, "BiasSplitGelu"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Two equal halves of the last of three dimensions, of a size that there is a kernel for."""
        need(attribute(root, "approximate", "none") == "none", "the Gelu is approximate", root)
        (right,) = inputs(root, 1)
        product = only_user(root.outputs[0], "Mul")
        a, b = inputs(product, 2)
        left = b if a is root.outputs[0] else a
        split = producer(left, "Split")
        need(list(split.outputs) == [left, right], "it is no gate of two halves", split)
        addition = producer(inputs(split, 1)[0], "Add")
        need(all(map(is_used_once, (left, right))), "a half is used elsewhere", split)
        c, d = inputs(addition, 2)
        x, bias = choose([(c, d), (d, c)])
        shape, half = dims(x), dims(left)
        need(len(shape) == 3 and ops.Split(split).is_last, "it is not split along the last of three dimensions", split)
        need(half[-1] in HALVES, "there is no kernel for this size", left)
        need(shape[-1] == 2 * int(str(half[-1])), "the halves are not equal", split)
        need(is_vector_of(bias, shape[-1]) and same_type(x, bias), "it is no bias of the last dimension", bias)
        need(all(is_never_zero(dim, root) for dim in shape), "a dimension may be 0", x)
        y, nodes = product.outputs[0], (addition, split, root, product)
        return Match(nodes, lambda: {y: ir.node("BiasSplitGelu", [x, bias], domain=MICROSOFT).outputs[0]}, (y,))
