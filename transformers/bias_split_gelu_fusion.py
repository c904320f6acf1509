"""A gated GELU layer adds its bias, splits, activates one half and multiplies: in one pass over memory."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from ortopt.analysis.kernels import CUDA
from ortopt.graph.match import (
    Refusal,
    attribute,
    axis,
    choose,
    dims,
    inputs,
    is_op,
    is_used_once,
    is_vector_of,
    need,
    producer,
    same_type,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.channels import is_surely_positive
from ortopt.rule import RewriteRule

MICROSOFT = "com.microsoft"
HALVES = (1280, 2560, 3072, 5120, 6144)
"""The sizes of a half that the kernel has code for."""


class Found(NamedTuple):
    """The nodes, what is split, and its bias."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    bias: ir.Value


class BiasSplitGeluFusion(RewriteRule[Found]):
    """``left · Gelu(right)`` of ``left, right = Split(x + bias)`` → ``com.microsoft.BiasSplitGelu(x, bias)``."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("gather_slice_to_split_fusion", "gelu_fusion")
    roots = ("Mul",)
    lookback = 4
    providers = (CUDA,)
    produces = ((MICROSOFT, "BiasSplitGelu"),)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """Two equal halves of the last of three dimensions, of a size that there is a kernel for."""
        a, b = inputs(root, 2)
        left, activated = choose([(a, b), (b, a)])
        gelu = activated.producer()
        if gelu is None or not (is_op(gelu, "Gelu") or is_op(gelu, "Gelu", domain=MICROSOFT)):
            raise Refusal("no operand comes from Gelu", root)
        need(attribute(gelu, "approximate", "none") == "none", "the Gelu is approximate", gelu)
        (right,) = inputs(gelu, 1)
        split = producer(left, "Split")
        need(list(split.outputs) == [left, right], "it is no gate of two halves", split)
        addition = producer(inputs(split, 1)[0], "Add")
        need(all(map(is_used_once, (left, right))), "a half is used elsewhere", split)
        c, d = inputs(addition, 2)
        x, bias = choose([(c, d), (d, c)])
        shape, half = dims(x), dims(left)
        need(len(shape) == 3 and axis(split, 3, 0) == 2, "it is not split along the last of three dimensions", split)
        need(half[-1] in HALVES, "there is no kernel for this size", left)
        need(shape[-1] == 2 * int(str(half[-1])), "the halves are not equal", split)
        need(is_vector_of(bias, shape[-1]) and same_type(x, bias), "it is no bias of the last dimension", bias)
        need(all(is_surely_positive(dim, root) for dim in shape), "a dimension may be 0", x)
        return Found((addition, split, gelu, root), x, bias)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the BiasSplitGelu."""
        return ir.node("BiasSplitGelu", [found.x, found.bias], domain=MICROSOFT)
