"""Vectors, sums of rows and sums over axes as products of matrices, which are vectorized."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernel_history import ROOT_OF_INFINITY
from ortopt.framework.fusions import check_faster
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    DOUBLE,
    FLOAT,
    Dim,
    Refusal,
    array_of,
    dims,
    dtype,
    inputs,
    is_constant,
    is_never_zero,
    is_op,
    need,
    need_fixed,
    need_float32,
    opset,
    producer,
    rank,
)
from ortopt.graph.provenance import NEEDS_KEY
from ortopt.options import MEASURED_TARGETS, Numerics
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.opset_changes import SHAPE_HAS_AN_END_FROM
from ortopt.transformers.lowering.onnxruntime_cpu._rules import CpuRule

NEGATIVE_AXES_FROM = 11


class MatmulVectorConversion(CpuRule[Match]):
    """``MatMul(a, vector)`` → ``Squeeze(MatMul(a, Unsqueeze(vector)))``, on the CPU of ONNX Runtime.

    ONNX Runtime multiplies a vector row by row of a matrix, one call each; a matrix of one column is one call.

    It gains the more, the more rows the matrix has.
    """

    roots = ("MatMul",)
    opsets = (NEGATIVE_AXES_FROM, NEWEST_OPSET)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A matrix, or a stack of matrices, and a vector, both of floats."""
        left, right = inputs(root, 2)
        need(rank(right) == 1, "the second operand is no vector", right)
        need(rank(left) > 1, "the first operand is a vector", left)
        need(dtype(left) in (FLOAT, DOUBLE), "the kernel that is slow is one of floats", left)
        *rows, inner = dims(left)
        need(is_never_zero(inner, root), "of nothing ONNX Runtime clears one number of the result only", left)
        need(not all(isinstance(dim, int) and dim == 1 for dim in rows), "there is one row", left)
        return Match((root,), lambda: _of_column(left, right, opset(root)))


def _of_column(left: ir.Value, vector: ir.Value, version: int) -> ir.Node:
    """Build the product with a matrix of one column."""
    if is_constant(vector):  # at this level, constants are not folded any more
        column = constant(array_of(vector).reshape(-1, 1), dtype(vector))
    else:
        column = ops.unsqueezed(vector, [1], version)
    return ops.node_along("Squeeze", ir.node("MatMul", [left, column]).outputs[0], [-1], version)


ONES: Final = Form("", "MatMul", "of ones in place of a sum")

COLUMN, ROW = -1, -2
"""The axes that an Unsqueeze gives a column and a row, counted from the end of what it gives."""

MAX_MOVES: Final = 8
MOVES: Final = ("Reshape", "Squeeze", "Transpose", "Unsqueeze")
PRODUCTS: Final = (("", "Einsum"), ("", "Gemm"), ("", "MatMul"), (MICROSOFT, "FusedMatMul"))


class OuterSumConversion(CpuRule[Match]):
    """``Unsqueeze<-1>(a) + Unsqueeze<-2>(b)`` → ``MatMul(Concat(a, b), ones)`` where a and b end in short axes.

    ONNX Runtime adds a column to a row in runs as long as the row; short runs cost more than a product with ones.

    Attention to images (SAM, ViTDet, MViT) adds a term for each height and a term for each width: for each query a
    small matrix, the sum of a column and a row.

    A column of `ones` has a one for its height and a one for its width. For long rows, the kernel of sums is as fast.
    Only what comes out of products counts: masks may be infinite, and an infinity times zero is no number.
    """

    targets = MEASURED_TARGETS
    roots = ("Add",)
    opsets = (5, NEWEST_OPSET)  # before, a Reshape's shape was an attribute
    lookback = 3
    weighs = (ONES,)
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Match:
        """A column and a row of fixed sizes, with the same axes before them."""
        a, b = (_unsqueezed(value) for value in inputs(root, 2))
        need({a[1], b[1]} == {COLUMN, ROW}, "they are no column and row", root)
        column, row = (a[0], b[0]) if a[1] == COLUMN else (b[0], a[0])
        need_float32(column)
        leading, others = dims(column)[:-1], dims(row)[:-1]
        need(bool(leading) and symbolic.same_shape(leading, others), "the axes before them differ", root)
        height, width = (need_fixed(dims(value)[-1:], "a size is not fixed", value)[0] for value in (column, row))
        need(min(height, width) > 1, "one of them is a number", root)
        check_faster(root, ONES, side=max(height, width), elements=height * width)
        _check_product(column)
        _check_product(row)
        return Match((root,), lambda: _of_ones(column, row, height, width))


def _of_ones(column: ir.Value, row: ir.Value, height: int, width: int) -> ir.Node:
    """Build the product, and the view of its columns as a matrix."""
    axis = len(dims(row)) - 1
    both = ir.node("Concat", [column, row], {"axis": axis})
    by_height = np.repeat(np.eye(height, dtype=np.float32), width, axis=1)
    by_width = np.tile(np.eye(width, dtype=np.float32), (1, height))
    total = ir.node("MatMul", [both.outputs[0], constant(np.concatenate([by_height, by_width]), FLOAT)])
    return ir.node("Reshape", [total.outputs[0], constant([*[0] * axis, height, width])])


