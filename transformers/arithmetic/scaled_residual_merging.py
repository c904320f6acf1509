"""What is added to itself, scaled, is scaled once: the smaller operand takes in what the larger would go through.

ConvNeXt V2 normalizes the response of its channels so: ``gamma * (x * n) + beta + x``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.magnitudes import need_near
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Dim,
    array_of,
    choose,
    dims,
    dims_broadcast_to,
    dtype,
    inputs,
    is_constant,
    is_op,
    need,
    need_float,
    operand_constant,
    producer,
    same_dim,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """What is scaled and added.

    Attributes:
        nodes: The nodes that are replaced.
        x: What is scaled.
        factor: What it is scaled with, of fewer elements.
        scale: A constant factor, if there is one.
        shift: A constant summand, if there is one.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    factor: ir.Value
    scale: ir.Value | None
    shift: ir.Value | None


class ScaledResidualMerging(RewriteRule[Found]):
    """``c * (x * d) + b + x`` → ``x * (c * d + 1) + b`` for a d that has fewer elements than x.

    The constants c and b may be missing, and stand in any order.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Add",)
    opsets = (7, NEWEST_OPSET)  # before, attributes said how operands broadcast
    numerics = Numerics.REORDERED
    lookback = 3

    def match(self, root: ir.Node) -> Found:
        """A product of a value, and constants, before the value itself is added."""
        total, x = choose([inputs(root, 2), inputs(root, 2)[::-1]])
        nodes = [root]
        shift = scale = None
        if is_op(node := producer(total, "Add", "Mul"), "Add"):
            shift, total = operand_constant(node)
            nodes.append(node)
        node = producer(total, "Mul")
        if any(map(is_constant, inputs(node, 2))):
            scale, total = operand_constant(node)
            nodes.append(node)
            node = producer(total, "Mul")
        nodes.append(node)
        need(any(value is x for value in inputs(node, 2)), "it is no product of what it is added to", node)
        factor = next((value for value in inputs(node, 2) if value is not x), x)
        self._check(x, factor, scale, shift)
        return Found(tuple(reversed(nodes)), x, factor, scale, shift)

    def _check(self, x: ir.Value, factor: ir.Value, scale: ir.Value | None, shift: ir.Value | None) -> None:
        need_float(x)
        shape = dims(x)
        small = [factor] if scale is None else [factor, scale]
        fit = all(dims_broadcast_to(dims(value), shape) for value in (*small, *([] if shift is None else [shift])))
        need(fit, "an operand would enlarge it", x)
        need(_is_smaller([dims(value) for value in small], shape), "the factor may have as many elements", factor)
        if scale is not None:
            numbers = np.abs(array_of(scale).astype(np.float64))
            need(bool(np.isfinite(numbers).all()), "a factor is not finite", scale)
            need_near(np.where(numbers == 0, 1.0, numbers), (1.0,), dtype(x), scale)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the sum of the factor and 1, the product, and what is added to it."""
        factor = found.factor
        if found.scale is not None:
            factor = ir.node("Mul", [factor, found.scale]).outputs[0]
        one = constant(np.ones((), dtype(found.x).numpy()), dtype(found.x))
        product = ir.node("Mul", [found.x, ir.node("Add", [factor, one]).outputs[0]])
        return product if found.shift is None else ir.node("Add", [product.outputs[0], found.shift])


def _is_smaller(shapes: Sequence[Sequence[Dim]], shape: Sequence[Dim]) -> bool:
    """Whether what shapes broadcast to has 1 on some axis where a shape has more, or may have."""
    return any(
        not same_dim(size, 1) and all(len(own) < place or same_dim(own[-place], 1) for own in shapes)
        for place, size in enumerate(reversed(shape), 1)
    )
