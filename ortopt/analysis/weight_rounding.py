"""Products of which ONNX Runtime rounds the first operand to 8 bits, when it loads a model.

Where a constant matrix of 8 bits or fewer is dequantized right before a MatMul or Gemm, and the first operand is not,
ONNX Runtime makes one MatMulNBits of accuracy level 4 of both: from 1.20 on of matrices of 4 bits in blocks, from 1.25
on of all others. Results move by up to a percent of their scale. Where a Transpose stands between the two, it brings
them together itself if there are no blocks, and a zero point, or a type that needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import onnx_ir as ir

from ortopt import ops, semantics
from ortopt.graph import scope
from ortopt.graph.facts import dims_of
from ortopt.graph.match import before, is_op
from ortopt.semantics.op_traits import DEQUANTIZERS, MOVING

_NEEDS_NO_ZERO_POINT: Final = {ir.DataType.UINT8: 1, ir.DataType.INT8: 21}
"""The types of which ONNX Runtime makes the same integers again without a zero point, and from which opset on."""


def any_is_rounded(nodes: Iterable[ir.Node]) -> bool:
    """Whether ONNX Runtime rounds the first operand of a product, which is among nodes or reads weights of theirs.

    Args:
        nodes: Nodes of graphs; those that they hold count, too.
    """
    return any(map(_is_rounded, chain.from_iterable(map(_products, nodes))))


def _products(node: ir.Node) -> Iterator[ir.Node]:
    for one in scope.with_nested(node):
        if is_op(one, "MatMul", "Gemm"):
            yield one
        elif one.graph is not None and (is_op(one, "Transpose") or _dequantizes(one)):
            yield from (use.node for use in one.outputs[0].uses() if is_op(use.node, "MatMul", "Gemm"))


def _is_rounded(product: ir.Node) -> bool:
    x, weight = (None if value is None else value.producer() for value in product.inputs[:2])
    if weight is None or _dequantizes(x) or ops.MatMul(product).transposes_b:
        return False
    if is_op(weight, "Transpose"):
        (source,) = weight.inputs
        moved = None if source is None else source.producer()
        return moved is not None and _is_of_weights(moved) and _is_moved(moved)
    return _is_of_weights(weight)


def _is_of_weights(node: ir.Node) -> bool:
    """Whether a node dequantizes a constant matrix of few bits, which may be moved before that."""
    integers = node.inputs[0] if _dequantizes(node) else None
    if integers is None or integers.dtype is None or not integers.dtype.is_integer() or integers.dtype.bitwidth > 8:
        return False
    shape = dims_of(node.outputs[0])
    if shape is not None and len(shape) != 2:
        return False
    return semantics.constant_tensor(before(integers, *MOVING)) is not None


def _is_moved(dequantizer: ir.Node) -> bool:
    """Whether ONNX Runtime moves a DequantizeLinear behind the Transpose that reads it."""
    integers, zero_point = dequantizer.inputs[0], dequantizer.inputs[2:3]
    if "block_size" in dequantizer.attributes or integers is None or integers.dtype is None:
        return False
    if zero_point and zero_point[0] is not None:
        return True
    opset = scope.of_node(dequantizer).opset_imports.get("", 1)
    return opset >= _NEEDS_NO_ZERO_POINT.get(integers.dtype, opset + 1)


def _dequantizes(node: ir.Node | None) -> bool:
    return node is not None and semantics.key(node) in DEQUANTIZERS
