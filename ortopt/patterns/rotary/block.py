"""One rotary embedding: pairs of elements of a head turned by angles, and elements that stay as they are."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.graph import scope
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
    opset,
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
from ortopt.semantics.opset_changes import BROADCASTS_FROM

STANDARD_FROM: Final = 23
"""The version of ai.onnx that has RotaryEmbedding."""

ROOTS: Final = ("Add", "Concat", "Sub")
"""The ops that an embedding may end in."""

MAX_BEHIND: Final = 4
"""How many nodes behind an embedding are asked whether they are part of a larger one."""


class Rotary(Struct, frozen=True):
    """``y₁ = x₁ · cos - x₂ · sin``, ``y₂ = x₂ · cos + x₁ · sin`` for the pairs of a head's first elements.

    Attributes:
        nodes: The nodes of the pattern, without the tables.
        x: A value that holds the heads, and how many of its last dimensions are lanes.
        own: The lanes of x that are a head, in order.
        lead: Values that stand in front of the head in the result.
        turned: How many elements of a head are turned; those behind stay as they are.
        interleaved: Whether pairs are neighbours; else the first half is paired with the second.
        cosines: The cosines of the pairs.
        sines: The sines of the pairs.
        layout: Which dimensions are batch, positions and heads.
        y: The result.
        head: The dimensions of a head in the result, without the lead.
    """

    nodes: tuple[ir.Node, ...]
    x: Source
    own: tuple[int, ...]
    lead: tuple[ir.Value, ...]
    turned: int
    interleaved: bool
    cosines: Table
    sines: Table
    layout: Layout
    y: ir.Value
    head: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many elements a head has."""
        return len(self.own)

    @property
    def is_whole(self) -> bool:
        """Whether x has no other lanes than the head, and in this order."""
        return self.own == tuple(range(math.prod(inner(*self.x))))

    @property
    def shared(self) -> bool:
        """Whether the tables serve all sequences of the batch."""
        return self.layout.shared


def wants_standard_op(found: Rotary) -> bool:
    """Whether the op of ai.onnx is the better one: for tables of each sequence, and where there may be no other.

    ONNX Runtime's own op reads one table for all sequences as it is.
    """
    return not found.shared or scope.of_node(found.nodes[0]).options.target.keeps_to_onnx


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
    need(opset(root) >= BROADCASTS_FROM, "operands broadcast by attributes", root)
    need(dtype(y) in {FLOAT, FLOAT16, BFLOAT16}, "the heads are numbers that RotaryEmbedding has no kernel for", y)
    shape = dims(y)
    ranks = (2, 1) if shape[-1:] == (2,) else (1, 2)
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
                larger = _embedding(node)
            except Refusal:
                continue
            need(bool(larger.lead), "it is a part of a larger embedding", root)


def _of_lanes(root: ir.Node, rank: int) -> Rotary:
    y = root.outputs[0]
    tracer = Tracer()
    tracer.lanes(y, rank, Depth.SUM)
    stops = frozenset(value for value, _, depth in tracer.opened if depth is not Depth.FACTOR) & tracer.factors
    if stops:
        tracer = Tracer(stops)
    lanes = tracer.lanes(y, rank, Depth.SUM)
    terms = lanes.reshape(*lanes.shape[:2], -1)
    lead, width = _lead(root, rank, terms)
    terms, head = terms[:, :, width:], (terms.shape[2] - width,) if lead else inner(y, rank)
    pairs = _pairs(tracer, terms, root)
    tables = [pairs.cosines.source, pairs.sines.source]
    need(all(dtype(table.value) == dtype(y) for table in tables), "the types differ", y)
    own = (*pairs.own, *terms[0, LANE, len(pairs.own) :].tolist())
    x, own = _operand(tracer, pairs.x, own)
    layout = layout_of(_around(tracer, x, y, rank), tables, y)
    nodes = _nodes(root, tracer, frozenset({x.value, *lead, *(table.value for table in tables)}))
    return Rotary(
        nodes, x, own, lead, len(pairs.own), pairs.interleaved, pairs.cosines, pairs.sines, layout, y, head
    )  # fmt: skip


def _lead(root: ir.Node, rank: int, terms: Lanes) -> tuple[tuple[ir.Value, ...], int]:
    """The first operands of a Concat that are not turned, and how many lanes they are, if the turned ones follow."""
    several = (terms[:, SIGN] != 0).sum(axis=0) > 1
    width = int(np.argmax(several))
    if not width or not several.any() or not is_op(root, "Concat") or rank != 1:
        return (), 0
    before = 0
    for count, value in enumerate(inputs(root, len(root.inputs))):
        if before == width:
            return tuple(inputs(root, count)), width
        before += inner(value, 1)[0]
    return (), 0


class _Pairs(Struct, frozen=True):
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
    refusals = []
    for x in _turned_sources(terms, root):
        try:
            return _pairs_of(tracer, _with_first(terms, x), x, root)
        except Refusal as refusal:
            refusals.append(refusal)
    raise refusals[0]


