"""Stages of convolutions that keep the length of their signals, with what is elementwise between and behind them.

A position of a stage's result depends on the positions of its operands up to so many before and behind it, its halo.
So a piece of the result is computed from a piece of the operands that is longer by the halo, without the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import (
    FLOAT,
    Dim,
    Refusal,
    dims,
    dtype,
    inputs,
    is_constant,
    need,
    need_float32,
    opset,
    optional,
    plain_attributes,
    same_dim,
    shape_of,
    static_dims,
    tensor_of,
    users,
)
from ortopt.graph.order import after_what_they_read
from ortopt.patterns.convolutions import is_convolution
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import BROADCASTING, UNARY, VARIADIC
from ortopt.semantics.opset_changes import BROADCASTS_FROM

RANK = 3

MAX_NODES = 400
"""Nodes of a stage that are looked for, at most."""

_UNARY = UNARY - {"Cast"}
_OWN_UNARY = frozenset({"Gelu", "QuickGelu"})


class Halo(Struct, frozen=True):
    """How many positions before and behind its own an element depends on."""

    before: int = 0
    behind: int = 0


class Stage(Struct, frozen=True):
    """Nodes that compute signals from signals of the same length.

    Attributes:
        nodes: All of them, each after those that it reads from.
        entries: The signals that they read from elsewhere.
        exits: Their results that something else reads.
        length: The length of all signals.
        halo: That of the results that depend on most.
    """

    nodes: tuple[ir.Node, ...]
    entries: tuple[ir.Value, ...]
    exits: tuple[ir.Value, ...]
    length: Dim
    halo: Halo

    @property
    def convolutions(self) -> tuple[ir.Node, ...]:
        """Its convolutions."""
        return tuple(node for node in self.nodes if is_convolution(node))


def halo_of(convolution: ir.Node, block: int = 1) -> Halo:
    """The halo of a convolution that keeps the length of its signals.

    Args:
        convolution: The convolution.
        block: Of what its channels are a multiple.

    Raises:
        Refusal: If it does not keep the length, or is of another kind.
    """
    x, weight = inputs(convolution, 2)
    need_float32(x)
    need(optional(convolution, 3) is None, "it adds another value", convolution)
    plain_attributes(convolution)
    outputs, channels, kernel = static_dims(weight, RANK)
    tensor_of(weight)
    conv = ops.Conv(convolution)
    need(conv.group == 1, "it has groups", convolution)
    need(min(outputs, channels, kernel) > 0, "it is empty", weight)
    need(outputs % block == 0 == channels % block, "the channels fill no blocks", weight)
    before, behind = conv.pads
    need(conv.strides == (1,), "it has strides", convolution)
    (dilation,) = conv.dilations
    need(before >= 0 and behind >= 0, "its padding cuts away", convolution)
    need(before + behind == dilation * (kernel - 1), "it does not keep the length", convolution)
    return Halo(before, behind)


def stage_of(root: ir.Node, block: int = 1) -> Stage:
    """The stage that a convolution belongs to.

    Args:
        root: A convolution of signals, one of the stage's first.
        block: Of what the channels of its convolutions are a multiple.

    Raises:
        Refusal: If the convolution does not keep the length, or is none of the first.
    """
    halo_of(root, block)
    batch, _, length = dims(root.outputs[0], RANK)
    search = _Members(batch, length, block)
    need(search.belongs(root), "it reads no signal", root)
    need(search.is_first(root), "another convolution of its stage comes before", root)
    members = search.around(root)
    nodes = _pruned(after_what_they_read([node for node in root.graph or () if node in members], members))
    entries, exits = _crossing(nodes)
    need(bool(exits), "nothing needs it", root)
    return Stage(tuple(nodes), tuple(entries), tuple(exits), length, _halo(nodes, exits))


class _Members:
    """What belongs to a stage of signals of one length.

    Args:
        batch: How many signals there are.
        length: Their length.
        block: Of what the channels of convolutions are a multiple.
    """

    def __init__(self, batch: Dim, length: Dim, block: int) -> None:
        self._batch = batch
        self._length = length
        self._block = block

    def around(self, root: ir.Node) -> set[ir.Node]:
        """A node, and all that are connected with it by signals."""
        found, pending = {root}, [root]
        while pending and len(found) < MAX_NODES:
            for node in self._neighbours(pending.pop()):
                if node not in found and node.graph is root.graph and self.belongs(node):
                    found.add(node)
                    pending.append(node)
        return found

    def is_first(self, root: ir.Node) -> bool:
        """Whether no other convolution comes before a node; each stage is asked for a few times only, not for each."""
        seen, pending = {root}, [root]
        while pending:
            for value in operands(pending.pop()):
                node = value.producer()
                if node is not None and node not in seen and self.belongs(node) and node.graph is root.graph:
                    if is_convolution(node):
                        return False
                    seen.add(node)
                    pending.append(node)
        return True

    def _neighbours(self, node: ir.Node) -> Iterator[ir.Node]:
        """The nodes that give what a node reads, those that read the same, and those that read its result."""
        for value in node.inputs:
            if value is not None and self._is_signal(value):
                before = value.producer()
                yield from () if before is None else (before,)
                yield from users(value)
        yield from users(node.outputs[0])

    def belongs(self, node: ir.Node) -> bool:
        """Whether a node computes a signal of this length from others."""
        try:
            if is_convolution(node):
                halo_of(node, self._block)
                return self._is_signal(node.inputs[0]) and self._is_signal(node.outputs[0])
            return self._is_elementwise(node)
        except Refusal:
            return False

    def _is_elementwise(self, node: ir.Node) -> bool:
        if len(node.outputs) != 1 or not self._is_signal(node.outputs[0]):
            return False
        plain_attributes(node)
        values = inputs(node, len(node.inputs))
        if any(dtype(value) != FLOAT for value in (*values, *node.outputs)):
            return False
        if node.domain:
            return len(values) == 1 and node.domain == MICROSOFT and node.op_type in _OWN_UNARY
        if node.op_type in BROADCASTING:
            plain = node.op_type in VARIADIC or opset(node) >= BROADCASTS_FROM
            return plain and all(map(self._is_operand, values))
        return len(values) == 1 and node.op_type in _UNARY

    def _is_operand(self, value: ir.Value) -> bool:
        """Whether it is a signal, or a constant that is the same at all positions."""
        if not is_constant(value):
            return self._is_signal(value)
        shape = shape_of(value)
        return shape is not None and len(shape) <= RANK and (not shape or shape[-1] == 1)

    def _is_signal(self, value: ir.Value | None) -> bool:
        shape = None if value is None or is_constant(value) else shape_of(value)
        if shape is None or len(shape) != RANK:
            return False
        return same_dim(shape[0], self._batch) and same_dim(shape[-1], self._length)


def _pruned(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Without what is elementwise before all convolutions or behind them, unless more signals would cross then."""
    kept = dict.fromkeys(nodes)
    changed = True
    while changed:
        changed = False
        for node in _at_an_end(list(kept)):
            if _more_crossings_without(node, kept) <= 0:
                del kept[node]
                changed = True
    return list(kept)


