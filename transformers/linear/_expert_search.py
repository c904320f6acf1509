"""How each of several experts finds its rows, as loops over experts write it that an exporter has unrolled.

A mask says for each expert which rows are its. Each has its own part of the mask, and a NonZero of that.
"""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import (
    Refusal,
    attribute,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    need,
    only_user,
    rank,
    scalar,
    small_array,
    users,
)

MASKS = (ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT8)
"""The element types of masks of which ONNX Runtime has a NonZero, without floats."""


class Search(Struct, frozen=True):
    """The nodes that find the rows of each expert, and what they find.

    Attributes:
        mask: Not 0 where a row belongs to an expert.
        axis: The mask's axis of the experts.
        nodes: The Gathers, the Casts and the NonZeros.
        found: For each expert the coordinates of what is not 0.
        is_of_ones: Whether what is not 0 in the mask is known to be 1.
    """

    mask: ir.Value
    axis: int
    nodes: tuple[ir.Node, ...]
    found: tuple[ir.Value, ...]
    is_of_ones: bool


def expert_search(root: ir.Node) -> Search:
    """What finds the rows of all experts.

    Args:
        root: The NonZero of the first expert.

    Raises:
        Refusal: If it is none, or others are not found alike.
    """
    first = _selection(root)
    mask = inputs(first, 2)[0]
    need(dtype(mask) in MASKS, "the mask is of floats", mask)
    axis = ops.Gather(first).axis_of(rank(mask))
    count = dims(mask)[axis]
    gathers = [node for node in users(mask) if is_op(node, "Gather") and node.inputs[0] is mask]
    if not isinstance(count, int) or len(gathers) != count or count < 2:
        raise Refusal("not each part of the mask is searched once", mask)
    places = {node: _index(node, axis) for node in gathers}
    gathers.sort(key=places.__getitem__)
    need([places[node] for node in gathers] == list(range(count)), "not each part of the mask is searched once", mask)
    need(gathers[0] is first, "it searches for another than the first expert", root)
    chains = [_chain(node) for node in gathers]
    need(all(node.graph is root.graph for chain in chains for node in chain), "a subgraph reads the mask", mask)
    nodes = tuple(node for chain in chains for node in chain)
    found = tuple(chain[-1].outputs[0] for chain in chains)
    return Search(mask, axis, nodes, found, _is_of_ones(mask))


def _selection(root: ir.Node) -> ir.Node:
    """The Gather whose result a NonZero searches."""
    node = inputs(root, 1)[0].producer()
    if is_op(node, "Cast"):
        node = inputs(node, 1)[0].producer()
    if not is_op(node, "Gather"):
        raise Refusal("it searches no part of a mask", root)
    return node


def _is_of_ones(mask: ir.Value) -> bool:
    """Whether a OneHot writes the mask in zeros and ones."""
    node = mask.producer()
    if is_op(node, "Transpose"):
        node = inputs(node, 1)[0].producer()
    if not is_op(node, "OneHot"):
        return False
    values = node.inputs[2]
    return is_constant(values) and small_array(values).tolist() == [0, 1]


def _index(node: ir.Node, axis: int) -> int:
    """Which part of an axis of the mask a Gather takes."""
    mask, listed = inputs(node, 2)
    takes_part = rank(listed) == 0 and ops.Gather(node).axis_of(rank(mask)) == axis
    need(takes_part, "it takes no part of the axis of the experts", node)
    size = dims(mask)[axis]
    index = int(scalar(listed))
    return index % size if isinstance(size, int) and size else index


def _chain(gather: ir.Node) -> tuple[ir.Node, ...]:
    """A Gather, perhaps a Cast to booleans, and the NonZero."""
    user = only_user(gather.outputs[0], "Cast", "NonZero")
    if is_op(user, "NonZero"):
        return gather, user
    need(attribute(user, "to", 0) == ir.DataType.BOOL, "the Cast makes no booleans", user)
    return gather, user, only_user(user.outputs[0], "NonZero")
