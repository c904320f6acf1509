"""Rolling an image and cutting it into windows moves rows of channels: one Gather does all of it in one copy.

Transformers with shifted windows (Swin) roll their feature maps by half a window along both axes, by Split and Concat,
and cut them into windows by a transposition of six axes; and all of it in reverse behind the attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.costs import Form
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, dims, is_op, need, users
from ortopt.graph.walk import Question, each, walk
from ortopt.options import MEASURED_TARGETS
from ortopt.rule import NEWEST_OPSET, Match
from ortopt.semantics.op_traits import RESHAPING
from ortopt.transformers.lowering.onnxruntime_cpu._rules import CpuRule
from ortopt.views.arrays import moved, operands

FORM = Form("", "Gather", "of rolled rows")
MAX_MOVES = 16
"""How many moves behind one another become one."""

RENAMES = (*sorted(RESHAPING), "Identity")
PARTS = ("Slice", "Split")
MOVES = (*RENAMES, *PARTS, "Concat", "Transpose")


class RollGatherFusion(CpuRule[Match]):
    """``Transpose(Reshape(Concat(Split(Concat(Split(x))))))`` → ``Gather(x)``, and the same in reverse.

    Two axes are rolled: along one alone, Concat copies large pieces. Short rows are copied slowly.
    """

    targets = MEASURED_TARGETS
    roots = ("Concat", "Transpose")
    opsets = (5, NEWEST_OPSET)
    lookback = MAX_MOVES
    looks_downstream = True
    fuses = (("", "Gather"),)
    weighs = (FORM,)

    def match(self, root: ir.Node) -> Match:
        """Moves of elements within each image of a batch, two of them rolls; and rows that stay together."""
        need(_joins_twice(root), "nothing is rolled along two axes", root)
        need(not _goes_on(root), "more moves follow", root)
        found = _moved(root)
        rolls = sum(node.op_type == "Concat" for node in found.nodes)
        need(rolls > 1, "nothing is rolled along two axes", root)
        width = _row(found.places, found.places.shape)
        check_faster(root, FORM, columns=width)
        rows = found.places.reshape(-1, width)[:, 0] // width
        return Match(found.nodes, lambda: _of_rows(found.source, rows, width, found.places.shape))


def _of_rows(x: ir.Value, rows: np.ndarray, width: int, shape: Sequence[int]) -> ir.Node:
    """Build the Gather of rows of so many elements, between Reshapes that copy the batch."""
    flat = ir.node("Reshape", [x, constant((0, len(rows), width))])
    taken = ir.node("Gather", [flat.outputs[0], constant(rows)], {"axis": 1})
    return ir.node("Reshape", [taken.outputs[0], constant((0, *shape))])


class Moved(Struct, frozen=True):
    """Where the elements of a value come from, in each image of a batch.

    Attributes:
        source: The value that they are elements of.
        places: For each element its place there.
        nodes: The moves, the last one last.
    """

    source: ir.Value
    places: np.ndarray
    nodes: tuple[ir.Node, ...]


def _moved(root: ir.Node) -> Moved:
    """Where the elements of a node's result come from, from as far above as nothing else reads what is between."""
    unknown = Refusal("too many nodes move its elements", root.outputs[0])
    found = walk(_places, (root.outputs[0], MAX_MOVES), unknown=unknown)
    need(bool(found.nodes), "it moves along other axes, or by sizes that are not known", root)
    return found


def _places(about: tuple[ir.Value, int]) -> Question[tuple[ir.Value, int], Moved]:
    value, left = about
    node = value.producer()
    if is_op(node, *MOVES) and left and (left == MAX_MOVES or _is_read_by_one(value, node)):
        try:
            asked = operands(node, value, len(_inner(value)))
            parts: list[Moved] = yield from each((operand, left - 1) for operand, _ in asked)
            source = parts[0].source
            again = node.op_type in RENAMES and not parts[0].nodes  # it would be made again
            if not again and all(part.source is source for part in parts):
                places = moved(node, value, len(_inner(value)), [part.places for part in parts])
                if node.op_type == "Concat":
                    times = np.bincount(places.reshape(-1), minlength=math.prod(_inner(source)))
                    need(bool((times == 1).all()), "elements are left out, or taken twice", node)
                before = dict.fromkeys(one for part in parts for one in part.nodes)
                return Moved(source, places, (*before, node))
        except Refusal:
            pass
    shape = _inner(value)
    return Moved(value, np.arange(math.prod(shape)).reshape(shape), ())


def _joins_twice(node: ir.Node) -> bool:
    """Whether two Concats are among the moves that a node ends."""
    at: ir.Node | None = node
    joins = 0
    for _ in range(MAX_MOVES):
        if not is_op(at, *MOVES) or at.inputs[0] is None:
            break
        joins += at.op_type == "Concat"
        at = at.inputs[0].producer()
    return joins > 1


def _is_read_by_one(value: ir.Value, node: ir.Node) -> bool:
    """Whether one node alone reads all results of a node, or parts of its result."""
    readers = {user for result in node.outputs for user in users(result)}
    if readers and all(is_op(user, *PARTS) for user in readers):
        readers = {user for reader in readers for part in reader.outputs for user in users(part)}
    alone = len(readers) == 1 and not any(result.is_graph_output() for result in node.outputs)
    is_part = is_op(node, *PARTS) or any(is_op(user, *PARTS) for user in users(value))
    return alone and all(user.graph is node.graph and (not is_part or is_op(user, "Concat")) for user in readers)


def _goes_on(root: ir.Node) -> bool:
    """Whether moves follow, of which another root is the last."""
    value = root.outputs[0]
    for _ in range(MAX_MOVES):
        followers = {user for user in users(value) if is_op(user, *MOVES) and user.inputs[0] is value}
        if any(is_op(user, *PARTS) for user in followers):
            followers = {node for user in followers for part in user.outputs for node in users(part)}
        if len(followers) != 1 or value.is_graph_output():
            return False
        (user,) = followers
        if is_op(user, "Concat", "Transpose"):
            try:
                return root in _moved(user).nodes
            except Refusal:
                return False
        if not is_op(user, *RENAMES):
            return False
        value = user.outputs[0]
    return False


def _inner(value: ir.Value) -> tuple[int, ...]:
    """The dimensions of a value behind the batch.

    Raises:
        Refusal: If there are none, or they are not known.
    """
    inner = dims(value)[1:]
    known = tuple(size for size in inner if isinstance(size, int) and size > 0)
    need(bool(known) and len(known) == len(inner), "a size is not known, or 0", value)
    return known


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
