"""Which branch of an If can be taken at all: where both give results of other ranks, and a later node takes one rank.

TorchScript's ``x.squeeze(dim)`` of a dimension that is not fixed becomes an If that drops the axis or does not, and
what reads it asks for its rank again, by other Ifs. Each branch is assumed in turn, and the ranks of what follows are
computed from it, up to a node that is refused with them: a recurrent layer of four dimensions. Then no run takes that
branch to its end.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import onnx_ir as ir
from msgspec import Struct, field

from ortopt import ops
from ortopt.graph import scope
from ortopt.graph.match import Refusal, attribute, inputs, is_op, shape_of, small_array
from ortopt.onnx_ir_internals import is_needed
from ortopt.semantics import constant_tensor
from ortopt.semantics.op_traits import SHAPE_OF_FIRST_INPUT

TAKEN: Final = {"GRU": 3, "LSTM": 3, "RNN": 3}
"""Ops that take one rank of their first input: https://github.com/onnx/onnx/blob/main/docs/Operators.md."""

LIKE_THE_SECOND: Final = ("Conv", "ConvTranspose")
"""Ops whose first two inputs have one rank."""

MAX_NODES: Final = 512
"""How many nodes behind an If are looked at."""


class _Assumed(Struct):
    """What follows from an assumption.

    Attributes:
        ranks: The ranks of values.
        numbers: The numbers that scalars are; a truth is 0 or 1.
    """

    ranks: dict[ir.Value, int] = field(default_factory=dict)
    numbers: dict[ir.Value, int] = field(default_factory=dict)

    def rank(self, value: ir.Value | None) -> int | None:
        """The rank of a value; None if it is not known."""
        if value is None:
            return None
        shape = shape_of(value)
        return self.ranks.get(value, None if shape is None else len(shape))

    def number(self, value: ir.Value | None) -> int | None:
        """The number that a value of one element is; None if it is not known."""
        if value is None or value in self.numbers:
            return None if value is None else self.numbers[value]
        content = None if constant_tensor(value) is None else small_array(value)
        return int(content.item()) if content is not None and content.size == 1 and content.dtype.kind in "bi" else None

    def take(self, values: Sequence[ir.Value], others: Sequence[ir.Value]) -> None:
        """Assume of values what is known of others."""
        for value, other in zip(values, others, strict=False):
            rank, number = self.rank(other), self.number(other)
            if rank is not None:
                self.ranks[value] = rank
            if number is not None:
                self.numbers[value] = number

    def copy(self) -> _Assumed:
        """A copy, for what follows in one branch only."""
        return _Assumed(dict(self.ranks), dict(self.numbers))


def only_possible(node: ir.Node) -> bool | None:
    """Whether an If takes its first branch in every run that ends (true) or its second; None where that is not known.

    Args:
        node: An If.
    """
    branches = _branches(node)
    if branches is None or not any(map(_differ, *(branch.outputs for branch in branches))):
        return None
    behind = list(itertools.islice(_behind(node), MAX_NODES))
    fails: list[bool] = []
    for branch in branches:
        assumed = _Assumed()
        assumed.take(node.outputs, branch.outputs)
        fails.append(_fails(behind, assumed))
    return None if fails[0] == fails[1] else fails[1]


def _branches(node: ir.Node) -> tuple[ir.Graph, ir.Graph] | None:
    then: ir.Graph | None = attribute(node, "then_branch", None)
    other: ir.Graph | None = attribute(node, "else_branch", None)
    return None if then is None or other is None else (then, other)


def _differ(one: ir.Value, other: ir.Value) -> bool:
    """Whether two values have other ranks."""
    shapes = shape_of(one), shape_of(other)
    return None not in shapes and len(shapes[0] or ()) != len(shapes[1] or ())


def _behind(node: ir.Node) -> Iterator[ir.Node]:
    """The nodes behind a node in its graph: all of them run, whatever the node gives."""
    nodes = iter(scope.graph_of(node))
    for one in nodes:
        if one is node:
            break
    return nodes


def _fails(nodes: Iterable[ir.Node], assumed: _Assumed) -> bool:
    """Whether one of some nodes is refused; what they give is added to what is assumed."""
    standard = (node for node in nodes if not node.domain and any(map(is_needed, node.outputs)))
    return any(_is_refused(node, assumed) for node in standard)


def _is_refused(node: ir.Node, assumed: _Assumed) -> bool:
    """Whether a node takes no input of such a rank, or an If comes to such a node whatever it takes."""
    first, second = (*node.inputs[:2], None, None)[:2]
    rank = assumed.rank(first)
    if node.op_type == "If":
        return _is_refused_within(node, assumed)
    if node.op_type in TAKEN:
        return rank not in (None, TAKEN[node.op_type])
    if node.op_type in LIKE_THE_SECOND:
        return None not in (rank, assumed.rank(second)) and rank != assumed.rank(second)
    with contextlib.suppress(Refusal):
        result = _rank_of_result(node, rank, assumed.rank(second))
        if result is not None:
            assumed.ranks[node.outputs[0]] = result
        number = _number_of_result(node, assumed)
        if number is not None:
            assumed.numbers[node.outputs[0]] = number
    return False


def _rank_of_result(node: ir.Node, rank: int | None, second: int | None) -> int | None:
    """The rank of a node's result, by those of its first two inputs."""
    if rank is None or node.op_type in SHAPE_OF_FIRST_INPUT:
        return rank
    if node.op_type == "Unsqueeze":
        return rank + len(ops.Unsqueeze(node).stated_axes)
    axes = ops.Squeeze(node).stated_axes if node.op_type == "Squeeze" else ()
    if axes:
        return rank - len(axes)
    return rank - 1 + second if node.op_type == "Gather" and second is not None else None


def _number_of_result(node: ir.Node, assumed: _Assumed) -> int | None:
    """The number that a node's result is: how many axes a value has, and what is asked of that."""
    if node.op_type == "Size":
        shape = inputs(node, 1)[0].producer()
        whole = is_op(shape, "Shape") and not shape.attributes
        return assumed.rank(inputs(shape, 1)[0]) if shape is not None and whole else None
    numbers = [assumed.number(value) for value in node.inputs]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers) or not known:
        return None
    if node.op_type == "Not":
        return int(not known[0])
    return int(known[0] == known[1]) if node.op_type == "Equal" else None


def _is_refused_within(node: ir.Node, assumed: _Assumed) -> bool:
    """Whether an If comes to a node that is refused: in the branch that it takes, or in both."""
    branches, holds = _branches(node), assumed.number(node.inputs[0])
    if branches is None:
        return False
    if holds is not None:
        branch = branches[not holds]
        failed = _fails(branch, assumed)
        assumed.take(node.outputs, branch.outputs)
        return failed
    return all(_fails(branch, assumed.copy()) for branch in branches)
