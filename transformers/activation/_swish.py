"""A sigmoid of x, scaled, times x: Swish, which is SiLU where the scale is 1."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import choose, inputs, is_constant, is_op, keeps_rank, need, only_user, scalar


class Swish(Struct, frozen=True):
    """``x · Sigmoid(alpha · x)``.

    Attributes:
        nodes: The nodes that compute it.
        x: The value that it is computed from.
        alpha: The scale of x inside of the sigmoid.
        y: The product.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    alpha: float
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The product, which stands below the root."""
        return (self.y,)


def swish(root: ir.Node) -> Swish:
    """The Swish around a Sigmoid: the product below it, of what is scaled above it.

    Raises:
        Refusal: If it is none.
    """
    (argument,) = inputs(root, 1)
    product = only_user(root.outputs[0], "Mul")
    a, b = inputs(product, 2)
    need(a is not b, "the product is a square", product)
    x = b if a is root.outputs[0] else a
    nodes: tuple[ir.Node, ...] = (root, product)
    alpha = 1.0
    if argument is not x:
        alpha, scaling = _scale(argument, x)
        nodes = (scaling, *nodes)
    return Swish(nodes, x, alpha, product.outputs[0])


def _scale(argument: ir.Value, x: ir.Value) -> tuple[float, ir.Node]:
    """What x is scaled with, and the node that does so."""
    scaling = argument.producer()
    need(is_op(scaling, "Mul"), "the argument of Sigmoid is not alpha · x", argument)
    assert scaling is not None
    a, b = inputs(scaling, 2)
    pairs = [pair for pair in ((a, b), (b, a)) if pair[0] is x and is_constant(pair[1])]
    need(bool(pairs), "the argument of Sigmoid is not alpha · x", argument)
    _, number = choose(pairs)
    need(keeps_rank(number, x), "the constant would raise the rank", number)
    return scalar(number), scaling


__all__ = ["Swish", "swish"]
