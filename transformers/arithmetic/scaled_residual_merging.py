"""What is added to itself, scaled, is scaled once: the smaller operand takes in what the larger would go through.

ConvNeXt V2 normalizes the response of its channels so: ``gamma * (x * n) + beta + x``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

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
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule


class ScaledResidualMerging(RewriteRule[Match]):
    """``c * (x * d) + b + x`` → ``x * (c * d + 1) + b`` for a d that has fewer elements than x.

    The constants c and b may be missing, and stand in any order.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Add",)
    opsets = (7, NEWEST_OPSET)  # before, attributes said how operands broadcast
    numerics = Numerics.REORDERED
    lookback = 3

    def match(self, root: ir.Node) -> Match:
        """A product of a value, and constants, before the value itself is added."""
        total, x = choose([inputs(root, 2), inputs(root, 2)[::-1]])
        nodes = [root]
        shift: ir.Value | None = None
        scale: ir.Value | None = None
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
        _check(x, factor, scale, shift)

        def build() -> ir.Node:
            small = factor if scale is None else ir.node("Mul", [factor, scale]).outputs[0]
            one = constant(np.ones((), dtype(x).numpy()), dtype(x))
            product = ir.node("Mul", [x, ir.node("Add", [small, one]).outputs[0]])
            return product if shift is None else ir.node("Add", [product.outputs[0], shift])

        return Match(tuple(reversed(nodes)), build)


def _check(x: ir.Value, factor: ir.Value, scale: ir.Value | None, shift: ir.Value | None) -> None:
    """Refuse operands that enlarge the value, a factor that is not smaller, and one that overflows or vanishes."""
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


def _is_smaller(shapes: Sequence[Sequence[Dim]], shape: Sequence[Dim]) -> bool:
    """Whether what shapes broadcast to has 1 on some axis where a shape has more, or may have."""
    return any(
        not same_dim(size, 1) and all(len(own) < place or same_dim(own[-place], 1) for own in shapes)
        for place, size in enumerate(reversed(shape), 1)
    )
