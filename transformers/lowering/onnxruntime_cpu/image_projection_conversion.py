"""ONNX Runtime reorders a narrow image into its blocked layout, and back, in less time than a wide one.

A product that widens rows before they become an image is a convolution of points behind that, and one that narrows
them afterwards is one before. Feed-forward layers of transformers for images (SegFormer, PVT v2) mix neighbours by a
convolution between two products.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK, is_blocked_convolution
from ortopt.analysis.blocked_values import is_in_blocks
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    dims,
    inputs,
    is_op,
    is_used_once,
    need,
    need_float32,
    need_known,
    plain_attributes,
    producer,
    rank,
    same_dim,
    users,
)
from ortopt.linear.layer import Linear, product
from ortopt.options import Numerics
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import (
    CONVOLUTIONS,
    IMAGE,
    TO_CHANNELS_FIRST,
    TO_CHANNELS_LAST,
    channels_first,
    channels_last,
    image_dims,
    points,
)
from ortopt.transformers.lowering.onnxruntime_cpu._rules import FOR_BLOCKS, CpuRule

ROWS = 3

FORM = Form("", "Conv", "of points in place of a product")

COPIED = 0
"""What a Reshape takes for the size of its input."""

ACTIVATIONS = {"": ("Gelu", "HardSigmoid", "Relu", "Sigmoid", "Tanh"), MICROSOFT: ("Gelu", "QuickGelu")}
"""Ops of one operand with kernels in blocks, by domain."""


class ImageProjectionConversion(CpuRule[Match]):
    """``Transpose(Reshape(x · W + b))`` → ``Conv(Transpose(Reshape(x)), W, b)`` for rows that become a wider image.

    And ``Gelu(Reshape(Transpose(i))) · W + b`` → ``Reshape(Transpose(Conv(Gelu(i), W, b)))`` for an image that becomes
    narrower rows. With many columns on the narrow side the product is the faster kernel.
    """

    after = ("matmul_conv_conversion", "reshape_transpose_reordering")
    roots = ("Transpose", "MatMul", "Add", "Sum")
    needs = CONVOLUTIONS
    opsets = (5, NEWEST_OPSET)
    weighs = (FORM,)
    numerics = Numerics.REORDERED
    looks_downstream = True

    def match(self, root: ir.Node) -> Match:
        """A product in whole blocks, next to the transposition of an image that is in blocks."""
        return _widened(root) if is_op(root, "Transpose") else _narrowed(root)


def _widened(root: ir.Node) -> Match:
    """Rows that are multiplied, activated, and become an image of convolutions."""
    need(ops.Transpose(root).order == TO_CHANNELS_FIRST, "it does not bring channels to the front", root)
    image = root.outputs[0]
    batch, _, height, width = image_dims(image)
    need(not image.is_graph_output(), "the image is a result of the graph", image)
    need(
        all(is_blocked_convolution(user) and image not in user.inputs[1:] for user in users(image)),
        "something else than convolutions in blocks reads the image",
        root,
    )
    (last,) = inputs(root, 1)
    value, moves = _behind_reshape(last)
    value, activations = _behind_activations(value)
    projection = _projection(_only(value))
    rows, columns = projection.inputs, projection.outputs
    need(rows < columns, "the product gives no more columns", value)
    check_faster(root, FORM, columns=rows)
    x = projection.x
    shape: tuple[int, ...] = ()
    if moves:
        need(same_dim(dims(x, ROWS)[0], batch), "the axes come apart into others", moves[0])
        shape = (COPIED, height, width, rows)
    else:
        need(rank(x) == IMAGE, "what is multiplied is no image", x)
    return Match((*projection.nodes, *activations, *moves, root), lambda: _image(x, shape, projection, activations))


def _image(rows: ir.Value, shape: tuple[int, ...], projection: Linear, activations: Sequence[ir.Node]) -> ir.Value:
    """Build the transposition of rows before they are widened, and the convolution and the activations behind it."""
    return _activated(activations, _points(projection, channels_first(_reshape(rows, shape))))


def _narrowed(root: ir.Node) -> Match:
    """An image that becomes rows, which are activated and multiplied."""
    projection = _projection(root)
    need(projection.total is not None or not _goes_on(root.outputs[0]), "what follows belongs to it", root)
    rows, columns = projection.inputs, projection.outputs
    need(rows > columns, "the product gives no fewer columns", root)
    check_faster(root, FORM, columns=columns)
    value, activations = _behind_activations(projection.x)
    value, moves = _behind_reshape(value)
    transpose = producer(value, "Transpose", alone="the channels that are last are used elsewhere")
    need(ops.Transpose(transpose).order == TO_CHANNELS_LAST, "it does not bring channels to the end", transpose)
    (image,) = inputs(transpose, 1)
    batch, _, height, width = image_dims(image)
    need(is_used_once(image), "the image is used elsewhere", image)
    need(is_in_blocks(image), "the image is not in the blocked layout", image)
    shape: tuple[int, ...] = ()
    if moves:
        need(same_dim(dims(projection.x, ROWS)[0], batch), "other axes are joined", moves[0])
        shape = (COPIED, height * width, columns)
    nodes = (transpose, *moves, *activations, *projection.nodes)
    return Match(nodes, lambda: _rows(image, shape, projection, activations))


def _rows(image: ir.Value, shape: tuple[int, ...], projection: Linear, activations: Sequence[ir.Node]) -> ir.Value:
    """Build the activations and the convolution, and the transposition of what has been narrowed."""
    return _reshape(channels_last(_points(projection, _activated(activations, image))), shape)


def _projection(last: ir.Node) -> Linear:
    """The product with a constant matrix that a node is, or adds one number for each column to.

    Raises:
        Refusal: If it is none, or its channels fill no blocks.
    """
    layer = product(last)
    need_float32(layer.weight, FOR_BLOCKS)
    need(not (layer.inputs % BLOCK or layer.outputs % BLOCK), "the channels fill no blocks", layer.weight)
    layer.summand()
    return layer


def _goes_on(value: ir.Value) -> bool:
    """Whether the only node that reads a product adds its bias."""
    try:
        return is_used_once(value) and is_op(users(value)[0], "Add", "Sum") and bool(_projection(users(value)[0]))
    except Refusal:
        return False


def _points(layer: Linear, image: ir.Value) -> ir.Value:
    """The same product, of an image's points."""
    return points(image, layer.matrix, None if layer.bias is None else layer.summand().astype(np.float32))


