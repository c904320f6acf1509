"""One rotary embedding: pairs of elements of a head turned by angles, and elements that stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import (
    BFLOAT16,
    FLOAT,
    FLOAT16,
    Dim,
    Refusal,
    dims,
    dtype,
    inputs,
    is_op,
    is_used_once,
    need,
    same_dim,
    users,
)
from ortopt.patterns.rotary.lanes import (
    LANE,
    NONE,
    OTHER,
    OTHER_LANE,
    SIGN,
    SOURCE,
    Depth,
    Lanes,
    Source,
    Tracer,
    inner,
    is_plain,
    leads_to,
    outer,
)
from ortopt.patterns.rotary.layout import Layout, layout_of
from ortopt.patterns.rotary.tables import Comparison, Table

ROOTS: Final = ("Add", "Concat", "Sub")
"""The ops that an embedding may end in."""

MAX_BEHIND: Final = 4
"""How many nodes behind an embedding are asked whether they are part of a larger one."""


@dataclass(frozen=True, slots=True)
class Rotary:
    """``y₁ = x₁ · cos - x₂ · sin``, ``y₂ = x₂ · cos + x₁ · sin`` for the pairs of a head's first elements.

    Attributes:
        nodes: The nodes of the pattern, without the tables.
        x: What is turned, and how many of its last dimensions make a head.
        first: The first element of a head, where `x` has more elements than it.
        size: How many elements a head has.
        turned: How many of them are turned; those behind stay as they are.
        interleaved: Whether pairs are neighbours; else the first half is paired with the second.
        cosines: The cosines of the pairs.
        sines: The sines of the pairs.
        layout: Which dimensions are batch, positions and heads.
        y: The result.
        rank: How many of the result's last dimensions make a head.
    """

    nodes: tuple[ir.Node, ...]
    x: Source
    first: int
    size: int
    turned: int
    interleaved: bool
    cosines: Table
    sines: Table
    layout: Layout
    y: ir.Value
    rank: int

    @property
    def shared(self) -> bool:
        """Whether the tables serve all sequences of the batch."""
        return self.layout.shared


def rotary(root: ir.Node) -> Rotary:
    """The embedding whose result a node gives.

    Args:
        root: An Add, a Sub or a Concat.

    Raises:
        Refusal: If it is none, or a part of a larger one.
    """
    embedding = _embedding(root)
    _check_is_whole(root)
    return embedding


def _embedding(root: ir.Node) -> Rotary:
    y = root.outputs[0]
    _check_looks_alike(root)
    need(dtype(y) in {FLOAT, FLOAT16, BFLOAT16}, "the heads are numbers that RotaryEmbedding has no kernel for", y)
    shape = dims(y)
    ranks = (2, 1) if shape[-1] == 2 else (1, 2)
    refusals = []
    for rank in ranks:
        try:
            need(len(shape) > rank, "there are no positions", y)
            return _of_lanes(root, rank)
        except Refusal as refusal:
            refusals.append(refusal)
    raise refusals[0]


def _check_looks_alike(root: ir.Node) -> None:
    """Refuse at once what cannot be an embedding."""
    operands = [value for value in root.inputs if value is not None]
    if root.op_type == "Concat":
        need(any(leads_to(value, "Add", "Sub") for value in operands), "no sums are put together", root)
    else:
        need(len(operands) == 2 and all(leads_to(value, "Mul") for value in operands), "no products are added", root)


def _check_is_whole(root: ir.Node) -> None:
    """Refuse what a larger embedding has as a part: elements that stay as they are follow."""
    node = root
    for _ in range(MAX_BEHIND):
        value = node.outputs[0]
        behind = users(value)
        if len(behind) != 1 or not is_used_once(value) or not is_op(behind[0], "Concat", "Reshape", "Unsqueeze"):
            return
        node = behind[0]
        if is_op(node, "Concat"):
            try:
                _embedding(node)
            except Refusal:
                continue
            raise Refusal("it is a part of a larger embedding", root)


def _of_lanes(root: ir.Node, rank: int) -> Rotary:
    y = root.outputs[0]
    tracer = Tracer()
    tracer.lanes(y, rank, Depth.SUM)
    stops = frozenset(value for value, _, depth in tracer.opened if depth is not Depth.FACTOR) & tracer.factors
    if stops:
        tracer = Tracer(stops)
    lanes = tracer.lanes(y, rank, Depth.SUM)
    terms = lanes.reshape(*lanes.shape[:2], -1)
    need(terms.shape[2] >= 2, "a head has one element", y)
    pairs = _pairs(tracer, terms, root)
    size, turned = terms.shape[2], len(pairs.own)
    need(dtype(y) == dtype(pairs.cosines.source.value) == dtype(pairs.sines.source.value), "the types differ", y)
    own = (*pairs.own, *terms[0, LANE, turned:].tolist())
    x, first = _operand(tracer, pairs.x, own, outer(y, rank))
    layout = layout_of(outer(y, rank), [pairs.cosines.source, pairs.sines.source], y)
    ends = frozenset({x.value, pairs.cosines.source.value, pairs.sines.source.value})
    nodes = _nodes(root, tracer, ends)
    return Rotary(
        nodes, x, first, size, turned, pairs.interleaved, pairs.cosines, pairs.sines, layout, y, rank
    )  # fmt: skip


class _Pairs(NamedTuple):
    """How the turned elements are computed: of which source, and for each its own lane of that."""

    x: int
    own: tuple[int, ...]
    interleaved: bool
    cosines: Table
    sines: Table


def _pairs(tracer: Tracer, terms: Lanes, root: ir.Node) -> _Pairs:
    """The pairs of turned elements.

    Raises:
        Refusal: If the elements are computed in another way.
    """
    x = _turned_source(terms, root)
    terms = _with_first(terms, x)
    counts = (terms[:, SIGN] != 0).sum(axis=0)
    turned = int((counts == 2).sum())
    need(turned >= 2 and turned % 2 == 0 and len(terms) == 2, "no pairs are turned", root)
    need(bool((counts[:turned] == 2).all()), "the first elements stay as they are", root)
    factors = terms[:, OTHER, :turned]
    need(bool((factors != NONE).all()), "an element is added as it is", root)
    stay = terms[0, :, turned:]
    need(bool((stay[SIGN] == 1).all() and (stay[OTHER] == NONE).all()), "other elements are changed too", root)
    half = turned // 2
    comparison = Comparison()
    refusal: Refusal | None = None
    for interleaved in (False, True):
        first = range(0, turned, 2) if interleaved else range(half)
        second = range(1, turned, 2) if interleaved else range(half, turned)
        try:
            found = [_pair(tracer, comparison, terms, a, b, root) for a, b in zip(first, second, strict=True)]
        except Refusal as other:
            refusal = refusal or other
            continue
        own = [0] * turned
        for at, to, pair in zip(first, second, found, strict=True):
            own[at], own[to] = pair.own
        cosines, sines = (_table(tracer, [pair[column] for pair in found], root) for column in (1, 2))
        return _Pairs(x, tuple(own), interleaved, cosines, sines)
    assert refusal is not None
    raise refusal


def _turned_source(terms: Lanes, root: ir.Node) -> int:
    """The one source that is in every term."""
    present = terms[:, SIGN] != 0
    candidates = set(terms[:, SOURCE][present].tolist()) | set(terms[:, OTHER][present].tolist())
    everywhere = [
        one
        for one in candidates
        if one != NONE and bool((((terms[:, SOURCE] == one) | (terms[:, OTHER] == one)) | ~present).all())
    ]
    need(len(everywhere) == 1, "the elements are not those of one value", root)
    need(bool(present.any(axis=0).all()), "an element is 0", root)
    return everywhere[0]


def _with_first(terms: Lanes, x: int) -> Lanes:
    """The same terms with what is turned as their first factor."""
    swap = (terms[:, SOURCE] != x) & (terms[:, OTHER] == x)
    result = terms.copy()
    for first, second in ((SOURCE, OTHER), (LANE, OTHER_LANE)):
        result[:, first] = np.where(swap, terms[:, second], terms[:, first])
        result[:, second] = np.where(swap, terms[:, first], terms[:, second])
    return result


class _Entry(NamedTuple):
    """A lane of a table, and its sign."""

    source: int
    lane: int
    sign: int


class _Pair(NamedTuple):
    """The lanes of x that two elements are turned from, and the entries of the tables."""

    own: tuple[int, int]
    cosine: _Entry
    sine: _Entry


def _pair(tracer: Tracer, comparison: Comparison, terms: Lanes, a: int, b: int, root: ir.Node) -> _Pair:
    """Two elements as ``(u · c - v · s, v · c + u · s)``, whichever of both u is.

    Raises:
        Refusal: If they are computed in another way.
    """
    row = {int(terms[i, LANE, a]): _Entry(*terms[i, [OTHER, OTHER_LANE, SIGN], a].tolist()) for i in (0, 1)}
    below = {int(terms[i, LANE, b]): _Entry(*terms[i, [OTHER, OTHER_LANE, SIGN], b].tolist()) for i in (0, 1)}
    need(len(row) == 2 and row.keys() == below.keys(), "the elements do not come in pairs", root)
    for u, v in (tuple(row), tuple(row)[::-1]):
        (sign_a, cosine), (sign_b, other_cosine) = (_key(tracer, comparison, e) for e in (row[u], below[v]))
        (sign_c, sine), (sign_d, other_sine) = (_key(tracer, comparison, e) for e in (row[v], below[u]))
        need(cosine == other_cosine and sine == other_sine, "the halves of a table are not known to be alike", root)
        if sign_a == sign_b and sign_c == -sign_d:
            return _Pair((u, v), row[u], below[u])
    raise Refusal("the pairs are not turned", root)


def _key(tracer: Tracer, comparison: Comparison, entry: _Entry) -> tuple[int, object]:
    sign, key = comparison.key(tracer.sources[entry.source], entry.lane)
    return entry.sign * sign, key


def _table(tracer: Tracer, entries: list[_Entry], root: ir.Node) -> Table:
    """The lanes of a table, all of them of one value."""
    need(len({entry.source for entry in entries}) == 1, "a table is put together from several values", root)
    need(len({entry.sign for entry in entries}) == 1, "the signs of a table differ", root)
    return Table(tracer.sources[entries[0].source], tuple(entry.lane for entry in entries), entries[0].sign)


def _operand(tracer: Tracer, number: int, own: tuple[int, ...], around: tuple[Dim, ...]) -> tuple[Source, int]:
    """The value whose elements, from one on, are turned in their order."""
    source = tracer.sources[number]
    ahead = outer(*source)
    need(len(ahead) == len(around) and all(map(same_dim, ahead, around)), "x is broadcast", source.value)
    for (value, rank, depth), lanes in reversed(tracer.known.items()):
        if depth is Depth.FACTOR or (value, rank) == source:
            whole = lanes.reshape(*lanes.shape[:2], -1)
            if is_plain(whole) and bool((whole[0, SIGN] == 1).all() and (whole[0, SOURCE] == number).all()):
                if tuple(whole[0, LANE].tolist()) == own:
                    return Source(value, rank), 0
    need(all(b - a == 1 for a, b in pairwise(own)), "the elements change places", source.value)
    return source, own[0]


def _nodes(root: ir.Node, tracer: Tracer, ends: frozenset[ir.Value]) -> tuple[ir.Node, ...]:
    """The nodes between an embedding's operands and its result; of those that only move, the ones nobody else needs."""
    opened = {value for value, _, _ in tracer.opened}
    reached: dict[ir.Node, None] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node in reached:
            continue
        reached[node] = None
        for value in node.inputs:
            behind = None if value is None or value in ends or value not in opened else value.producer()
            if behind is not None:
                waiting.append(behind)
    kept = dict(reached)
    changed = True
    while changed:
        others = [
            node
            for node in kept
            if node is not root and not is_op(node, "Add", "Mul", "Sub")
            and any(v.is_graph_output() or any(use.node not in kept for use in v.uses()) for v in node.outputs)
        ]
        for node in others:
            del kept[node]
        changed = bool(others)
    return tuple(kept)


__all__ = ["ROOTS", "Rotary", "rotary"]