def _more_crossings_without(node: ir.Node, nodes: Collection[ir.Node]) -> int:
    """How many more signals would come in or go out if a node were not among the others."""
    (result,) = node.outputs
    more = int(any(user in nodes for user in users(result))) - int(_is_exit(result, nodes))
    for value in dict.fromkeys(operands(node)):
        others = [user for user in users(value) if user is not node]
        if value.producer() in nodes:
            more += not (value.is_graph_output() or any(user not in nodes for user in others))
        else:
            more -= not any(user in nodes for user in others)
    return more


def _at_an_end(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Those that no convolution comes before, or none behind."""
    behind: set[ir.Value | None] = set()
    for node in nodes:
        if is_convolution(node) or not behind.isdisjoint(node.inputs):
            behind.update(node.outputs)
    before: set[ir.Value | None] = set()
    for node in reversed(nodes):
        if is_convolution(node) or not before.isdisjoint(node.outputs):
            before.update(value for value in node.inputs if value is not None)
    return [
        node
        for node in nodes
        if not is_convolution(node) and not (node.outputs[0] in behind and node.outputs[0] in before)
    ]


def _crossing(nodes: Collection[ir.Node]) -> tuple[list[ir.Value], list[ir.Value]]:
    """The signals that nodes read from elsewhere, and their results that something else reads."""
    inside = frozenset(nodes)
    read = (value for node in nodes for value in operands(node))
    entries = [value for value in dict.fromkeys(read) if value.producer() not in inside]
    return entries, [node.outputs[0] for node in nodes if _is_exit(node.outputs[0], inside)]


def _is_exit(value: ir.Value, nodes: Collection[ir.Node]) -> bool:
    return value.is_graph_output() or any(user not in nodes for user in users(value))


def operands(node: ir.Node) -> list[ir.Value]:
    """The signals that a node of a stage reads: not its weights, nor other constants."""
    given = node.inputs[:1] if is_convolution(node) else node.inputs
    return [value for value in given if value is not None and not is_constant(value)]


def _halo(nodes: Sequence[ir.Node], exits: Sequence[ir.Value]) -> Halo:
    """The halo of the exits in the entries."""
    none = Halo()
    found: dict[ir.Value, Halo] = {}
    for node in nodes:
        from_operands = [found.get(value, none) for value in operands(node)]
        own = halo_of(node) if is_convolution(node) else none
        before = own.before + max((halo.before for halo in from_operands), default=0)
        behind = own.behind + max((halo.behind for halo in from_operands), default=0)
        found[node.outputs[0]] = Halo(before, behind)
    return Halo(max(found[value].before for value in exits), max(found[value].behind for value in exits))
