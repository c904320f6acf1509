"""What is done alike to each of several parts, as steps that can be taken once with all of them joined."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Final, NamedTuple

import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.graph import symbolic
from ortopt.graph.match import Refusal, dims, inputs, need, plain_attributes, rank, same_dim, shape_of, users
from ortopt.graph.structural_keys import node_key
from ortopt.semantics.op_traits import BROADCASTING, UNARY
from ortopt.views.index_map import joined, whole
from ortopt.views.reading import after

MERGED: Final = Form("", "MatMul", "merged with siblings")
"""Products of one value as one product and a Split, which copies the parts."""


class Parts(NamedTuple):
    """Values that are, joined along an axis, one value.

    Attributes:
        values: The parts, in their order.
        axis: Along what.
    """

    values: tuple[ir.Value, ...]
    axis: int


def axis_behind(node: ir.Node, axes: Sequence[int | None]) -> int:
    """The axis along which results of a node are parts of what the op gives of the whole.

    Args:
        node: A node that reads parts.
        axes: For each input the axis along which it is a part; None for what does not differ between the parts.

    Raises:
        Refusal: If the op treats the whole in another way, or that is not known.
    """
    need(node.domain == "", "the op is no standard one", node)
    if node.op_type in UNARY or node.op_type in BROADCASTING:
        return _behind_elementwise(node, axes)
    if node.op_type == "Gather" and axes[0] is None and axes[1] is not None:
        return ops.Gather(node).axis + axes[1]
    along = axes[0]
    if along is None or any(other is not None for other in axes[1:]):
        raise Refusal("the parts are no data of it", node)
    if node.op_type == "Gather":
        by = ops.Gather(node).axis
        need(by != along, "it selects of the parts", node)
        return along if along < by else along - 1 + rank(inputs(node, 2)[1])
    return _behind_moves(node, along)


def _behind_elementwise(node: ir.Node, axes: Sequence[int | None]) -> int:
    """Parts of the same rank along the same axis, with numbers."""
    values = inputs(node, len(node.inputs))
    of = next(value for value, along in zip(values, axes, strict=True) if along is not None)
    places = set()
    for value, along in zip(values, axes, strict=True):
        if along is None:
            number = shape_of(value)
            need(number is not None and all(dim == 1 for dim in number), "an operand is no single number", value)
            need(rank(value) <= rank(of), "an operand raises the rank", value)
        else:
            need(rank(value) == rank(of), "operands have other ranks", value)
            places.add(along)
    need(len(places) == 1, "operands are joined along other axes", node)
    return places.pop()


def _behind_moves(node: ir.Node, along: int) -> int:
    """The axis of a part, of any size, as the map of a move has it: whole, and with nothing else in its dimension."""
    (part,) = inputs(node, 1)
    size = symbolic.fresh("size of a part")
    shape = dims(part)
    found = after(whole(part, (*shape[:along], size, *shape[along + 1 :])), node)
    sizes = [group[0].size if len(group) == 1 else 1 for group in map(joined, found.groups)]
    places = [place for place, dim in enumerate(sizes) if same_dim(dim, size)]
    need(len(places) == 1 and same_dim(found.starts[along], 0), "it does not keep the axis of the parts", node)
    return places[0]


class ParallelParts:
    """Parts of a value, and the steps that can be taken with the whole instead.

    A step is one op that reads each part in a node of its own: the nodes differ in nothing but the parts, and the op
    does with the whole what it does with each part. What else they read is the same value for all, so a step with the
    whole depends on nothing that depends on a part of it.

    Args:
        parts: The parts.
    """

    def __init__(self, parts: Parts) -> None:
        self._steps: list[tuple[ir.Node, ...]] = []
        self._families = {parts.values[0]: parts}
        self._taken: set[ir.Node] = set()
        self._graph = parts.values[0].graph
        known = 0
        while len(self._families) > known:  # a step that reads two families waits for both
            known = len(self._families)
            for first in list(self._families):
                for node in users(first):
                    self._take(node)

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes of all steps."""
        return tuple(node for step in self._steps for node in step)

    def family(self, first: ir.Value) -> Parts | None:
        """The parts that a value is the first of; None where it is not."""
        return self._families.get(first)

    def read_elsewhere(self, beyond: Collection[ir.Node] = ()) -> list[Parts]:
        """The parts that others than the steps read.

        Args:
            beyond: Nodes that do not count.
        """
        inside = {*self._taken, *beyond}
        return [
            parts
            for parts in self._families.values()
            if any(value.is_graph_output() or not inside.issuperset(users(value)) for value in parts.values)
        ]

    def replay(self, whole: ir.Value, wanted: Collection[ir.Value]) -> dict[ir.Value, ir.Value]:
        """Take the steps with the whole that lead to what is wanted.

        Args:
            whole: What the parts are parts of.
            wanted: The first of each family of parts whose whole is wanted.

        Returns:
            These and those on the way, each to the whole of its family.
        """
        needed, steps = set(wanted), list[ir.Node]()
        for node, *_ in reversed(self._steps):
            if needed.intersection(node.outputs):
                needed.update(value for value in node.inputs if value is not None)
                steps.append(node)
        wholes = {next(iter(self._families)): whole}
        for node in reversed(steps):
            operands = [value if value is None else wholes.get(value, value) for value in node.inputs]
            attributes = list(node.attributes.values())
            new = ir.Node(node.domain, node.op_type, operands, attributes, num_outputs=len(node.outputs))
            wholes.update(zip(node.outputs, new.outputs, strict=True))
        return wholes

    def _take(self, node: ir.Node) -> None:
        """Take a step, if each part has a node like this one, and the whole may have it."""
        if node in self._taken or node.graph is not self._graph:
            return
        families = [None if value is None else self._families.get(value) for value in node.inputs]
        try:
            axis = axis_behind(node, [None if family is None else family.axis for family in families])
            nodes = self._alike(node, next(family for family in families if family is not None))
        except Refusal:
            return
        self._steps.append(nodes)
        self._taken.update(nodes)
        for values in zip(*(one.outputs for one in nodes), strict=True):
            self._families[values[0]] = Parts(values, axis)

    def _alike(self, node: ir.Node, read: Parts) -> tuple[ir.Node, ...]:
        """The nodes that do with each part what a node does with the first.

        Raises:
            Refusal: If a part has none, or several.
        """
        plain_attributes(node)
        key, nodes = node_key(node, self._names_at(0)), [node]
        for place, part in enumerate(read.values[1:], 1):
            names = self._names_at(place)
            others = [user for user in users(part) if user.graph is node.graph and node_key(user, names) == key]
            need(len(others) == 1, "the parts are not treated alike", node)
            nodes += others
        need(len(set(nodes)) == len(nodes), "a node reads several parts", node)
        return tuple(nodes)

    def _names_at(self, place: int) -> dict[ir.Value, Hashable]:
        """What stands for the parts at a place when nodes are compared: the first of their family."""
        return {parts.values[place]: ("part", first) for first, parts in self._families.items()}
