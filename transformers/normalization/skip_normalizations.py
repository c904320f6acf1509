"""A residual connection and the normalization behind it read and write the same tensor: one kernel does both.

On the CPU, ONNX Runtime 1.31's kernel is slower than the two kernels that it replaces, for they are vectorized and it
is not: the table of costs keeps it away from there.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import (
    Dim,
    attribute,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    is_vector_of,
    need,
    optional,
    producer,
    same_dim,
    shape_of,
)
from ortopt.graph.symbolic import same_shape
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.layer_normalization import check_fused_normalization
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT


class _Skip(Struct, frozen=True):
    """``x + skip + bias`` above a normalization over the last axis.

    Attributes:
        nodes: The additions.
        x: An operand that has the sum's shape.
        skip: The other operand: of the sum's shape, or with a first dimension of 1 or none.
        bias: A vector of the last dimension; None if there is none.
        total: The sum.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    skip: ir.Value
    bias: ir.Value | None
    total: ir.Value


class _SkipFusion(RewriteRule[Match]):
    levels = (TransformerLevel.LEVEL2,)
    lookback = 3
    numerics = Numerics.REORDERED


class SkipLayerNormFusion(_SkipFusion):
    """``LayerNormalization(x + skip + c, scale, bias)`` → ``com.microsoft.SkipLayerNormalization(x, skip, …, c)``."""

    after = ("layer_norm_fusion",)
    roots = ("LayerNormalization",)
    produces = ((MICROSOFT, "SkipLayerNormalization"),)

    def match(self, root: ir.Node) -> Match:
        """A sum whose operands the kernel takes."""
        _, scale = inputs(root, 2)
        return _skip_match("SkipLayerNormalization", root, (scale, optional(root, 2)))


class SkipRmsNormFusion(_SkipFusion):
    """``RMSNormalization(x + skip + c, scale)`` → ``com.microsoft.SkipSimplifiedLayerNormalization``."""

    after = ("rms_norm_fusion",)
    roots = ("RMSNormalization", "SimplifiedLayerNormalization")
    produces = ((MICROSOFT, "SkipSimplifiedLayerNormalization"),)

    def match(self, root: ir.Node) -> Match:
        """A sum whose operands the kernel takes."""
        _, scale = inputs(root, 2)
        return _skip_match("SkipSimplifiedLayerNormalization", root, (scale,))


def _skip_match(op: str, root: ir.Node, parameters: Sequence[ir.Value | None]) -> Match:
    """A normalization and the sum above it, which one of ONNX Runtime's Skip ops replaces.

    Args:
        op: The op type of the kernel.
        root: The normalization; its first input is the sum.
        parameters: Its scale, and its bias if there may be one.

    Raises:
        Refusal: If the kernel does not take the operands.
    """
    skip = _skip_above(root, parameters)
    epsilon = attribute(root, "epsilon", 1e-5)

    def build() -> dict[ir.Value, ir.Value]:
        node = _skip_node(op, skip, parameters, epsilon)
        return {root.outputs[0]: node.outputs[0]} | ({skip.total: node.outputs[3]} if len(node.outputs) > 1 else {})

    return Match((*skip.nodes, root), build, (skip.total,))  # the sum too: the kernel gives it as an output of its own


def _skip_above(root: ir.Node, parameters: Sequence[ir.Value | None]) -> _Skip:
    """The sum that a normalization normalizes, if ONNX Runtime's Skip kernels take its operands."""
    (total, *_) = inputs(root, 1)
    addition = producer(total, "Add")
    need(addition.graph is root.graph, "the sum is computed in another graph", total)
    shape = dims(total)
    need(len(shape) in (2, 3), "the kernel takes two or three dimensions", total)
    check_fused_normalization(root, parameters, shape[-1])
    a, b = inputs(addition, 2)
    biased = [
        (x, addends) for x in (a, b) if (addends := _biased(x, shape)) is not None and _skips(b if x is a else a, x)
    ]
    if biased:
        x, (inner, plain, bias) = biased[0]
        return _Skip((inner, addition), plain, b if x is a else a, bias, total)
    if not same_shape(shape_of(a), shape):
        a, b = b, a
    need(same_shape(shape_of(a), shape) and _skips(b, a), "the kernel does not broadcast the operands so", addition)
    return _Skip((addition,), a, b, None, total)


def _biased(value: ir.Value, shape: Sequence[Dim]) -> tuple[ir.Node, ir.Value, ir.Value] | None:
    """The addition of a vector to a value of the whole shape, that value and the vector; None if it is not that."""
    node = value.producer()
    if not is_op(node, "Add") or not is_used_once(value):
        return None
    a, b = inputs(node, 2)
    if not is_vector_of(b, shape[-1]):
        a, b = b, a
    early = b.producer() is None or is_constant(b)
    return (node, a, b) if early and is_vector_of(b, shape[-1]) and same_shape(shape_of(a), shape) else None


def _skips(skip: ir.Value, x: ir.Value) -> bool:
    """Whether the kernel broadcasts a skip to x: it looks at the last two dimensions alone, and at the first for 1."""
    own, whole = shape_of(skip), shape_of(x)
    if own is None or whole is None or len(own) < 2 or not all(map(same_dim, own[-2:], whole[-2:])):
        return False
    return len(own) == 2 or (len(own) == len(whole) and (own[0] == 1 or same_dim(own[0], whole[0])))


def _skip_node(op: str, skip: _Skip, parameters: Sequence[ir.Value | None], epsilon: float) -> ir.Node:
    """A new node of one of ONNX Runtime's Skip ops, with the sum as its fourth output if that is needed."""
    inputs = [skip.x, skip.skip, *parameters, skip.bias]
    while inputs[-1] is None:
        inputs.pop()
    outputs = [ir.Value()]
    if not is_used_once(skip.total):
        outputs += [ir.Value(name=""), ir.Value(name=""), ir.Value()]
    return ir.node(op, inputs, {"epsilon": epsilon}, domain=MICROSOFT, outputs=outputs)
