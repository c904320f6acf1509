"""ONNX Runtime's blocked convolutions multiply faster than its matrix products where pixels are the rows.

Networks that normalize channels (ConvNeXt) transpose an image so that its channels are last, multiply twice and
transpose it back: the same products are convolutions of single points between the same two transpositions.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK
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
    plain_attributes,
    static_dims,
    users,
)
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT

RANK = 4
TO_CHANNELS_FIRST = (0, 3, 1, 2)
TO_CHANNELS_LAST = (0, 2, 3, 1)

ACTIVATIONS = (
    *("Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"),
    *(f"{MICROSOFT}::{op}" for op in ("FastGelu", "Gelu", "QuickGelu")),
)
"""Ops of one operand that may stand between the products."""

SYMMETRIC = ("Add", "Mul", "Sum")
"""Ops of an image and a number for each channel, in either order."""


class Found(Struct, frozen=True):
    """What becomes convolutions.

    Attributes:
        nodes: The last transposition, and the nodes before it, the last one first.
        start: The image with channels last that the first of them reads.
    """

    nodes: tuple[ir.Node, ...]
    start: ir.Value


class MatmulConvConversion(RewriteRule[Found]):
    """``Transpose(MatMul(Gelu(MatMul(x, A)), B))`` → ``Conv(Gelu(Conv(Transpose(x), A)), B)`` for images x.

    The channels are last in x. Where the result keeps its channels last, a transposition brings them back.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Transpose", "MatMul", *SYMMETRIC, "Sub", "Div", *ACTIVATIONS)
    providers = (CPU,)
    targets = (Target.ORT,)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """Products with constant matrices in whole blocks, and between them what works on each element."""
        nodes = [root]
        if root.op_type == "Transpose":
            need(ops.Transpose(root).order == TO_CHANNELS_FIRST, "it does not bring channels to the front", root)
            operand: ir.Value | None = inputs(root, 1)[0]
        else:
            need(not _goes_on(root.outputs[0]), "what follows belongs to it", root)
            operand = _operand(root)
        if operand is None:
            raise Refusal("it is no product of an image's channels with a constant", root)
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
        _, height, width, _ = dims(value, RANK)
        need_float32(value, "the blocked kernels are")
        need(is_never_zero(height, root) and is_never_zero(width, root), "the image may be empty", value)
        return Found(tuple(nodes), value)

    def rewrite(self, found: Found) -> ir.Value:
        """Build the transposition of the first operand, and after it each node for an image with channels first."""
        root = found.nodes[0]
        ends = root.op_type == "Transpose"
        image = ir.node("Transpose", [found.start], {"perm": TO_CHANNELS_FIRST}).outputs[0]
        for old in reversed(found.nodes[1:] if ends else found.nodes):
            image = _with_channels_first(old, image).outputs[0]
        return image if ends else ir.node("Transpose", [image], {"perm": TO_CHANNELS_LAST}).outputs[0]


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
    return value.shape is not None and len(value.shape) == RANK


def _is_of_channels(number: ir.Value, x: ir.Value) -> bool:
    """Whether an operand is a constant with a number for each channel, or for all, of an image."""
    if not is_constant(number) or not _is_image(x):
        return False
    shape = static_dims(number)
    channels = dims(x)[-1]
    return len(shape) <= RANK and all(size == 1 for size in shape[:-1]) and (shape or (1,))[-1] in (1, channels)


def _with_channels_first(old: ir.Node, image: ir.Value) -> ir.Node:
    """The node that computes of an image with channels first what another one does with channels last."""
    attributes = list(plain_attributes(old).values())
    if is_op(old, "MatMul"):
        matrix = array_of(old.inputs[1])
        return ir.node("Conv", [image, constant(np.ascontiguousarray(matrix.T)[:, :, None, None], FLOAT)])
    operands = [image if not is_constant(value) else _of_image(value) for value in old.inputs if value is not None]
    return ir.Node(old.domain, old.op_type, operands, attributes)


def _of_image(number: ir.Value) -> ir.Value:
    return constant(array_of(number).reshape(-1, 1, 1), FLOAT)