def _pairs_of(tracer: Tracer, terms: Lanes, x: int, root: ir.Node) -> _Pairs:
    """The pairs of turned elements, which are lanes of one source."""
    counts = (terms[:, SIGN] != 0).sum(axis=0)
    turned = int((counts == 2).sum())
    need(turned >= 2 and turned % 2 == 0 and len(terms) == 2, "no pairs are turned", root)
    need(bool((counts[:turned] == 2).all()), "the first elements stay as they are", root)
    factors = terms[:, OTHER, :turned]
    need(bool((factors != NONE).all()), "an element is added as it is", root)
    stay = terms[0, :, turned:]
    need(bool((stay[SIGN] == 1).all() and (stay[OTHER] == NONE).all()), "other elements are changed too", root)
    half, rows = turned // 2, terms.tolist()
    comparison = Comparison()
    refusal: Refusal | None = None
    for interleaved in (False, True):
        first = range(0, turned, 2) if interleaved else range(half)
        second = range(1, turned, 2) if interleaved else range(half, turned)
        try:
            found = [_pair(tracer, comparison, rows, a, b, root) for a, b in zip(first, second, strict=True)]
        except Refusal as other:
            refusal = refusal or other
            continue
        own = [0] * turned
        for at, to, pair in zip(first, second, found, strict=True):
            own[at], own[to] = pair.own
        cosines = _table(tracer, [pair.cosine for pair in found], root)
        sines = _table(tracer, [pair.sine for pair in found], root)
        return _Pairs(x, tuple(own), interleaved, cosines, sines)
    assert refusal is not None
    raise refusal


def _turned_sources(terms: Lanes, root: ir.Node) -> list[int]:
    """The sources that are in every term: what is turned, and the tables if both are of one value."""
    present = terms[:, SIGN] != 0
    candidates = set(terms[:, SOURCE][present].tolist()) | set(terms[:, OTHER][present].tolist())
    everywhere = [
        int(one)
        for one in sorted(candidates)
        if one != NONE and bool((((terms[:, SOURCE] == one) | (terms[:, OTHER] == one)) | ~present).all())
    ]
    need(bool(everywhere), "the elements are not those of one value", root)
    need(bool(present.any(axis=0).all()), "an element is 0", root)
    return everywhere


def _with_first(terms: Lanes, x: int) -> Lanes:
    """The same terms with what is turned as their first factor."""
    swap = (terms[:, SOURCE] != x) & (terms[:, OTHER] == x)
    result = terms.copy()
    for first, second in ((SOURCE, OTHER), (LANE, OTHER_LANE)):
        result[:, first] = np.where(swap, terms[:, second], terms[:, first])
        result[:, second] = np.where(swap, terms[:, first], terms[:, second])
    return result


class _Entry(Struct, frozen=True):
    """A lane of a table, and its sign."""

    source: int
    lane: int
    sign: int


class _Pair(Struct, frozen=True):
    """The lanes of x that two elements are turned from, and the entries of the tables."""

    own: tuple[int, int]
    cosine: _Entry
    sine: _Entry


def _pair(tracer: Tracer, comparison: Comparison, terms: list[list[list[int]]], a: int, b: int, root: ir.Node) -> _Pair:
    """Two elements as ``(u · c - v · s, v · c + u · s)``, whichever of both u is.

    Raises:
        Refusal: If they are computed in another way.
    """
    row, below = (
        {term[LANE][at]: _Entry(term[OTHER][at], term[OTHER_LANE][at], term[SIGN][at]) for term in terms}
        for at in (a, b)
    )
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


def _around(tracer: Tracer, x: Source, y: ir.Value, rank: int) -> tuple[Dim, ...]:
    """The dimensions in front of a head, which x has in full.

    They may be known of x alone: the result of a product has unknown ones where the table's are written otherwise.
    """
    ahead, result = outer(*x), outer(y, rank)
    full = not tracer.widened or all(map(same_dim, ahead, result))
    need(len(ahead) == len(result) and full, "what is turned is broadcast", x.value)
    return ahead


def _operand(tracer: Tracer, number: int, own: tuple[int, ...]) -> tuple[Source, tuple[int, ...]]:
    """The value that has the elements to turn and no others, in their order, if there is one; else what has them."""
    source = tracer.sources[number]
    for (value, rank, depth), lanes in reversed(tracer.known.items()):
        if depth is not Depth.FACTOR and (value, rank) != source:
            continue
        flat = lanes.reshape(*lanes.shape[:2], -1)
        alike = is_plain(flat) and bool((flat[0, SIGN] == 1).all() and (flat[0, SOURCE] == number).all())
        if alike and tuple(flat[0, LANE].tolist()) == own:
            return Source(value, rank), tuple(range(len(own)))
    need(is_row(own) or is_of_neighbours(own), "the elements change places", source.value)
    return source, own


def is_row(lanes: tuple[int, ...]) -> bool:
    """Whether lanes follow one another."""
    return lanes == tuple(range(lanes[0], lanes[0] + len(lanes)))


def is_of_neighbours(lanes: tuple[int, ...]) -> bool:
    """Whether they are the first ones of pairs that follow one another, and then the second ones."""
    half = len(lanes) // 2
    first, second = lanes[:half], lanes[half:]
    return len(lanes) % 2 == 0 and first == tuple(range(lanes[0], lanes[0] + 2 * half, 2)) == tuple(
        i - 1 for i in second
    )


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
            if behind is not None and behind.graph is root.graph:
                waiting.append(behind)
    kept = dict(reached)
    changed = True
    while changed:
        others = [
            node
            for node in kept
            if node is not root
            and not is_op(node, "Add", "Mul", "Sub")
            and any(v.is_graph_output() or any(use.node not in kept for use in v.uses()) for v in node.outputs)
        ]
        for node in others:
            del kept[node]
        changed = bool(others)
    return tuple(kept)
