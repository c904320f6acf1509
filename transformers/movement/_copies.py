"""Moves that leave all elements where they are, in the dimensions that they have: they only copy."""

import onnx_ir as ir

from ortopt.graph.match import inputs, need
from ortopt.rule import Forwarded
from ortopt.views.reading import through


def copied(root: ir.Node, rank: int | None = None) -> Forwarded:
    """What a move reads, if it gives the same.

    Args:
        root: The move.
        rank: The rank of what it reads, where that is known of a value of unknown shape.

    Raises:
        Refusal: If it moves elements, or may give other dimensions.
    """
    (x,) = inputs(root, 1)
    need(through(x, root, rank=rank).is_identity, "it moves elements, or the shape may change", root)
    return Forwarded((root,), x)


__all__ = ["copied"]
