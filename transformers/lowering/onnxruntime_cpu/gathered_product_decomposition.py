"""Rows that are each multiplied by a matrix of their own, chosen from a few, become one product for each matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import as_tokens, check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Dim,
    Refusal,
    array_of,
    dims,
    dims_broadcast_to,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    need_fixed,
    need_float32,
    opset,
    optional,
    producer,
    rank,
    same_dim,
    scalar,
)
from ortopt.options import MEASURED_TARGETS, Numerics
from ortopt.rule import NEWEST_OPSET
from ortopt.semantics.op_traits import CASTS, MOVING
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED, CpuRule

FOR_EACH: Final = Form("", "Gemm", "for each matrix")

COMPUTED_SIZES_FROM = 13
"""The first opset in which the sizes of a Split and the axes of a ReduceSum are computed."""

MAX_STEPS = 8
"""Nodes between a product and what finds its indices."""


class GatheredProduct(Struct, frozen=True):
    """A product of rows, each with a matrix of its own.

    Attributes:
        nodes: The Gather, a Reshape if there is one, and the product.
        rows: The rows, as columns or as rows of matrices of one row.
        matrices: All matrices.
        chosen: Which of them each row is multiplied by.
        is_second: Whether the matrices are the second operand: not transposed.
        joined: Whether the matrices of each row of indices are joined, one below the other: an Einsum was written so.
    """

    nodes: tuple[ir.Node, ...]
    rows: ir.Value
    matrices: ir.Value
    chosen: ir.Value
    is_second: bool
    joined: bool


class GatheredProductDecomposition(CpuRule[GatheredProduct]):
    """``MatMul(x, Gather(weights, expert))`` → ``Gemm(x[expert == e], weights[e])`` for each expert e, put in order.

    A mixture of experts has a matrix for each expert. Where an exporter gathers one for each row (``batched_mm`` of
    Hugging Face's transformers), ONNX Runtime copies each as often as it is chosen, and multiplies it by one row.

    It gains with the number of rows, and loses at one row of small matrices. Where the rows are all that is open, as in
    a layer that is exported alone, they count as 16.
    """

    targets = MEASURED_TARGETS
    roots = ("MatMul",)
    opsets = (COMPUTED_SIZES_FROM, NEWEST_OPSET)
    numerics = Numerics.REORDERED
    weighs = (FOR_EACH,)
    lookback = MAX_STEPS

    def match(self, root: ir.Node) -> GatheredProduct:
        """A stack of constant matrices, from which indices choose that are known to be of it."""
        left, right = inputs(root, 2)
        is_second = is_op(right.producer(), "Gather")
        rows, stack = (left, right) if is_second else (right, left)
        join = (producer(stack, "Reshape"),) if is_op(stack.producer(), "Reshape") else ()
        gathered = inputs(join[0], 2)[0] if join else stack
        gather = gathered.producer()
        if gather is None or not is_op(gather, "Gather"):
            raise Refusal("no matrices are gathered", root)
        matrices, chosen = inputs(gather, 2)
        need(is_constant(matrices) and rank(matrices) == 3, "the matrices are not constant", matrices)
        need_float32(matrices, MEASURED)
        need(ops.Gather(gather).axis_of(3) == 0, "it gathers no whole matrices", gather)
        read_once = all(map(is_used_once, (stack, gathered, matrices)))
        need(read_once, "something else reads the matrices", gather)
        count, *sides = need_fixed(dims(matrices), "the matrices have no fixed size", matrices)
        need(min(count, *sides) > 0, "there is nothing to multiply", matrices)
        inner, outer = sides if is_second else sides[::-1]
        of_one = (1, inner) if is_second else (inner, 1)
        need(dims(rows)[-2:] == of_one, "a matrix is multiplied by more than one row", rows)
        ahead = dims(chosen)
        if join:
            _check_joined(stack, ahead, (outer, inner))
        of_rows = ahead[:-1] if join else ahead
        fits = len(of_rows) > 0 and dims_broadcast_to(dims(rows)[:-2], of_rows)
        need(fits, "rows and indices have other axes", rows)
        _check_indices(chosen, count)
        check_faster(root, FOR_EACH, elements=(*as_tokens(root, ahead), inner, outer), parts=count)
        return GatheredProduct((gather, *join, root), rows, matrices, chosen, is_second, bool(join))

    def rewrite(self, found: GatheredProduct) -> ir.Value:
        """Sort the rows by their matrix, multiply each part, and put the results where the rows came from."""
        count, *sides = need_fixed(dims(found.matrices), "the matrices have no fixed size", found.matrices)
        inner, outer = sides if found.is_second else sides[::-1]
        rows, chosen = _flat(found, inner)
        order, sizes = _sorted(chosen, count)
        by_matrix = ir.node("Gather", [rows, order], {"axis": 0}).outputs[0]
        parts = ir.node("Split", [by_matrix, sizes], {"axis": 0}, num_outputs=count).outputs
        weights = array_of(found.matrices)
        transposed = {} if found.is_second else {"transB": 1}
        products = [
            ir.node("Gemm", [part, constant(weight, FLOAT)], transposed).outputs[0]
            for part, weight in zip(parts, weights, strict=True)
        ]
        together = ir.node("Concat", products, {"axis": 0}).outputs[0]
        version = opset(found.nodes[-1])
        in_order = ir.node("ScatterND", [together, ops.unsqueezed(order, [1], version), together]).outputs[0]
        if rank(found.chosen) == 1:
            return ops.unsqueezed(in_order, [1 if found.is_second else 2], version)
        if found.joined:
            each = need_fixed(dims(found.chosen)[-1:], "it is not known how many are joined", found.chosen)[0]
            return ir.node("Reshape", [in_order, constant([-1, each * outer, 1])]).outputs[0]
        of_one = constant([1, outer] if found.is_second else [outer, 1])
        return ir.node("Reshape", [in_order, _behind(found.chosen, of_one)]).outputs[0]


def _check_joined(stack: ir.Value, ahead: Sequence[Dim], matrix: tuple[int, int]) -> None:
    """Refuse another Reshape of matrices than one that joins those of each row of indices.

    Args:
        stack: What the Reshape gives.
        ahead: The dimensions of the indices.
        matrix: Rows and columns of a matrix.
    """
    need(len(ahead) == 2, "the indices are no matrix", stack)
    (each,) = need_fixed(ahead[1:], "it is not known how many are joined", stack)
    outer, inner = matrix
    wanted = (ahead[0], each * outer, inner)
    need(each > 0 and all(map(same_dim, dims(stack, 3), wanted)), "the Reshape does something else", stack)


def _flat(found: GatheredProduct, inner: int) -> tuple[ir.Value, ir.Value]:
    """The rows as a matrix, one for each index, and the indices as a vector."""
    rows, chosen = found.rows, found.chosen
    is_of_all = found.joined or not all(map(same_dim, dims(rows)[:-2], dims(chosen)))
    if found.joined:  # a row is of all indices that stand together
        rows = ops.unsqueezed(rows, [rank(rows) - 2], opset(found.nodes[-1]))
    if is_of_all:
        rows = ir.node("Expand", [rows, _behind(chosen, constant([1, 1]))]).outputs[0]
    rows = ir.node("Reshape", [rows, constant([-1, inner])]).outputs[0]
    return rows, chosen if rank(chosen) == 1 else ir.node("Reshape", [chosen, constant([-1])]).outputs[0]


def _behind(value: ir.Value, sizes: ir.Value) -> ir.Value:
    """The shape of a value, and more sizes."""
    shape = ir.node("Shape", [value]).outputs[0]
    return ir.node("Concat", [shape, sizes], {"axis": 0}).outputs[0]


def _sorted(chosen: ir.Value, count: int) -> tuple[ir.Value, ir.Value]:
    """The rows in the order of their matrices, and how many each matrix has.

    Args:
        chosen: Which matrix each row has.
        count: How many matrices there are.
    """
    every = constant(np.arange(count).reshape(-1, 1), chosen.dtype)
    marks = ir.node("Equal", [every, chosen]).outputs[0]
    order = ir.node("Gather", [ir.node("NonZero", [marks]).outputs[0], constant(1)], {"axis": 0}).outputs[0]
    numbers = ir.node("Cast", [marks], {"to": ir.DataType.INT64}).outputs[0]
    return order, ir.node("ReduceSum", [numbers, constant([1])], {"keepdims": 0}).outputs[0]


def _check_indices(value: ir.Value, count: int) -> None:
    """Refuse indices that may be negative, or behind the last of so many.

    Places in an axis are neither: what TopK, ArgMax and ArgMin find. So is what a Clip leaves.
    """
    pending = [value]
    for _ in range(MAX_STEPS):
        if not pending:
            return
        value = pending.pop()
        node = value.producer()
        is_wide = dtype(value) in (ir.DataType.INT32, ir.DataType.INT64)
        need(node is not None and is_wide, "an index may be of no matrix", value)
        assert node is not None
        if is_op(node, "Clip"):
            _, low, high = (optional(node, place) for place in range(3))
            is_within = low is not None and high is not None and 0 <= scalar(low) <= scalar(high) < count
            need(is_within, "an index may be of no matrix", node)  # it may take one out that was
        elif is_op(node, "TopK", "ArgMax", "ArgMin"):
            (of,) = inputs(node, 1)
            (size,) = need_fixed(dims(of)[ops.OneAxis(node).axis :][:1], "the axis has no fixed size", of)
            is_place = node.outputs.index(value) == (1 if is_op(node, "TopK") else 0)
            need(is_place and size <= count, "there are more places than matrices", node)
        elif is_op(node, "Concat"):
            pending += inputs(node, len(node.inputs))
        else:
            need(is_op(node, *MOVING, *CASTS), "an index may be of no matrix", node)
            pending += inputs(node, 1)
    need(not pending, "an index may be of no matrix", value)
