"""Moves that leave all elements where they are, in the dimensions that they have: they only copy."""

import onnx_ir as ir

from ortopt.graph.match import inputs, need, shape_of
from ortopt.rule import Forwarded
from ortopt.views.reading import through

MOVES = "it moves elements, or the shape may change"


def copied(root: ir.Node, rank: int | None = None) -> Forwarded:
    """What a move reads, if it gives the same.

    Args:
        root: The move.
        rank: The rank of what it reads, where that is known of a value of unknown shape.

    Raises:
        Refusal: If it moves elements, or may give other dimensions.
    """
    (x,) = inputs(root, 1)
    result = root.outputs[0]
    before, after = shape_of(x), None if result.is_graph_output() else shape_of(result)
    if before is not None and after is not None:  # most do other things, which takes long to find out by maps
        numbers = [pair for pair in zip(before, after, strict=False) if all(isinstance(dim, int) for dim in pair)]
        alike = len(before) == len(after) and all(one == other for one, other in numbers)
        need(alike, MOVES, root)
    need(through(x, root, rank=rank).is_identity, MOVES, root)
    return Forwarded((root,), x)


__all__ = ["copied"]
