"""How large an image is, at least, as far as a pass must know to say that another form is allowed, and pays."""

from __future__ import annotations

import math
from typing import Final

import onnx_ir as ir

from ortopt.graph.match import dims, is_never_zero, is_used, same_dim, users
from ortopt.patterns.convolution_activation import is_convolution

_FREE: Final = 16
"""The length of an axis that is not fixed: fewer channels, rows or columns of an image are rare."""


def elements_of_an_image(value: ir.Value) -> int:
    """How many elements an image of a batch has, or is likely to have at least.

    Args:
        value: The batch.

    Raises:
        Refusal: The rank is unknown.
    """
    return math.prod(dim if isinstance(dim, int) else _FREE for dim in dims(value)[1:])


def is_filled_image(x: ir.Value, root: ir.Node) -> bool:
    """Whether each image of a batch has rows and columns, in any run that ends.

    Their number is never 0, or a convolution gives the image, or one of its size, or reads it and keeps its size: ONNX
    Runtime runs none that gives an empty image.

    Args:
        x: The batch.
        root: The node that asks.

    Raises:
        Refusal: The rank is unknown.
    """
    if all(is_never_zero(size, root) for size in dims(x)[2:]):
        return True
    convs = [x.producer(), *(user for user in users(x) if user.inputs[0] is x and is_used(user.outputs[0]))]
    return any(
        node is not None
        and node.graph is root.graph
        and is_convolution(node)
        and all(map(same_dim, dims(node.outputs[0])[2:], dims(x)[2:]))
        for node in convs
    )
