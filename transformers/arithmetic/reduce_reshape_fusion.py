"""A reduction drops its axes, or keeps them with size 1, as it is told: no other op need do it behind."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.match import dims, inputs, need, plain_attributes, producer
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.op_traits import REDUCTIONS, RESHAPING

OF_ONE_AXIS = ("ArgMax", "ArgMin")


class Found(Struct, frozen=True):
    """The reduction and what follows, and whether the new one keeps its axes."""

    nodes: tuple[ir.Node, ...]
    keeps: bool


class ReduceReshapeFusion(RewriteRule[Found]):
    """``Unsqueeze(ReduceMean<keepdims = 0>(x))`` → ``ReduceMean<keepdims = 1>(x)``; ``Squeeze`` the other way.

    The same holds for Reshape, and for all reductions, ArgMax and ArgMin.
    """

    levels = (TransformerLevel.LEVEL1,)
    roots = tuple(sorted(RESHAPING))
    needs = (*sorted(REDUCTIONS), *OF_ONE_AXIS)

    def match(self, root: ir.Node) -> Found:
        """A result whose shape is that of the reduction with the other value of keepdims."""
        middle, *_ = inputs(root, 1)
        reduction = producer(middle, *sorted(REDUCTIONS), *OF_ONE_AXIS)
        (x,) = inputs(reduction, 1)
        plain_attributes(reduction)
        shape = dims(x)
        need(not ops.Reduce(reduction).does_nothing, "it reduces nothing", reduction)
        axes = ops.Reduce(reduction).axes
        keeps = not ops.Reduce(reduction).keeps_axes
        if keeps:
            wanted = tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
        else:
            wanted = tuple(dim for axis, dim in enumerate(shape) if axis not in axes)
        need(not root.outputs[0].is_graph_output(), "what a file declares of its result is no proof", root)
        need(symbolic.same_shape(dims(root.outputs[0]), wanted), "it gives another shape", root)
        return Found((reduction, root), keeps)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the reduction."""
        old = found.nodes[0]
        return ops.copied(old, old.inputs, keepdims=int(found.keeps))
