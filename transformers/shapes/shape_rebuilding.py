"""Computed integers that are dimensions of values can be read from the shapes of these values."""

from __future__ import annotations

import sys
from collections import ChainMap, deque
from collections.abc import Collection, Iterable, MutableMapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from msgspec import Struct, field

from ortopt.cancellation import CancellationToken
from ortopt.graph import facts, scope, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, is_never_zero, is_op, shape_of
from ortopt.onnx_ir_internals import is_needed
from ortopt.semantics import CONTROL_FLOW
from ortopt.semantics.op_traits import SHAPE_QUERIES
from ortopt.semantics.opset_changes import SHAPE_HAS_AN_END_FROM
from ortopt.transformer import Context, GraphTransformer

MAX_OPERANDS = 256
"""So many nodes above a result are looked at for what they take the shape of."""

MAX_PLACES = 16
"""At so many places a dimension is looked for."""


class Part(Struct, frozen=True):
    """Some of a value's dimensions: from `first` to before `end`."""

    source: ir.Value
    first: int
    end: int


Places: TypeAlias = MutableMapping[str, list[tuple[ir.Value, int]]]
"""Where dimensions can be read: values and axes by expression."""

Piece: TypeAlias = Part | tuple[int, ...]
"""What shapes are put together from: dimensions of a value, or numbers."""


class ShapeRebuilding(GraphTransformer):
    """Integers that dimensions decide, however computed → ``Concat`` of ``Shape`` parts and constants, if fewer."""

    after = ("common_subexpression_elimination", "expand_fusion", "reshape_fusion", "shape_folding", "shape_sharing")
    needs = tuple(sorted(SHAPE_QUERIES))
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Rebuild the shapes of a graph where fewer nodes are left then."""
        arithmetic = {node: None for node in context.cancellation.checked(graph) if _is_arithmetic(node)}
        changed = False
        places = _places(scope.interface(graph)) if arithmetic else {}  # no rewrite changes it
        for group in context.cancellation.checked(_groups(arithmetic, context.cancellation)):
            plan = _Plan(graph, group, places)
            if plan.saves > 0:
                for value, pieces in plan.shapes.items():
                    changed |= _rebuild(value, pieces, plan, context)
        return changed


def _is_arithmetic(node: ir.Node) -> bool:
    """Whether inference knows a node's result, in symbols; numbers alone are folded elsewhere."""
    if node.domain or node.op_type == "Constant" or node.op_type in CONTROL_FLOW:
        return False
    symbols = False
    for value in node.outputs:
        if not is_needed(value):
            continue
        known = facts.all_contents(value) if value.dtype in facts.INTEGERS else None
        if not known or not all(map(symbolic.is_known, known)):
            return False
        symbols |= not all(isinstance(dim, int) for dim in known)
    return symbols


def _groups(nodes: Collection[ir.Node], token: CancellationToken) -> list[list[ir.Node]]:
    """Nodes that depend on one another, in the graph's order; a rewrite in one group changes nothing in another."""
    group_of: dict[ir.Node, list[ir.Node]] = {}
    for node in token.checked(nodes):
        merged = [node]
        for value in node.inputs:
            producer = None if value is None else value.producer()
            other = group_of.get(producer) if producer is not None else None
            if other is None or other is group_of.get(node):
                continue
            small, large = (merged, other) if len(merged) < len(other) else (other, merged)
            large.extend(small)
            merged = large
            for member in small:
                group_of[member] = large
            group_of[node] = large
        group_of[node] = merged
    order = {node: position for position, node in enumerate(nodes)}
    distinct = {id(group): group for group in group_of.values()}
    return [sorted(group, key=order.__getitem__) for group in distinct.values()]


