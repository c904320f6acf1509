"""Mish: ``x · tanh(softplus(x))``, spelled out."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt.graph.match import inputs, need, only_user, producer
from ortopt.patterns.affine import need_single
from ortopt.transformers.activation._softplus import softplus


class Mish(Struct, frozen=True):
    """The nodes, x and the result."""

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    y: ir.Value

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The product, which stands below the root."""
        return (self.y,)


def mish(root: ir.Node) -> Mish:
    """The Mish whose Tanh a node is: the softplus above it, and the product with the same x below it.

    Args:
        root: A Tanh.

    Raises:
        Refusal: If it is none.
    """
    spelled = softplus(producer(inputs(root, 1)[0], "Softplus", "Log", "Where", "Add"))
    need_single(spelled.x)
    product = only_user(root.outputs[0], "Mul")
    a, b = inputs(product, 2)
    other = b if a is root.outputs[0] else a
    need(other is spelled.x, "the product is of something else", product)
    return Mish((*spelled.nodes, root, product), spelled.x, product.outputs[0])


__all__ = ["Mish", "mish"]