def _behind_reshape(value: ir.Value) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """What a Reshape that keeps the last axis reads, and the Reshape; without one the value itself.

    Raises:
        Refusal: If a Reshape takes channels apart, or something else reads what it does.
    """
    node = value.producer()
    if not is_op(node, "Reshape"):
        return value, ()
    reshape = producer(value, "Reshape", alone="what is reshaped is used elsewhere")
    before, _ = inputs(reshape, 2)
    need(
        bool(dims(before) and dims(value)) and same_dim(dims(before)[-1], dims(value)[-1]),
        "channels come apart",
        reshape,
    )
    return before, (reshape,)


def _behind_activations(value: ir.Value) -> tuple[ir.Value, tuple[ir.Node, ...]]:
    """What activations read, and the activations in order."""
    nodes: list[ir.Node] = []
    while (node := value.producer()) is not None and node.op_type in ACTIVATIONS.get(node.domain, ()):
        need(is_used_once(value), "what is activated is used elsewhere", value)
        nodes.append(node)
        (value,) = inputs(node, 1)
    return value, tuple(reversed(nodes))


def _only(value: ir.Value) -> ir.Node:
    """The node that computes a value, which one other node reads."""
    node = need_known(value.producer(), "it is no product", value)
    need(is_used_once(value), "the product is used elsewhere", value)
    return node


def _reshape(value: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    return ir.node("Reshape", [value, constant(shape)]).outputs[0] if shape else value


def _activated(activations: Sequence[ir.Node], image: ir.Value) -> ir.Value:
    """What activations make of an image."""
    for node in activations:
        plain_attributes(node)
    return ops.followed(image, activations)
