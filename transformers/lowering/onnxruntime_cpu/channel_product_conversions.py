"""Products of channels with matrices between Transposes: a convolution of points takes the channels as they lie."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    array_of,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    need_fixed,
    need_float32,
    need_known,
    need_never_zero,
    plain_attributes,
    producer,
    rank,
    static_dims,
    users,
)
from ortopt.linear.layer import product
from ortopt.options import Numerics
from ortopt.rule import Match
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import (
    IMAGE,
    TO_CHANNELS_FIRST,
    channels_first,
    channels_last,
    points,
)
from ortopt.transformers.lowering.onnxruntime_cpu._rules import FOR_BLOCKS, MEASURED, CpuRule

ACTIVATIONS = (
    *("Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"),
    *(f"{MICROSOFT}::{op}" for op in ("FastGelu", "Gelu", "QuickGelu")),
)
"""Ops of one operand that may stand between the products."""

OF_PRODUCTS = Form("", "Conv", "of points in place of two products")

SYMMETRIC = ("Add", "Mul", "Sum")
"""Ops of an image and a number for each channel, in either order."""


class MatmulConvConversion(CpuRule[Match]):
    """``Transpose(MatMul(Gelu(MatMul(x, A)), B))`` → ``Conv(Gelu(Conv(Transpose(x), A)), B)`` for images x.

    ONNX Runtime's blocked convolutions multiply faster than its matrix products where pixels are the rows.

    Networks that normalize channels (ConvNeXt) transpose an image so that its channels are last, multiply twice and
    transpose it back: the same products are convolutions of single points between the same two transpositions.

    The channels are last in x. Where the result keeps its channels last, a transposition brings them back.
    """

    roots = ("Transpose", "MatMul", *SYMMETRIC, "Sub", "Div", *ACTIVATIONS)
    weighs = (OF_PRODUCTS,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """Products with constant matrices in whole blocks, and between them what works on each element."""
        nodes = [root]
        if root.op_type == "Transpose":
            need(ops.Transpose(root).order == TO_CHANNELS_FIRST, "it does not bring channels to the front", root)
            operand: ir.Value | None = inputs(root, 1)[0]
        else:
            need(not _goes_on(root.outputs[0]), "what follows belongs to it", root)
            operand = _operand(root)
        operand = need_known(operand, "it is no product of an image's channels with a constant", root)
        value = operand
        products = int(root.op_type == "MatMul")
        while (node := value.producer()) is not None and is_used_once(value):
            before = _operand(node)
            if before is None:
                break
            products += node.op_type == "MatMul"
            nodes.append(node)
            value = before
        # Of one product alone nothing is gained: the transposition moves from its result to its operand.
        need(products > 1, "fewer than two products come before", root)
        while nodes[-1].op_type != "MatMul":
            nodes.pop()
        value, _ = inputs(nodes[-1], 2)
        _, height, width, _ = dims(value, IMAGE)
        need_float32(value, FOR_BLOCKS)
        need_never_zero((height, width), "the image may be empty", root)
        check_faster(root, OF_PRODUCTS)
        return Match(tuple(nodes), lambda: _convolutions(nodes, value))


def _convolutions(nodes: Sequence[ir.Node], start: ir.Value) -> ir.Value:
    """Build the transposition of the first operand, and after it each node for an image with channels first.

    Args:
        nodes: The last transposition, if there is one, and the nodes before it, the last one first.
        start: The image with channels last that the first of them reads.
    """
    ends = nodes[0].op_type == "Transpose"
    image = channels_first(start)
    for old in reversed(nodes[1:] if ends else nodes):
        image = _with_channels_first(old, image)
    return image if ends else channels_last(image)


def _goes_on(value: ir.Value) -> bool:
    """Whether the only node that reads a value is one of the chain, or the transposition that ends it."""
    if not is_used_once(value):
        return False
    (user,) = users(value)
    if is_op(user, "Transpose"):
        return ops.Transpose(user).order == TO_CHANNELS_FIRST
    return _operand(user) is value


def _operand(node: ir.Node) -> ir.Value | None:
    """The image that a node of the chain works on, or None where the chain ends before it."""
    if (f"{node.domain}::{node.op_type}" if node.domain else node.op_type) in ACTIVATIONS:
        return node.inputs[0] if len([value for value in node.inputs if value is not None]) == 1 else None
    if is_op(node, "MatMul"):
        x, matrix = inputs(node, 2)
        return x if _is_blocks(x, matrix) else None
    if is_op(node, *SYMMETRIC, "Sub", "Div") and len(node.inputs) == 2:
        x, number = inputs(node, 2)
        if node.op_type in SYMMETRIC and is_constant(x):
            x, number = number, x
        return x if _is_of_channels(number, x) else None
    return None


def _is_blocks(x: ir.Value, matrix: ir.Value) -> bool:
    """Whether the channels of an image and of its product with a constant matrix fill blocks."""
    if not is_constant(matrix) or not _is_image(x):
        return False
    shape = static_dims(matrix)
    return len(shape) == 2 and all(size > 0 and size % BLOCK == 0 for size in shape)


def _is_image(value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) == IMAGE


def _is_of_channels(number: ir.Value, x: ir.Value) -> bool:
    """Whether an operand is a constant with a number for each channel, or for all, of an image."""
    if not is_constant(number) or not _is_image(x):
        return False
    shape = static_dims(number)
    channels = dims(x)[-1]
    return len(shape) <= IMAGE and all(size == 1 for size in shape[:-1]) and (shape or (1,))[-1] in (1, channels)


def _with_channels_first(old: ir.Node, image: ir.Value) -> ir.Value:
    """What a node computes with channels last, of an image with channels first."""
    if is_op(old, "MatMul"):
        return points(image, array_of(old.inputs[1]))
    plain_attributes(old)
    operands = [image if not is_constant(value) else _of_image(value) for value in old.inputs if value is not None]
    return ops.copied(old, operands).outputs[0]


def _of_image(number: ir.Value) -> ir.Value:
    return constant(array_of(number).reshape(-1, 1, 1), FLOAT)


SIGNAL = 3
COPIED = 0
"""What a Reshape takes for the size of its input."""


class TransposedMatmulConversion(CpuRule[Match]):
    """``Transpose(MatMul(Transpose(x), W) + b)`` → ``Conv(x, W, b)`` of a signal, where the channels go last and back.

    A layer that mixes channels needs them last for a product of matrices, and as they are for a convolution.

    Attention whose heads talk to one another (CaiT) multiplies the scores of all heads by a matrix before and after the
    Softmax; gated networks of tokens (gMLP) multiply tokens by one. Both transpose before the product and back behind
    it.

    It gains the more, the fewer channels there are.
    """

    after = ("bias_sum_conversion", "matmul_conv_conversion", "transpose_optimizer")
    roots = ("Transpose",)
    numerics = Numerics.REORDERED
    lookback = 3

    def match(self, root: ir.Node) -> Match:
        """One product with a constant matrix, and perhaps a bias, between Transposes that undo each other."""
        (value,) = inputs(root, 1)
        of = rank(value)
        need(of >= SIGNAL, "there are no positions", value)
        _check_order(root, (0, of - 1, *range(1, of - 1)))
        need(is_used_once(value), "what is transposed back is used elsewhere", value)
        last = producer(value, "MatMul", "Add", "Sum")
        layer = product(last)
        turned, bias = layer.x, layer.bias
        row = bias is None or (is_constant(bias) and dims(bias) == (layer.outputs,))
        need(row, "what is added is not one constant number for each column", last)
        need(is_used_once(turned), "the transposed value is used elsewhere", turned)
        transpose = producer(turned, "Transpose")
        _check_order(transpose, (0, *range(2, of), 1))
        (x,) = inputs(transpose, 1)
        need_float32(x, MEASURED)
        sizes = dims(x, of)[2:]
        positions = need_fixed(sizes, "a size is not fixed", x) if of > SIGNAL else ()
        need_never_zero(sizes, "there may be no position", root)
        return Match((transpose, *layer.nodes, root), lambda: _mixed(x, layer.matrix, bias, positions))


def _mixed(x: ir.Value, matrix: np.ndarray, bias: ir.Value | None, positions: tuple[int, ...]) -> ir.Value:
    """Build the convolution, between Reshapes if there are more axes than a signal has.

    Args:
        x: What is transposed.
        matrix: The matrix of the product.
        bias: A number for each of its columns, or None.
        positions: The sizes of the other axes than the batch and the channels, if there are several.
    """
    if not positions:
        return points(x, matrix, bias, 1)
    signal = ir.node("Reshape", [x, constant([COPIED, matrix.shape[0], prod(positions)])]).outputs[0]
    shape = constant([COPIED, matrix.shape[1], *positions])
    return ir.node("Reshape", [points(signal, matrix, bias, 1), shape]).outputs[0]


def _check_order(transpose: ir.Node, order: tuple[int, ...]) -> None:
    need(ops.Transpose(transpose).order == order, "a Transpose moves something else than the channels", transpose)
