"""Reductions of axes of size 1 change nothing but the rank, and a reduction drops its axes, or keeps them, itself.

A sum that is divided by the number of its summands is a mean.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.signs import is_never_negative_zero
from ortopt.graph import symbolic
from ortopt.graph.facts import is_exact_in_doubles
from ortopt.graph.match import (
    INTEGERS,
    array_of,
    dims,
    dtype,
    inputs,
    is_op,
    keeps_rank,
    need,
    need_fixed,
    need_float,
    operand_constant,
    opset,
    plain_attributes,
    producer,
    same_dim,
    tensor_of,
)
from ortopt.options import Numerics
from ortopt.patterns.affine import is_near
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.op_traits import REDUCTIONS, RESHAPING

SUMS = ("ReduceMean", "ReduceSum")
COMPUTED_IN_DOUBLES = (*SUMS, "ReduceProd")
OF_ONE_AXIS = ("ArgMax", "ArgMin")


class ReduceElimination(RewriteRule[Match]):
    """``ReduceSum``, ``Mean``, ``Max``, ``Min``, ``Prod`` over no axis, or axes of size 1 → ``x`` or ``Squeeze(x)``.

    The other reductions compute something of a single element too. ONNX Runtime's sums begin with +0.0, so that a
    ``ReduceSum`` or ``ReduceMean`` of floats goes only where -0.0 cannot be: it would become +0.0 (and 1/x inf). They
    and the products are of doubles, so that integers above 2^53 are rounded, single ones too.
    """

    roots = ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum")

    def match(self, root: ir.Node) -> Match:
        """Axes that are known, each of size 1."""
        (x,) = inputs(root, 1)
        shape = dims(x)
        reduction = ops.Reduce(root)
        if reduction.does_nothing:
            return Match((root,), lambda: x)
        axes = reduction.axes
        need(all(same_dim(shape[axis], 1) for axis in axes), "it reduces several elements, or none", root)
        if root.op_type in COMPUTED_IN_DOUBLES and dtype(x) in INTEGERS:
            need(is_exact_in_doubles(x), "ONNX Runtime rounds integers above 2^53 here", x)
        if root.op_type in SUMS:
            need(is_never_negative_zero(x), "it turns -0.0 into +0.0", x)
        dropped = () if reduction.keeps_axes else axes
        return Match((root,), lambda: ops.node_along("Squeeze", x, dropped, opset(root)) if dropped else x)


class ReduceReshapeFusion(RewriteRule[Match]):
    """``Unsqueeze(ReduceMean<keepdims = 0>(x))`` → ``ReduceMean<keepdims = 1>(x)``; ``Squeeze`` the other way.

    The same holds for Reshape, and for all reductions, ArgMax and ArgMin.
    """

    roots = tuple(sorted(RESHAPING))
    needs = (*sorted(REDUCTIONS), *OF_ONE_AXIS)

    def match(self, root: ir.Node) -> Match:
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
        return Match((reduction, root), lambda: ops.copied(reduction, reduction.inputs, keepdims=int(keeps)))


class MeanFusion(RewriteRule[Match]):
    """``ReduceSum(x) / n``, or ``· (1 / n)``, → ``ReduceMean(x)`` for sums of n numbers, as JAX writes a mean.

    Patterns of normalization, and of pooling, then see a mean.
    """

    after = ("constant_folding", "div_mul_fusion")
    roots = ("Div", "Mul")
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A sum over axes of fixed sizes, and the number of its summands, to the precision of the type."""
        number, total = operand_constant(root)
        need(is_op(root, "Mul") or number is root.inputs[1], "the sum is the divisor", root)
        sum_ = producer(total, "ReduceSum")
        (x,) = inputs(sum_, 1)
        need_float(x)
        reduction = ops.Reduce(sum_)
        need(not reduction.does_nothing, "it sums nothing up", sum_)
        shape, axes = dims(x), reduction.axes
        count = math.prod(need_fixed([shape[axis] for axis in axes], "the number of summands is not fixed", x))
        need(tensor_of(number).size == 1 and keeps_rank(number, total), "it is no number, or raises the rank", number)
        given = float(array_of(number).astype(np.float64).reshape(()))
        share = given * count if is_op(root, "Mul") else (given / count if count else 0.0)
        need(is_near(share, 1.0, dtype(x)), "it is another number than that of the summands", number)
        keeps = {"keepdims": int(reduction.keeps_axes)}
        return Match((sum_, root), lambda: ops.node_along("ReduceMean", x, axes, opset(root), keeps))
