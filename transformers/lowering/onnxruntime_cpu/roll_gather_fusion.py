"""Rolling an image and cutting it into windows moves rows of channels: one Gather does all of it in one copy.

Transformers with shifted windows (Swin) roll their feature maps by half a window along both axes, by Split and Concat,
and cut them into windows by a transposition of six axes; and all of it in reverse behind the attention.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import dims, is_op, is_used_once, need, same_dim, users
from ortopt.options import Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, RewriteRule

FORM = Form("", "Gather", "of rolled rows")
MAX_MOVES = 12


class Found(Struct, frozen=True):
    """The nodes, what they move, and how.

    Attributes:
        nodes: The nodes, the last one last.
        x: What is moved; its first axis is the batch, which stays.
        rows: Where each row of the result comes from.
        width: The elements of a row.
        shape: The dimensions of the result behind the batch.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    rows: np.ndarray
    width: int
    shape: tuple[int, ...]


class RollGatherFusion(RewriteRule[Found]):
    """``Transpose(Reshape(Concat(Split(Concat(Split(x))))))`` → ``Gather(x)``, and the same in reverse.

    Two axes are rolled: along one alone, Concat copies large pieces. Short rows are copied slowly.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Concat", "Transpose")
    opsets = (5, NEWEST_OPSET)
    lookback = MAX_MOVES
    looks_downstream = True
    providers = (CPU,)
    targets = (Target.ORT,)
    fuses = (("", "Gather"),)
    weighs = (FORM,)

    def match(self, root: ir.Node) -> Found:
        """Moves of elements within each image of a batch, two of them rolls; and rows that stay together."""
        need(not _goes_on(root), "more moves follow", root)
        moves = _moves_above(root)
        rolls = sum(node.op_type == "Concat" for node in moves)
        need(rolls > 1, "nothing is rolled along two axes", root)
        x = moves[0].inputs[0]
        if moves[0].op_type == "Concat":
            x = _rolled(moves[0]).inputs[0]
        assert x is not None
        places = np.arange(math.prod(_inner(x))).reshape(_inner(x))
        for node in moves:
            places = _moved(node, places)
        shape = _inner(root.outputs[0])
        width = _row(places, shape)
        check_faster(root, FORM, columns=width)
        rows = places.reshape(-1, width)[:, 0] // width
        nodes = [part for node in moves for part in ((_rolled(node), node) if node.op_type == "Concat" else (node,))]
        return Found(tuple(nodes), x, rows, width, shape)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the Gather of rows, between Reshapes that copy the batch."""
        flat = ir.node("Reshape", [found.x, constant((0, len(found.rows), found.width))])
        rows = ir.node("Gather", [flat.outputs[0], constant(found.rows)], {"axis": 1})
        return ir.node("Reshape", [rows.outputs[0], constant((0, *found.shape))])


def _moves_above(root: ir.Node) -> list[ir.Node]:
    """The moves that end in a node, the first one first; a roll is its Concat."""
    moves = [root]
    while len(moves) < MAX_MOVES:
        first = moves[0]
        value = (_rolled(first) if first.op_type == "Concat" else first).inputs[0]
        before = None if value is None else value.producer()
        if value is None or before is None or not is_used_once(value) or not _is_move(before):
            break
        moves.insert(0, before)
    while moves[0].op_type == "Reshape":
        del moves[0]  # it would be made again
        need(bool(moves), "nothing is moved", root)
    need(all(_stays_in_batch(node) for node in moves), "the batch is not the first axis throughout", root)
    return moves


def _is_move(node: ir.Node) -> bool:
    """Whether a node moves elements within images of a batch only."""
    if is_op(node, "Concat") and not _is_roll(node):
        return False
    return is_op(node, "Concat", "Reshape", "Transpose") and _stays_in_batch(node)


def _stays_in_batch(node: ir.Node) -> bool:
    """Whether a node keeps the batch as the first axis, and all other dimensions are known."""
    value = (_rolled(node) if node.op_type == "Concat" else node).inputs[0]
    if value is None or value.shape is None or node.outputs[0].shape is None:
        return False
    before, after = dims(value), dims(node.outputs[0])
    if len(before) < 2 or len(after) < 2 or not same_dim(before[0], after[0]):
        return False
    if node.op_type == "Transpose" and ops.Transpose(node).order[0] != 0:
        return False
    if node.op_type == "Concat" and ops.Concat(node).axis == 0:
        return False
    return all(isinstance(size, int) and size > 0 for size in (*before[1:], *after[1:]))


def _is_roll(node: ir.Node) -> bool:
    """Whether a Concat joins the parts of a Split in another place, all of them once, along the axis of the Split."""
    sources = [None if value is None else value.producer() for value in node.inputs]
    split = sources[0]
    if split is None or not is_op(split, "Split") or any(source is not split for source in sources):
        return False
    if set(node.inputs) != set(split.outputs) or len(node.inputs) != len(split.outputs):
        return False
    if node.outputs[0].shape is None or split.inputs[0] is None or not all(map(is_used_once, split.outputs)):
        return False
    return ops.Concat(node).axis == ops.Split(split).axis


def _rolled(concat: ir.Node) -> ir.Node:
    """The Split whose parts a Concat joins."""
    value = concat.inputs[0]
    split = None if value is None else value.producer()
    need(split is not None and _is_roll(concat), "no parts of one Split are joined", concat)
    assert split is not None
    return split


def _goes_on(root: ir.Node) -> bool:
    """Whether moves follow, of which another root is the last."""
    value = root.outputs[0]
    while is_used_once(value):
        (user,) = users(value)
        if is_op(user, "Split"):
            followers = {node for part in user.outputs for node in users(part)}
            return any(_is_move(node) for node in followers if is_op(node, "Concat"))
        if not is_op(user, "Reshape", "Transpose") or user.inputs[0] is not value or not _is_move(user):
            return False
        if is_op(user, "Transpose"):
            return True
        value = user.outputs[0]
    return False


def _inner(value: ir.Value) -> tuple[int, ...]:
    """The dimensions of a value behind the batch; the moves' are all known."""
    return tuple(size for size in dims(value)[1:] if isinstance(size, int))


def _moved(node: ir.Node, places: np.ndarray) -> np.ndarray:
    """Where elements come from, once a node has moved them."""
    if node.op_type == "Reshape":
        shape = _inner(node.outputs[0])
        need(math.prod(shape) == places.size, "a Reshape fits its operand for no batch", node)
        return places.reshape(shape)
    if node.op_type == "Transpose":
        return places.transpose([place - 1 for place in ops.Transpose(node).order[1:]])
    split = _rolled(node)
    along = ops.Concat(node).axis - 1
    sizes = [_inner(part)[along] for part in split.outputs]
    parts = dict(zip(split.outputs, np.split(places, np.cumsum(sizes)[:-1], axis=along), strict=True))
    return np.concatenate([parts[value] for value in node.inputs if value is not None], axis=along)


def _row(places: np.ndarray, shape: tuple[int, ...]) -> int:
    """How many elements are moved together, by whole axes of the result."""
    best = 1
    for count in range(1, len(shape) + 1):
        width = math.prod(shape[-count:])
        rows = places.reshape(-1, width)
        together = (rows[:, :1] % width == 0).all() and (rows == rows[:, :1] + np.arange(width)).all()
        if not together:
            break
        best = width
    return best
