"""The bias of an attention's values goes through the attention, and into the bias of the projection behind it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    array_of,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    operand_constant,
    producer,
    tensor_of,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.attention.constant_rows import as_row, product
from ortopt.patterns.attention.reading import (
    above_result,
    check_has_keys,
    check_read_by_it_alone,
    may_have_biased_values,
    reading,
)
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """The two sums, and what becomes of them.

    Attributes:
        nodes: The sum of values and their bias; and the sum, or the Gemm, that adds the projection's bias.
        values: The values without their bias.
        bias: The projection's new bias.
    """

    nodes: tuple[ir.Node, ...]
    values: ir.Value
    bias: np.ndarray

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The results of both."""
        return tuple(node.outputs[0] for node in self.nodes)


class Layer(Struct, frozen=True):
    """``factor · x · weight + bias``, or with the transposed weight, as a MatMul and an Add or a Gemm say it."""

    x: ir.Value
    weight: ir.Value
    bias: ir.Value
    turned: bool
    factor: float


class Projection(Struct, frozen=True):
    """``factor · x · weight + bias``, for each row of x; what it holds of these are constants."""

    x: ir.Value
    weight: np.ndarray
    bias: ir.Value
    factor: float


class ValueBiasFolding(RewriteRule[Found]):
    """``softmax · (v + b) · W + c`` → ``softmax · v · W + (b · W + c)`` for constants b, W and c.

    Probabilities add up to 1, so that b is added to each row of the result. Attentions that give 0 where a row is
    masked as a whole, or where there are no keys, are left alone. The attention may be one op.
    """

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2, TransformerLevel.LEVEL3)
    after = ("constant_folding", "matmul_split_decomposition", "reshape_fusion")
    roots = ("Add", "Gemm")
    needs = ("Softmax", "Attention", "com.microsoft::MultiHeadAttention")
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
    lookback = 16
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """The bias of the projection of an attention's result, whose values have a bias too."""
        layer = _layer(root)
        node = above_result(layer.x)
        need(may_have_biased_values(node), "the values have no bias", node)
        behind = _projection(layer)
        block = reading(node)
        alone = block.result.value is behind.x and is_used_once(behind.x)
        need(alone, "the result of the attention is used elsewhere", behind.x)
        total = producer(block.values.value, "Add")
        need(total.graph is root.graph, "the values come from another graph", total)
        check_read_by_it_alone(total.outputs[0], node)
        added, values = operand_constant(total)
        need(block.adds_up, "where a row is masked as a whole, the result is 0", node)
        check_has_keys(node)
        row = as_row(added, values, block.values, block.result.groups[-1])
        need(len(row) == len(behind.weight), "the projection does not fit", root)
        content = array_of(behind.bias)
        with np.errstate(over="ignore", invalid="ignore"):
            bias = (content + behind.factor * product(row, behind.weight)).astype(content.dtype)
        need(bool(np.isfinite(bias).all()), "the projection's bias would not be finite", behind.bias)
        return Found((total, root), values, bias)

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the sum, or the Gemm, with the new bias."""
        total, root = found.nodes
        bias = constant(found.bias)
        if is_op(root, "Add"):
            _, unbiased = operand_constant(root)
            last = ir.node("Add", [unbiased, bias])
        else:
            last = ops.copied(root, [*root.inputs[:2], bias])
        return {total.outputs[0]: found.values, root.outputs[0]: last.outputs[0]}


def _layer(root: ir.Node) -> Layer:
    """The layer that ends in a node, what it holds not looked at yet."""
    if is_op(root, "Add"):
        bias, unbiased = operand_constant(root)
        x, weight = inputs(producer(unbiased, "MatMul"), 2)
        need(is_used_once(unbiased), "the projection is used elsewhere", unbiased)
        return Layer(x, weight, bias, False, 1.0)
    x, weight, bias = inputs(root, 3)
    gemm = ops.Gemm(root)
    need(not gemm.transposes_a, "the projection is of columns", root)
    need(is_constant(bias) and gemm.beta != 0, "no constant is added", root)
    return Layer(x, weight, bias, gemm.transposes_b, gemm.alpha / gemm.beta)


def _projection(layer: Layer) -> Projection:
    weight, bias = layer.weight, layer.bias
    need(is_constant(weight) and len(dims(weight)) == 2, "the projection's weight is no constant matrix", weight)
    need(tensor_of(weight).dtype == tensor_of(bias).dtype == ir.DataType.FLOAT, "they are not single-precision", weight)
    columns = array_of(weight).T if layer.turned else array_of(weight)
    need(dims(bias) == (columns.shape[1],), "the projection's bias is no row", bias)
    return Projection(layer.x, columns, bias, layer.factor)
