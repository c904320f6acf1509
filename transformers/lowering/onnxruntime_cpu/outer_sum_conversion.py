"""ONNX Runtime adds a column to a row in runs as long as the row; short runs cost more than a product with ones.

Attention to images (SAM, ViTDet, MViT) adds a term for each height and a term for each width: for each query a small
matrix, the sum of a column and a row.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph import symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOAT, Refusal, dims, inputs, is_op, need, need_float32, producer
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule
from ortopt.semantics.domains import MICROSOFT

FORM: Final = Form("", "MatMul", "of ones in place of a sum")

COLUMN, ROW = -1, -2
"""The axes that an Unsqueeze gives a column and a row, counted from the end of what it gives."""

MOST_MOVES: Final = 8
MOVES: Final = ("Reshape", "Squeeze", "Transpose", "Unsqueeze")
PRODUCTS: Final = (("", "Einsum"), ("", "Gemm"), ("", "MatMul"), (MICROSOFT, "FusedMatMul"))


class Found(Struct, frozen=True):
    """The sum, what is a column of it, and what is a row.

    Attributes:
        nodes: The sum.
        column: [..., height].
        row: [..., width], with the same axes before it.
    """

    nodes: tuple[ir.Node, ...]
    column: ir.Value
    row: ir.Value


class OuterSumConversion(RewriteRule[Found]):
    """``Unsqueeze<-1>(a) + Unsqueeze<-2>(b)`` → ``MatMul(Concat(a, b), ones)`` where a and b end in short axes.

    A column of `ones` has a one for its height and a one for its width. For long rows, the kernel of sums is as fast.
    Only what comes out of products counts: masks may be infinite, and an infinity times zero is no number.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Add",)
    opsets = (5, NEWEST_OPSET)  # before, a Reshape's shape was an attribute
    lookback = 3
    providers = (CPU,)
    weighs = (FORM,)
    targets = (Target.ORT,)
    numerics = Numerics.FINITE

    def match(self, root: ir.Node) -> Found:
        """A column and a row of fixed sizes, with the same axes before them."""
        a, b = (_unsqueezed(value) for value in inputs(root, 2))
        need({a[1], b[1]} == {COLUMN, ROW}, "they are no column and row", root)
        column, row = (a[0], b[0]) if a[1] == COLUMN else (b[0], a[0])
        need_float32(column)
        leading, others = dims(column)[:-1], dims(row)[:-1]
        need(bool(leading) and symbolic.same_shape(leading, others), "the axes before them differ", root)
        height, width = _size(column), _size(row)
        need(min(height, width) > 1, "one of them is a number", root)
        check_faster(root, FORM, side=max(height, width), elements=height * width)
        _check_product(column)
        _check_product(row)
        return Found((root,), column, row)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the product, and the view of its columns as a matrix."""
        height, width = _size(found.column), _size(found.row)
        both = ir.node("Concat", [found.column, found.row], {"axis": len(dims(found.row)) - 1})
        by_height = np.repeat(np.eye(height, dtype=np.float32), width, axis=1)
        by_width = np.tile(np.eye(width, dtype=np.float32), (1, height))
        ones = constant(np.concatenate([by_height, by_width]), FLOAT)
        total = ir.node("MatMul", [both.outputs[0], ones])
        kept = [0] * (len(dims(found.row)) - 1)
        return ir.node("Reshape", [total.outputs[0], constant([*kept, height, width])])


def _unsqueezed(value: ir.Value) -> tuple[ir.Value, int]:
    """What an Unsqueeze takes, and the one axis that it gives, counted from the end."""
    node = producer(value, "Unsqueeze")
    x = inputs(node, len(node.inputs))[0]
    axes = ops.Unsqueeze(node).axes
    need(len(axes) == 1, "more than one axis is new", node)
    return x, axes[0] - len(dims(x)) - 1


def _size(value: ir.Value) -> int:
    """The size of the last axis, which is known."""
    size = dims(value)[-1]
    if not isinstance(size, int):
        raise Refusal("a size is not fixed", value)
    return size


def _check_product(value: ir.Value) -> None:
    """Check that numbers come out of a product.

    Raises:
        Refusal: If they come from anywhere else.
    """
    for _ in range(MOST_MOVES):
        node = value.producer()
        if node is not None and (node.domain, node.op_type) in PRODUCTS:
            return
        if node is None or not is_op(node, *MOVES):
            raise Refusal("they come out of no product, and may be infinite", value)
        value = inputs(node, len(node.inputs))[0]
    raise Refusal("no product is near", value)
