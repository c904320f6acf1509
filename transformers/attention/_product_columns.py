"""Products with a constant matrix whose columns come in another order, at no cost: their weights are reordered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Absent,
    array_of,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    need_fixed,
    need_present,
    optional,
    rank,
    tensor_of,
)
from ortopt.linear.weights import MAX_BYTES, SMALL_BYTES
from ortopt.onnx_ir_internals import use_count
from ortopt.semantics.domains import MICROSOFT

_MATRIX = 1
"""The position of a product's matrix, [width, columns]."""

_BY_COLUMN: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("", "Gemm"): (2,),
    ("", "MatMul"): (),
    ("", "MatMulInteger"): (3,),
    (MICROSOFT, "DynamicQuantizeMatMul"): (2, 3, 4),
    (MICROSOFT, "MatMulIntegerToFloat"): (3, 5, 6),
}
"""Products, and the positions of operands that have one number for each column, or one for all."""

_ELEMENTWISE = ("Add", "Mul", "Sub")
_LONGEST = 6


def columns_of(value: ir.Value) -> tuple[ir.Node, ...]:
    """The nodes that compute a value column by column: a product with constants, and what follows it.

    Args:
        value: A value that one node reads.

    Returns:
        The nodes, the product first.

    Raises:
        Refusal: If something else computes it, or the columns cannot be reordered for nothing.
    """
    (count,) = need_fixed(dims(value)[-1:], "the number of columns is not known", value)
    path: list[ir.Node] = []
    while len(path) < _LONGEST:
        node = value.producer()
        need(node is not None and node.graph is value.graph and is_used_once(value), "it is used elsewhere", value)
        assert node is not None
        path.insert(0, node)
        if (node.domain, node.op_type) in _BY_COLUMN:
            _check_product(node, count)
            return tuple(path)
        value = inputs(node, 1)[0] if is_op(node, "Cast") else _check_elementwise(node, count)
    raise Absent("no product with a constant matrix comes before", value)


def reordered(path: Sequence[ir.Node], order: np.ndarray) -> ir.Value:
    """What nodes compute, with its columns in another order.

    Args:
        path: The nodes, as `columns_of` gives them.
        order: Which of the old columns each new one is.
    """
    before: ir.Value | None = None
    made: ir.Value | None = None
    for node in path:
        operands = [made if value is before and value is not None else value for value in node.inputs]
        for place in _places(node):
            operands[place] = _taken(node.inputs[place], order, _axis(node, place))
        copy = ir.Node(node.domain, node.op_type, operands, list(node.attributes.values()), version=node.version)
        before, made = node.outputs[0], copy.outputs[0]
    assert made is not None
    return made


def _places(node: ir.Node) -> list[int]:
    """The positions of constants that have something for each column."""
    if is_op(node, *_ELEMENTWISE):
        return [place for place, value in enumerate(node.inputs) if value is not None and is_constant(value)]
    places = (_MATRIX, *_BY_COLUMN.get((node.domain, node.op_type), ())) if not is_op(node, "Cast") else ()
    return [place for place in places if optional(node, place) is not None]


def _axis(node: ir.Node, place: int) -> int:
    """The axis of columns of a constant operand, from the end."""
    turned = node.op_type == "Gemm" and place == _MATRIX and ops.Gemm(node).transposes_b
    return -2 if turned else -1


def _taken(value: ir.Value | None, order: np.ndarray, axis: int) -> ir.Value | None:
    """A constant with its columns in another order; itself where it has one number for all."""
    if value is None or not _is_for_columns(value, axis):
        return value
    return constant(np.ascontiguousarray(np.take(array_of(value), order, axis)), value.dtype)


def _is_for_columns(value: ir.Value, axis: int) -> bool:
    shape = dims(value)
    return len(shape) >= -axis and shape[axis] != 1


def _check_product(node: ir.Node, count: int) -> None:
    """Refuse a product whose matrix is not constant, or whose other operands by column are not."""
    for place in (_MATRIX, *_BY_COLUMN[node.domain, node.op_type]):
        value = optional(node, place)
        if value is None:
            need(place != _MATRIX, "the product has no matrix", node)
            continue
        if place == _MATRIX:
            need(rank(value) == 2, "the product is of several matrices", value)
        _check_columns(value, count, _axis(node, place))


def _check_elementwise(node: ir.Node, count: int) -> ir.Value:
    """The operand that has all columns, of a node whose other operand is constant, or the same for all columns."""
    need_present(is_op(node, *_ELEMENTWISE), "no product with a constant matrix comes before", node)
    a, b = inputs(node, 2)
    source, other = (b, a) if is_constant(a) or a.producer() is None else (a, b)
    need(not is_constant(source) and dims(source)[-1:] == (count,), "the columns are broadcast", source)
    _check_columns(other, count, -1)
    return source


def _check_columns(value: ir.Value, count: int, axis: int) -> None:
    """Refuse an operand that has something for each column, and is no constant of its own."""
    shape = dims(value)
    if len(shape) < -axis or shape[axis] == 1:
        return
    need(shape[axis] == count, "the columns are broadcast", value)
    need(is_constant(value), "what differs by column is no constant", value)
    size = tensor_of(value).nbytes
    private = use_count(value) == 1 or size <= SMALL_BYTES
    need(private and not value.is_graph_output(), "the matrix is used elsewhere", value)
    need(size <= MAX_BYTES, "the matrix is large", value)
