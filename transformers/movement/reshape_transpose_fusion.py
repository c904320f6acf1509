"""Exporters join heads and batch, transpose three axes and split them: one Transpose of four axes does the same."""

import onnx_ir as ir

from ortopt.graph.match import inputs, is_used_once, need, producer
from ortopt.options import TransformerLevel
from ortopt.patterns.permutations import hides_exchange
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.op_traits import RESHAPING
from ortopt.views.emission import chain
from ortopt.views.reading import through


class ReshapeTransposeFusion(RewriteRule[Match]):
    """``Reshape(Transpose(Reshape(x)))`` → ``Transpose(x)`` where the axes that were joined move together."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("reshape_merging", "transpose_merging")
    roots = tuple(sorted(RESHAPING))
    opsets = (5, NEWEST_OPSET)
    lookback = 3

    def match(self, root: ir.Node) -> Match:
        """Three moves, of which nothing else reads what is between, that one does."""
        (turned,) = inputs(root, 1)
        transpose = producer(turned, "Transpose")
        need(is_used_once(turned), "the transposed value is used elsewhere", turned)
        (joined,) = inputs(transpose, 1)
        first = producer(joined, *sorted(RESHAPING))
        need(is_used_once(joined), "what is transposed is used elsewhere", joined)
        (x,) = inputs(first, 1)
        fewer = chain(through(x, first, transpose, root), root)
        need(fewer.nodes <= 1, "no single move does the same", root)
        perm = fewer.moves.perm
        fast = perm is None or not hides_exchange(fewer.moves.moved, perm)
        need(fast, "axes of size 1 would be in the way of its fast path", root)  # transpose_decomposition
        return Match((root,), fewer.build)