class _Plan(Struct):
    """A plan to build the results of a group that other nodes need.

    Args:
        graph: The graph.
        group: Nodes of shape arithmetic, in order.
        places: Where the interface has dimensions.

    Attributes:
        shapes: The pieces of each result that can be rebuilt.
        parts: The values of the parts that have been built so far.
        wholes: The values of all pieces of a shape, as a tensor of rank 1 or as a scalar.
        saves: The number of nodes that it saves.
    """

    graph: ir.Graph
    group: list[ir.Node]
    places: Places
    shapes: dict[ir.Value, list[Piece]] = field(default_factory=dict)
    parts: dict[Part, ir.Value] = field(default_factory=dict)
    wholes: dict[tuple[tuple[Piece, ...], bool], ir.Value] = field(default_factory=dict)
    saves: int = 0

    def __post_init__(self) -> None:
        members = set(self.group)
        needed = [v for node in self.group for v in node.outputs if _is_needed_outside(v, members)]
        for deep in (False, True):
            shapes, staying = self._split(needed, members, deep=deep)
            version = scope.of(self.graph).opset_imports.get("", 1)
            saves = len(members) - len(staying) - _cost(shapes, version) if shapes else 0
            if saves > self.saves:
                self.shapes, self.saves = shapes, saves

    def _split(
        self, needed: Sequence[ir.Value], members: set[ir.Node], *, deep: bool
    ) -> tuple[dict[ir.Value, list[Piece]], Collection[ir.Node]]:
        """The results that can be rebuilt, with their pieces, and the nodes that stay.

        Args:
            needed: The results that are needed.
            members: The group.
            deep: Whether what stays may read results that are rebuilt: else all that it is computed of stays as well.
        """
        shapes: dict[ir.Value, list[Piece]] = {}
        kept: dict[ir.Node, None] = {}
        pending = deque(needed)
        seen = set(needed)
        while pending:
            value = pending.popleft()
            node = value.producer()
            assert node is not None
            pieces = _pieces(value, self.places)
            if pieces is None:  # what it was computed from stands before it too
                own = _places(_sized(_with_operands([node], members, MAX_OPERANDS)))
                pieces = _pieces(value, ChainMap(self.places, own))
            if pieces is not None and not _loses_empty_results(value, pieces):
                shapes[value] = pieces
                continue
            kept[node] = None
            for operand in node.inputs if deep else ():
                if operand is not None and operand.producer() in members and operand not in seen:
                    seen.add(operand)
                    pending.append(operand)
        staying = kept if deep else _with_operands(kept, members)
        ordered = (value for node in self.group if node not in staying for value in node.outputs if value in shapes)
        return {value: shapes[value] for value in ordered}, staying  # a part stands before the first that needs it


def _is_needed_outside(value: ir.Value, members: set[ir.Node]) -> bool:
    return value.is_graph_output() or any(use.node not in members for use in value.uses())


def _with_operands(nodes: Iterable[ir.Node], members: set[ir.Node], most: int = sys.maxsize) -> dict[ir.Node, None]:
    """Some nodes of a group, and those of it that they depend on, as far as they are not too many."""
    chosen: dict[ir.Node, None] = {}
    pending = list(nodes)
    while pending and len(chosen) < most:
        node = pending.pop()
        if node in chosen:
            continue
        chosen[node] = None
        pending.extend(p for v in node.inputs if v is not None and (p := v.producer()) is not None and p in members)
    return chosen


