"""ONNX Runtime sums over axes in the middle element by element; a product with a row of ones is vectorized.

Networks that keep channels last sum over height and width so: the response normalization of ConvNeXt V2, pooling at
the end of vision transformers.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Dim,
    Refusal,
    dims,
    inputs,
    is_never_zero,
    is_op,
    need,
    need_float32,
    opset,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

SQUARES = ("ReduceL2", "ReduceSumSquare")
FORM, FORM_OF_ANY_NUMBER = (Form("", "MatMul", f"of ones in place of sums{of}") for of in ("", " of any number"))
MAX_TERMS = 1 << 16
"""Elements of a sum, at most: the row of ones is stored."""

SHAPE_HAS_AN_END = 15


class Found(Struct, frozen=True):
    """The reduction.

    Attributes:
        nodes: The reduction.
        x: What it sums up.
        first: The first of its axes, which are neighbours.
        size: The number of elements of each sum.
        is_of_matrices: Whether x has the two axes of a product, and the result keeps them.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    first: int
    size: int
    is_of_matrices: bool


class ReduceMatmulConversion(RewriteRule[Found]):
    """``ReduceSum<axes = [1, 2]>(x)`` → ``MatMul([1, 1, …], x)`` for axes before the last, also means and squares.

    Also the channels of signals of any length (layer normalization between convolutions). Over axes behind others the
    kernel of sums is as fast.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = (*SQUARES, "ReduceMean", "ReduceSum")
    opsets = (5, NEWEST_OPSET)  # before, a Reshape's shape was an attribute
    providers = (CPU,)
    targets = (Target.ORT,)
    weighs = (FORM, FORM_OF_ANY_NUMBER)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """Neighbouring axes of fixed sizes, and something behind them."""
        x = inputs(root, len(root.inputs))[0]
        shape = dims(x)
        need_float32(x)
        axes = ops.Reduce(root).axes
        neighbours = bool(axes) and axes == tuple(range(axes[0], axes[-1] + 1))
        need(neighbours and axes[-1] < len(shape) - 1, "it sums over no axes in the middle", root)
        behind = axes[-1] + 1
        size, columns = _elements(shape[axes[0] : behind]), _elements(shape[behind:])
        is_of_matrices = len(axes) == 1 and behind == len(shape) - 1 and ops.Reduce(root).keeps_axes
        if size is None or (columns is None and not is_of_matrices):
            raise Refusal("a size is not fixed", x)
        need(1 < size <= MAX_TERMS, "it adds nothing up, or too much", x)
        if columns is None:
            check_faster(root, FORM_OF_ANY_NUMBER, length=size)
        else:
            check_faster(root, FORM, length=size, elements=size * columns)
        need(root.op_type in SQUARES or not _has_batches(shape[: axes[0]]), "axes come before, and it is as fast", x)
        fits = _is_never_empty(x, axes[0], root) or opset(root) >= SHAPE_HAS_AN_END
        need(fits, "there may be nothing, and the opset has no Shape of some axes", root)
        return Found((root,), x, axes[0], size, is_of_matrices)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the product, with one axis for those that are summed up, and one for those behind them."""
        (root,) = found.nodes
        shape = dims(found.x)
        leading = [0] * found.first
        x = found.x
        if is_op(root, *SQUARES):
            x = ir.node("Mul", [x, x]).outputs[0]
        if not found.is_of_matrices:
            columns = math.prod(size for size in shape[found.first :] if isinstance(size, int)) // found.size
            x = ir.node("Reshape", [x, constant([*leading, found.size, columns])]).outputs[0]
        row = _row(found, 1 / found.size if root.op_type == "ReduceMean" else 1.0)
        total = ir.node("MatMul", [row, x])
        if root.op_type == "ReduceL2":
            total = ir.node("Sqrt", [total.outputs[0]])
        if found.is_of_matrices:
            return total
        behind = [size for size in dims(root.outputs[0])[found.first :] if isinstance(size, int)]
        return ir.node("Reshape", [total.outputs[0], constant([*leading, *behind])])


def _elements(shape: tuple[Dim, ...]) -> int | None:
    """How many elements there are; None where a size is not fixed, or there are none."""
    sizes = [size for size in shape if isinstance(size, int) and size > 0]
    return math.prod(sizes) if len(sizes) == len(shape) else None


def _has_batches(leading: tuple[Dim, ...]) -> bool:
    """Whether more than one matrix is known to be summed up: a free size is expected to be 1."""
    return math.prod(size for size in leading if isinstance(size, int)) > 1


def _row(found: Found, number: float) -> ir.Value:
    """What the sums are products with: ONNX Runtime multiplies no single row by no matrices, so it is one for each."""
    (root,) = found.nodes
    if _is_never_empty(found.x, found.first, root):
        return constant(np.full((1, found.size), number, np.float32), FLOAT)
    leading = ir.node("Shape", [found.x], {"start": 0, "end": found.first})
    shape = ir.node("Concat", [leading.outputs[0], constant([1, found.size])], {"axis": 0})
    value = ir.tensor(np.array([number], np.float32))
    return ir.node("ConstantOfShape", [shape.outputs[0]], {"value": value}).outputs[0]


def _is_never_empty(x: ir.Value, first: int, at: ir.Node) -> bool:
    return all(is_never_zero(dim, at) for dim in dims(x)[:first])
