"""A product of one-hot rows and a constant matrix reads rows of it: so JAX and TensorFlow write small embeddings."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    array_of,
    dims,
    inputs,
    is_constant,
    is_op,
    need,
    need_fixed,
    need_float32,
    operand_constant,
    opset,
    producer,
    scalar,
    small_array,
    tensor_of,
)
from ortopt.linear.weights import MAX_BYTES
from ortopt.options import MEASURED_TARGETS, Numerics
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED, CpuRule

ROWS: Final = Form("", "Gather", "in place of a product with one-hot rows")

CLIPS_INTEGERS_FROM: Final = 12
"""The first opset whose Clip takes integers."""

LARGEST_TWICE: Final = 1 << 20
"""Bytes of a matrix that is stored twice at most, for indices that count from the end."""

INDICES: Final = (ir.DataType.INT32, ir.DataType.INT64)


class OneHot(Struct, frozen=True):
    """Rows of zeros with a 1 each, or without one where an index is out of range.

    Attributes:
        nodes: The nodes that write them.
        indices: Where the 1 of each row is; a column where a comparison with the numbers from 0 on writes the rows.
        is_column: Whether it is one: then a negative index is out of range, else it counts from the end of the row.
    """

    nodes: tuple[ir.Node, ...]
    indices: ir.Value
    is_column: bool


class OneHotProductConversion(CpuRule[Match]):
    """``MatMul(OneHot(i), W)`` → ``Gather(W, i)``, likewise ``MatMul(Cast(Equal(i, [0, 1, 2, …])), W)``.

    A row for an index that is out of range is 0: the table has a row of zeros behind those of W, to which such indices
    are clipped. W must be finite, as 0 times an infinity is NaN; a zero of it may get the other sign.
    """

    targets = MEASURED_TARGETS
    roots = ("MatMul",)
    needs = ("OneHot", "Equal")
    lookback = 3
    opsets = (CLIPS_INTEGERS_FROM, NEWEST_OPSET)
    weighs = (ROWS,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """One-hot rows as long as a constant matrix of finite numbers is high."""
        rows, matrix = inputs(root, 2)
        need(is_constant(matrix), "the matrix is computed", matrix)
        need_float32(matrix, MEASURED)
        height, width = need_fixed(dims(matrix, 2), "the matrix has no fixed size", matrix)
        one_hot = _of_op(rows, height) if is_op(rows.producer(), "OneHot") else _of_comparison(rows, height)
        need(one_hot.indices.dtype in INDICES, "the indices are no integers of 32 or 64 bits", one_hot.indices)
        need(
            tensor_of(matrix).nbytes <= (MAX_BYTES if one_hot.is_column else LARGEST_TWICE),
            "the matrix is large",
            matrix,
        )
        check_faster(root, ROWS, columns=height, outputs=width)
        need(bool(np.isfinite(array_of(matrix)).all()), "a number of the matrix is not finite", matrix)
        return Match((*one_hot.nodes, root), lambda: _gathered(one_hot, array_of(matrix), opset(root)))


def _of_op(rows: ir.Value, length: int) -> OneHot:
    """The rows of an op for them."""
    node = producer(rows, "OneHot")
    indices, depth, values = inputs(node, 3)
    need(ops.OneAxis(node).axis_of(len(dims(rows))) == len(dims(rows)) - 1, "1s are along another axis", node)
    need(scalar(depth) == length, "the rows are not as long as the matrix is high", depth)
    need(np.array_equal(small_array(values), (0, 1)), "they are not of 0 and 1", values)
    return OneHot((node,), indices, is_column=False)


def _of_comparison(rows: ir.Value, length: int) -> OneHot:
    """The rows of a comparison with the numbers from 0 on."""
    cast = producer(rows, "Cast")
    equal = producer(inputs(cast, 1)[0], "Equal")
    column, counted = operand_constant(equal)[::-1]
    own, shape = dims(column), dims(counted)
    need(len(own) > 1 and own[-1] == 1 and len(shape) <= len(own), "no column of indices is compared", column)
    is_row = shape[-1:] == (length,) and all(dim == 1 for dim in shape[:-1])
    need(is_row and np.array_equal(array_of(counted).ravel(), np.arange(length)), "it counts no rows", counted)
    return OneHot((equal, cast), column, is_column=True)


def _gathered(one_hot: OneHot, matrix: np.ndarray, version: int) -> ir.Node:
    """The rows of a matrix, and of zeros: where an index wraps, the end of the table has those of the matrix again."""
    height, width = matrix.shape
    zeros = np.zeros((1, width), matrix.dtype)
    if one_hot.is_column:
        indices, least, parts = ops.squeezed(one_hot.indices, [-1], version), -1, [matrix, zeros]
    else:
        indices, least, parts = one_hot.indices, -height - 1, [matrix, zeros, matrix]
    limits = [constant(np.array(limit), one_hot.indices.dtype) for limit in (least, height)]
    clipped = ir.node("Clip", [indices, *limits])
    return ir.node("Gather", [constant(np.concatenate(parts)), clipped.outputs[0]], {"axis": 0})
