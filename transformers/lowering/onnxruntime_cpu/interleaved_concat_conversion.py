"""Tensors that are joined one after another and then interleaved are copied twice; joined in turns, they are once.

ShuffleNet and its relatives shuffle the channels of two branches so, a Concat, a Reshape and a Transpose each time.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph.match import dims, inputs, is_used_once, need, opset, producer, same_dim
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.op_traits import RESHAPING
from ortopt.views.index_map import identity, reordered, reshaped, same
from ortopt.views.reading import through


class InterleavedConcatConversion(RewriteRule[Match]):
    """``Transpose(Reshape(Concat(a, b)))`` that interleaves a and b → ``Concat(Unsqueeze(a), Unsqueeze(b))``.

    The same bits, and one move of the elements instead of two.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Transpose",)
    opsets = (5, NEWEST_OPSET)  # the first with a Reshape to a shape that is an input
    providers = (CPU,)
    targets = (Target.ORT,)
    lookback = 2

    def match(self, root: ir.Node) -> Match:
        """Moves that put the number of the tensor behind the place in it."""
        (apart,) = inputs(root, 1)
        reshape = producer(apart, *sorted(RESHAPING))
        need(is_used_once(apart), "what is reshaped is used elsewhere", apart)
        (joined,) = inputs(reshape, 1)
        concat = producer(joined, "Concat")
        need(is_used_once(joined), "what is joined is used elsewhere", joined)
        along, parts = ops.Concat(concat).axis, inputs(concat, len(concat.inputs))
        need(len(parts) > 1, "it joins nothing", concat)
        size = dims(parts[0])[along]
        need(all(same_dim(dims(part)[along], size) for part in parts), "the tensors have several sizes", concat)
        whole = dims(joined)
        tensors = reshaped(identity(joined), (*whole[:along], len(parts), size, *whole[along + 1 :]))
        behind = [*range(along), along + 1, along, *range(along + 2, len(whole) + 1)]
        need(same(through(joined, reshape, root), reordered(tensors, behind)), "the tensors take no turns", root)
        return Match((concat, reshape, root), lambda: _joined(parts, along + 1, opset(root)))


def _joined(parts: Sequence[ir.Value], axis: int, version: int) -> ir.Node:
    """Build the new axis of each tensor, behind the one that they share, and join them along it."""
    return ir.node("Concat", [ops.unsqueezed(part, [axis], version) for part in parts], {"axis": axis})