def _unsqueezed(value: ir.Value) -> tuple[ir.Value, int]:
    """What an Unsqueeze takes, and the one axis that it gives, counted from the end."""
    node = producer(value, "Unsqueeze")
    x = inputs(node, len(node.inputs))[0]
    axes = ops.Unsqueeze(node).axes
    need(len(axes) == 1, "more than one axis is new", node)
    return x, axes[0] - len(dims(x)) - 1


def _check_product(value: ir.Value) -> None:
    """Check that numbers come out of a product.

    Raises:
        Refusal: If they come from anywhere else.
    """
    for _ in range(MAX_MOVES):
        node = value.producer()
        if node is not None and (node.domain, node.op_type) in PRODUCTS:
            return
        if not is_op(node, *MOVES):
            raise Refusal("they come out of no product, and may be infinite", value)
        value = inputs(node, len(node.inputs))[0]
    raise Refusal("no product is near", value)


SQUARES = ("ReduceL2", "ReduceSumSquare")
SUMS, SUMS_OF_ANY_NUMBER = (Form("", "MatMul", f"of ones in place of sums{of}") for of in ("", " of any number"))
MAX_TERMS = 1 << 16
"""Elements of a sum, at most: the row of ones is stored."""


class ReduceMatmulConversion(CpuRule[Match]):
    """``ReduceSum<axes = [1, 2]>(x)`` → ``MatMul([1, 1, …], x)`` for axes before the last, also means and squares.

    ONNX Runtime sums over axes in the middle element by element; a product with a row of ones is vectorized.

    Networks that keep channels last sum over height and width so: the response normalization of ConvNeXt V2, pooling at
    the end of vision transformers.

    Also the channels of signals of any length (layer normalization between convolutions). Over axes behind others the
    kernel of sums is as fast.
    """

    targets = MEASURED_TARGETS
    roots = (*SQUARES, "ReduceMean", "ReduceSum")
    opsets = (5, NEWEST_OPSET)  # before, a Reshape's shape was an attribute
    weighs = (SUMS, SUMS_OF_ANY_NUMBER)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
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
            check_faster(root, SUMS_OF_ANY_NUMBER, length=size)
        else:
            check_faster(root, SUMS, length=size, elements=size * columns)
        need(root.op_type in SQUARES or not _has_batches(shape[: axes[0]]), "axes come before, and it is as fast", x)
        fits = _is_never_empty(x, axes[0], root) or opset(root) >= SHAPE_HAS_AN_END_FROM
        need(fits, "there may be nothing, and the opset has no Shape of some axes", root)
        return Match((root,), lambda: _summed(root, x, axes[0], size, None if is_of_matrices else columns))


def _summed(root: ir.Node, x: ir.Value, first: int, size: int, columns: int | None) -> ir.Node:
    """Build the product, with one axis for those that are summed up, and one for those behind them.

    Args:
        root: The reduction.
        x: What it sums up.
        first: The first of its axes, which are neighbours.
        size: The number of elements of each sum.
        columns: How many sums there are side by side; None where x has the two axes of a product, and the result too.
    """
    leading = [0] * first
    row = _row(x, first, size, 1 / size if root.op_type == "ReduceMean" else 1.0, root)
    if is_op(root, *SQUARES):
        x = ir.node("Mul", [x, x]).outputs[0]
    if columns is not None:
        x = ir.node("Reshape", [x, constant([*leading, size, columns])]).outputs[0]
    total = ir.node("MatMul", [row, x])
    if root.op_type == "ReduceL2":
        total = ir.node("Sqrt", [total.outputs[0]], metadata_props={NEEDS_KEY: ROOT_OF_INFINITY})
    if columns is None:
        return total
    behind = [size for size in dims(root.outputs[0])[first:] if isinstance(size, int)]
    return ir.node("Reshape", [total.outputs[0], constant([*leading, *behind])])


def _elements(shape: tuple[Dim, ...]) -> int | None:
    """How many elements there are; None where a size is not fixed, or there are none."""
    sizes = [size for size in shape if isinstance(size, int) and size > 0]
    return math.prod(sizes) if len(sizes) == len(shape) else None


def _has_batches(leading: tuple[Dim, ...]) -> bool:
    """Whether more than one matrix is known to be summed up: a free size is expected to be 1."""
    return math.prod(size for size in leading if isinstance(size, int)) > 1


def _row(x: ir.Value, first: int, size: int, number: float, root: ir.Node) -> ir.Value:
    """What the sums are products with: ONNX Runtime multiplies no single row by no matrices, so it is one for each."""
    if _is_never_empty(x, first, root):
        return constant(np.full((1, size), number, np.float32), FLOAT)
    leading = ir.node("Shape", [x], {"start": 0, "end": first})
    shape = ir.node("Concat", [leading.outputs[0], constant([1, size])], {"axis": 0})
    value = ir.tensor(np.array([number], np.float32))
    return ir.node("ConstantOfShape", [shape.outputs[0]], {"value": value}).outputs[0]


def _is_never_empty(x: ir.Value, first: int, at: ir.Node) -> bool:
    return all(is_never_zero(dim, at) for dim in dims(x)[:first])