def _sized(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    """The values of which some nodes take the shape or size."""
    sources: dict[ir.Value, None] = {}
    for node in nodes:
        if node.op_type in SHAPE_QUERIES and node.inputs and node.inputs[0] is not None:
            sources[node.inputs[0]] = None
    return list(sources)


def _places(values: Iterable[ir.Value]) -> Places:
    """The symbolic dimensions of some values, with the values and axes where they are."""
    places: Places = {}
    for value in values:
        for axis, dim in enumerate(facts.dims_of(value) or ()):
            if not isinstance(dim, int) and dim.value is not None:
                places.setdefault(dim.value, []).append((value, axis))
    return places


def _pieces(value: ir.Value, places: Places) -> list[Piece] | None:
    """The pieces that make up an int64 tensor of rank 0 or 1; None where a dimension is nowhere to be read."""
    dims = shape_of(value)
    if value.dtype != ir.DataType.INT64 or dims is None or len(dims) > 1 or value.is_graph_output():
        return None
    elements = facts.contents(value)
    if not elements:
        return None
    pieces: list[Piece] = []
    position = 0
    while position < len(elements):
        if isinstance(elements[position], int):
            end = position
            while end < len(elements) and isinstance(elements[end], int):
                end += 1
            pieces.append(tuple(dim for dim in elements[position:end] if isinstance(dim, int)))
            position = end
            continue
        part = _longest(elements[position:], places)
        if part is None:
            return None
        pieces.append(part)
        position += part.end - part.first
    return pieces


def _loses_empty_results(value: ir.Value, pieces: Sequence[Piece]) -> bool:
    """Whether a Reshape to the shape would fail where its result has no elements.

    If a Concat has one element that is computed, ONNX Runtime makes it -1 at load, which is not known if another
    dimension is 0.
    """
    node = value.producer()
    computed = sum(piece.end - piece.first for piece in pieces if isinstance(piece, Part))
    if len(pieces) == 1 or computed != 1 or is_op(node, "Concat"):
        return False
    reshapes = [use.node for use in value.uses() if is_op(use.node, "Reshape")]
    return any(_other_may_be_zero(pieces, node) for node in reshapes)


def _other_may_be_zero(pieces: Sequence[Piece], reshape: ir.Node) -> bool:
    """Whether a dimension of a Reshape's result may be 0, other than the one that is computed."""
    place = len(pieces[0]) if isinstance(pieces[0], tuple) else 0
    shape = shape_of(reshape.outputs[0])
    return shape is None or not all(is_never_zero(dim, reshape) for dim in (*shape[:place], *shape[place + 1 :]))


def _longest(elements: tuple[Dim, ...], places: Places) -> Part | None:
    """The longest part of a shape that some elements begin with; of equal ones the first."""
    best: Part | None = None
    first = elements[0]
    assert not isinstance(first, int)
    for source, axis in places.get(first.value or "", ())[:MAX_PLACES]:
        dims = facts.dims_of(source) or ()
        end = axis + 1
        while end < len(dims) and end - axis < len(elements) and symbolic.equal(dims[end], elements[end - axis]):
            end += 1
        if best is None or end - axis > best.end - best.first:
            best = Part(source, axis, end)
    return best


def _cost(shapes: dict[ir.Value, list[Piece]], version: int) -> int:
    """The number of nodes that it takes to build some shapes."""
    steps: set[object] = set()
    for value, pieces in shapes.items():
        for part in pieces:
            if isinstance(part, Part):
                steps.add(part)
                if version < SHAPE_HAS_AN_END_FROM:
                    steps.add(_whole(part.source))
        if len(pieces) > 1:
            steps.add(tuple(pieces))
        if not shape_of(value):
            steps.add((tuple(pieces), "scalar"))
    return len(steps)


def _whole(source: ir.Value) -> Part:
    return Part(source, 0, len(shape_of(source) or ()))


def _rebuild(value: ir.Value, pieces: list[Piece], plan: _Plan, context: Context) -> bool:
    """Build a shape in front of the node that computed it."""
    node = value.producer()
    if node is None or node.graph is None or not is_needed(value):
        return False

    def change() -> list[ir.Node]:
        return context.replace({value: _put_together(pieces, not shape_of(value), plan)}, before=node, origin=(node,))

    done = context.attempt((node,), change, f"it is {', '.join(map(_text, pieces))}")
    if not done:
        plan.parts = {part: built for part, built in plan.parts.items() if built.graph is not None}
        plan.wholes = {key: built for key, built in plan.wholes.items() if built.graph is not None}
    return done


def _put_together(pieces: list[Piece], is_scalar: bool, plan: _Plan) -> ir.Value:
    """The value of all pieces, built when it is needed first."""
    key = (tuple(pieces), is_scalar)
    if key in plan.wholes:
        return plan.wholes[key]
    if is_scalar:
        built = ir.node("Squeeze", [_put_together(pieces, False, plan)]).outputs[0]
    else:
        operands = [_built(piece, plan) for piece in pieces]
        built = operands[0] if len(operands) == 1 else ir.node("Concat", operands, {"axis": 0}).outputs[0]
    plan.wholes[key] = built
    return built


def _built(piece: Piece, plan: _Plan) -> ir.Value:
    """The value of a piece, built when it is needed first."""
    if not isinstance(piece, Part):
        return constant(np.array(piece, np.int64))
    if piece in plan.parts:
        return plan.parts[piece]
    whole = _whole(piece.source)
    if piece == whole:
        part = ir.node("Shape", [piece.source])
    elif scope.of(plan.graph).opset_imports.get("", 1) >= SHAPE_HAS_AN_END_FROM:
        part = ir.node("Shape", [piece.source], {"start": piece.first, "end": piece.end})
    else:
        axes = constant(np.arange(piece.first, piece.end, dtype=np.int64))
        part = ir.node("Gather", [_built(whole, plan), axes], {"axis": 0})
    plan.parts[piece] = part.outputs[0]
    return part.outputs[0]


def _text(piece: Piece) -> str:
    """A piece for people."""
    if not isinstance(piece, Part):
        return str(list(piece))
    return f"dimensions {piece.first} to {piece.end - 1} of {piece.source.name}"
