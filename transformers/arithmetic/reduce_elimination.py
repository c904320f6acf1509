"""Reducing axes of size 1 changes nothing but the rank."""

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.signs import is_never_negative_zero
from ortopt.graph.facts import is_exact_in_doubles
from ortopt.graph.match import INTEGERS, dims, dtype, inputs, need, opset, same_dim
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule

SUMS = ("ReduceMean", "ReduceSum")
COMPUTED_IN_DOUBLES = (*SUMS, "ReduceProd")


class Found(Struct, frozen=True):
    """The reduction, its input, and the axes that it removes."""

    nodes: tuple[ir.Node, ...]
    source: ir.Value
    dropped: tuple[int, ...]


class ReduceElimination(RewriteRule[Found]):
    """``ReduceSum``, ``Mean``, ``Max``, ``Min``, ``Prod`` over no axis, or axes of size 1 → ``x`` or ``Squeeze(x)``.

    The other reductions compute something of a single element too. ONNX Runtime's sums begin with +0.0, so that a
    ``ReduceSum`` or ``ReduceMean`` of floats goes only where -0.0 cannot be: it would become +0.0 (and 1/x inf). They
    and the products are of doubles, so that integers above 2^53 are rounded, single ones too.
    """

    levels = (TransformerLevel.LEVEL1,)
    roots = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")

    def match(self, root: ir.Node) -> Found:
        """Axes that are known, each of size 1."""
        (x,) = inputs(root, 1)
        shape = dims(x)
        reduction = ops.Reduce(root)
        if reduction.does_nothing:
            return Found((root,), x, ())
        axes = reduction.axes
        need(all(same_dim(shape[axis], 1) for axis in axes), "it reduces several elements, or none", root)
        if root.op_type in COMPUTED_IN_DOUBLES and dtype(x) in INTEGERS:
            need(is_exact_in_doubles(x), "ONNX Runtime rounds integers above 2^53 here", x)
        if root.op_type in SUMS:
            need(is_never_negative_zero(x), "it turns -0.0 into +0.0", x)
        return Found((root,), x, () if reduction.keeps_axes else axes)

    def rewrite(self, found: Found) -> ir.Node | ir.Value:
        """Let users read the input, without the axes if they go."""
        if not found.dropped:
            return found.source
        return ops.node_along("Squeeze", found.source, found.dropped, opset(found.nodes[0]))
