"""Axes of reductions, counted so that ONNX Runtime gives the right shape for a batch of 0."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import Dim, dims, inputs, is_op, need, opset, same_dim, users
from ortopt.patterns.rows import ACTIVATIONS
from ortopt.rule import Match
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import ELEMENTWISE, REDUCTIONS, SHAPE_OF_FIRST_INPUT
from ortopt.transformers.lowering.onnxruntime_cpu._rules import CpuRule

MAX_VALUES = 32
"""Further is not looked; a gate of channels, and the root of a variance, have fewer."""

CONVOLUTIONS = ("Conv", "FusedConv")


class ReductionAxesCanonicalization(CpuRule[Match]):
    """``ReduceMean<axes = [-1, -2]>(x)`` → ``ReduceMean<axes = [2, 3]>(x)`` of four dimensions, of which one may be 0.

    Of an x without elements ONNX Runtime's kernels give the shape of x itself where axes are counted from the end. What
    is made of the result would fail there that the original does not, which has two operands of the wrong shape.

    It stays where that shape gets into an output of the model.
    """

    roots = tuple(sorted(REDUCTIONS))
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """Axes from the end that stay as ones, of a value that may be empty; every use broadcasts them again."""
        x = inputs(root, len(root.inputs))[0]
        reduction = ops.Reduce(root)
        stated = reduction.stated_axes
        need(min(stated, default=0) < 0, "no axis is counted from the end", root)
        need(reduction.keeps_axes, "it drops the axes", root)
        shape = dims(x)
        need(not all(isinstance(dim, int) and dim > 0 for dim in shape), "it always has elements", x)
        axes = reduction.axes
        need(_is_broadcast(root.outputs[0], shape, axes), "its shape may be seen in an output", root)
        return Match((root,), lambda: ops.node_along(root.op_type, x, axes, opset(root)))


def _is_broadcast(value: ir.Value, shape: tuple[Dim, ...], axes: Collection[int]) -> bool:
    """Whether all that is computed of a value has a given shape along some axes before anything else is made of it."""
    pending, seen = [value], {value}
    while pending:
        at = pending.pop()
        if at.is_graph_output() or len(seen) > MAX_VALUES:
            return False
        for node in users(at):
            pointwise = is_op(node, *ELEMENTWISE, *SHAPE_OF_FIRST_INPUT, *CONVOLUTIONS)
            if not pointwise and not is_op(node, *CONVOLUTIONS, *ACTIVATIONS, domain=MICROSOFT):
                return False
            for result in node.outputs:
                own = dims(result)
                full = len(own) == len(shape) and all(same_dim(own[axis], shape[axis]) for axis in axes)
                if not full and result not in seen:
                    seen.add(result)
                    pending.append(result)
    return True
