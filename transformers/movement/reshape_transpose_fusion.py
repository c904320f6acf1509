"""Exporters join heads and batch, transpose three axes and split them: one Transpose of four axes does the same."""

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.match import dims, inputs, is_used_once, need, producer
from ortopt.options import TransformerLevel
from ortopt.patterns.permutations import runs_of
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.semantics.op_traits import RESHAPING


class Found(Struct, frozen=True):
    """The last Reshape, the input of the first one, and the new order of its axes."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    order: tuple[int, ...]


class ReshapeTransposeFusion(RewriteRule[Found]):
    """``Reshape(Transpose(Reshape(x)))`` → ``Transpose(x)`` where the axes that were joined move together."""

    levels = (TransformerLevel.LEVEL1,)
    after = ("reshape_merging", "transpose_merging")
    roots = tuple(sorted(RESHAPING))
    opsets = (5, NEWEST_OPSET)
    lookback = 3

    def match(self, root: ir.Node) -> Found:
        """Each axis of the transposed value joins neighbouring axes of x, and is split into them again."""
        (turned,) = inputs(root, 1)
        transpose = producer(turned, "Transpose")
        need(is_used_once(turned), "the transposed value is used elsewhere", turned)
        (joined,) = inputs(transpose, 1)
        first = producer(joined, *sorted(RESHAPING))
        need(is_used_once(joined), "what is transposed is used elsewhere", joined)
        (x,) = inputs(first, 1)
        need(not root.outputs[0].is_graph_output(), "what a file declares of its result is no proof", root)
        source, result = dims(x), dims(root.outputs[0])
        runs = runs_of(source, dims(joined))
        perm = ops.Transpose(transpose).order
        order = tuple(axis for place in perm for axis in runs[place])
        apart = tuple(source[axis] for axis in order)
        need(symbolic.same_shape(apart, result), "the axes come apart into others", root)
        return Found((root,), x, order)

    def rewrite(self, found: Found) -> ir.Node | ir.Value:
        """Build the one Transpose."""
        if found.order == tuple(range(len(found.order))):
            return found.source
        return ir.node("Transpose", [found.source], {"perm": found.order})
