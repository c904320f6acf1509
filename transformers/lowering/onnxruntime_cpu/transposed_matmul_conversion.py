"""A layer that mixes channels needs them last for a product of matrices, and as they are for a convolution.

Attention whose heads talk to one another (CaiT) multiplies the scores of all heads by a matrix before and after the
Softmax; gated networks of tokens (gMLP) multiply tokens by one. Both transpose before the product and back behind it.
"""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Refusal,
    array_of,
    dims,
    inputs,
    is_constant,
    is_never_zero,
    is_op,
    is_used_once,
    need,
    need_float32,
    optional,
    producer,
    rank,
    static_dims,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import RewriteRule

SIGNAL = 3
COPIED = 0
"""What a Reshape takes for the size of its input."""


class Found(Struct, frozen=True):
    """A linear layer between two Transposes.

    Attributes:
        nodes: The first Transpose, the product, perhaps the sum with a bias, and the last Transpose.
        x: What is transposed.
        matrix: The matrix of the product.
        bias: A number for each of its columns, or None.
        positions: The sizes of the other axes than the batch and the channels, if there are several.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    matrix: ir.Value
    bias: ir.Value | None
    positions: tuple[int, ...]


class TransposedMatmulConversion(RewriteRule[Found]):
    """``Transpose(MatMul(Transpose(x), W) + b)`` → ``Conv(x, W, b)`` of a signal, where the channels go last and back.

    It gains the more, the fewer channels there are.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("bias_sum_conversion", "matmul_conv_conversion", "transpose_optimizer")
    roots = ("Transpose",)
    providers = (CPU,)
    targets = (Target.ORT,)
    numerics = Numerics.REORDERED
    lookback = 3

    def match(self, root: ir.Node) -> Found:
        """One product with a constant matrix, and perhaps a bias, between Transposes that undo each other."""
        (value,) = inputs(root, 1)
        of = rank(value)
        need(of >= SIGNAL, "there are no positions", value)
        _check_order(root, (0, of - 1, *range(1, of - 1)))
        need(is_used_once(value), "what is transposed back is used elsewhere", value)
        total, bias = _without_bias(value)
        need(is_used_once(total), "the product is used elsewhere", total)
        product = producer(total, "MatMul")
        turned, matrix = inputs(product, 2)
        need(is_constant(matrix), "the matrix is no constant", matrix)
        need(min(static_dims(matrix, 2)) > 0, "the matrix is empty", matrix)
        need(is_used_once(turned), "the transposed value is used elsewhere", turned)
        transpose = producer(turned, "Transpose")
        _check_order(transpose, (0, *range(2, of), 1))
        (x,) = inputs(transpose, 1)
        need_float32(x, "the gain was measured")
        sizes = dims(x, of)[2:]
        positions = tuple(size for size in sizes if isinstance(size, int)) if of > SIGNAL else ()
        need(of == SIGNAL or len(positions) == len(sizes), "a size is not fixed", x)
        need(all(is_never_zero(size, root) for size in sizes), "there may be no position", x)
        sums = () if total is value else (producer(value, "Add", "Sum"),)
        return Found((transpose, product, *sums, root), x, matrix, bias, positions)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the convolution, between Reshapes if there are more axes than a signal has."""
        matrix = array_of(found.matrix)
        weight = constant(np.ascontiguousarray(matrix.T)[..., None], FLOAT)
        bias = [] if found.bias is None else [found.bias]
        if not found.positions:
            return ir.node("Conv", [found.x, weight, *bias])
        joined = constant([COPIED, matrix.shape[0], prod(found.positions)])
        signal = ir.node("Reshape", [found.x, joined]).outputs[0]
        mixed = ir.node("Conv", [signal, weight, *bias]).outputs[0]
        return ir.node("Reshape", [mixed, constant([COPIED, matrix.shape[1], *found.positions])])


def _check_order(transpose: ir.Node, order: tuple[int, ...]) -> None:
    need(ops.Transpose(transpose).order == order, "a Transpose moves something else than the channels", transpose)


def _without_bias(value: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """What a constant number for each of the last axis is added to, and these numbers."""
    node = value.producer()
    if not is_op(node, "Add", "Sum"):
        return value, None
    assert node is not None
    need(len(node.inputs) == 2, "it is no sum of two", node)
    for place in (0, 1):
        bias, total = optional(node, place), optional(node, 1 - place)
        if bias is not None and total is not None and is_constant(bias):
            columns = dims(value)[-1]
            need(static_dims(bias) == (columns,), "the bias is not one number for each column", bias)
            return total, bias
    raise Refusal("what is added is no constant", node)
