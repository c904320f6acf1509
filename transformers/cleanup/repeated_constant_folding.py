"""What is the same for all images of a batch, whatever they hold, is computed once, when the model is optimized.

Detectors compute embeddings of positions from a mask that exporters fill with ones, of as many images as there are at
run time; their decoders begin with the same queries for each image. With the batch left open nothing of that is a
constant, but all of it repeats one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir
from msgspec import Struct, field

from ortopt.graph import facts, scope, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, dims, inputs, is_constant, is_op, need, need_known
from ortopt.options import Numerics
from ortopt.transformer import Context, GraphTransformer
from ortopt.transformers.cleanup._repetition import SOURCES, Narrow, narrowed

Piece: TypeAlias = int | tuple[ir.Value, int]
"""A size: a number, or an input of the graph and the axis of which it is the size."""

SHAPE_NODES: Final = 2
"""Nodes that it takes to put a shape together: one that reads sizes, and a Concat."""


class _Region(Struct):
    """Nodes that depend on one another, and whose results repeat what is computed of constants.

    Attributes:
        sources: The nodes that repeat constants first.
        nodes: The others, in the graph's order, with what their results repeat.
    """

    sources: dict[ir.Node, Narrow] = field(default_factory=dict)
    nodes: dict[ir.Node, Narrow] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sources) + len(self.nodes)

    def results(self) -> list[ir.Value]:
        """What other nodes need of it, but for what the sources give."""
        values = [node.outputs[0] for node in self.nodes]
        return [value for value in values if value.is_graph_output() or self._is_needed(value)]

    def _is_needed(self, value: ir.Value) -> bool:
        return any(use.node not in self.nodes for use in value.uses())


class RepeatedConstantFolding(GraphTransformer):
    """``f(Expand(c, shape), …)`` → ``Expand(f(c, …), shape)``, for constants that are repeated along free axes."""

    after = ("constant_folding", "tile_canonicalization")
    needs = tuple(sorted(SOURCES))
    numerics = Numerics.REORDERED
    keeps_elementwise = True  # what may be summed up otherwise are products of fewer rows
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Fold what is repeated in a graph, region by region."""
        sizes = _sizes(graph)
        changed = False
        for region in context.cancellation.checked(_regions(graph, context)):
            changed |= _fold(region, sizes, context)
        return changed


def _regions(graph: ir.Graph, context: Context) -> list[_Region]:
    """The regions of a graph that hold more than sources."""
    shapes: dict[ir.Value, tuple[int, ...]] = {}
    region_of: dict[ir.Value, _Region] = {}
    order: dict[ir.Node, int] = {}
    for node in context.cancellation.checked(graph):
        above = [value for value in node.inputs if value is not None and value in shapes]
        if not above and not is_op(node, *SOURCES):
            continue
        try:
            narrow = narrowed(node, shapes)
            need(bool(above) or not all(map(is_constant, inputs(node, len(node.inputs)))), "it is a constant", node)
        except Refusal as refusal:
            context.refuse(node, refusal)
            continue
        region = _joined([region_of[value] for value in above], region_of)
        (region.nodes if above else region.sources)[node] = narrow
        order[node] = len(order)
        shapes[node.outputs[0]] = narrow.shape
        region_of[node.outputs[0]] = region
    distinct = {id(region): region for region in region_of.values() if region.nodes}
    for region in distinct.values():
        region.nodes = dict(sorted(region.nodes.items(), key=lambda entry: order[entry[0]]))
    return list(distinct.values())


def _joined(regions: list[_Region], region_of: dict[ir.Value, _Region]) -> _Region:
    """One region of several: the largest, with the nodes of the others."""
    region = max(regions, key=len, default=None) or _Region()
    for other in {id(each): each for each in regions if each is not region}.values():
        region.sources |= other.sources
        region.nodes |= other.nodes
        for node in (*other.sources, *other.nodes):
            region_of[node.outputs[0]] = region
    return region


def _sizes(graph: ir.Graph) -> list[tuple[symbolic.Dim, ir.Value, int]]:
    """The free sizes that inputs of a graph and of those around it have, each with the input and the axis."""
    return [
        (dim, value, place)
        for value in scope.interface(graph)
        for place, dim in enumerate(facts.dims_of(value) or ())
        if not isinstance(dim, int) and symbolic.is_known(dim)
    ]


def _pieces(value: ir.Value, sizes: Iterable[tuple[symbolic.Dim, ir.Value, int]]) -> tuple[Piece, ...]:
    """The sizes of a value, as they can be read in front of everything."""
    pieces: list[Piece] = []
    for dim in dims(value):
        if isinstance(dim, int):
            pieces.append(dim)
            continue
        read = need_known(
            next(((source, place) for size, source, place in sizes if symbolic.equal(size, dim)), None),
            "a size of it is of no input",
            value,
        )
        pieces.append(read)
    return tuple(pieces)


def _fold(region: _Region, sizes: list[tuple[symbolic.Dim, ir.Value, int]], context: Context) -> bool:
    """Compute once what a region repeats, if that leaves fewer nodes for each run."""
    nodes = tuple(region.nodes)
    try:
        shapes = {value: _pieces(value, sizes) for value in region.results()}
        cost = len(shapes) + SHAPE_NODES * len(set(shapes.values()))
        need(cost < len(nodes), f"{len(nodes)} nodes, and {cost} to repeat their results", nodes[0])
    except Refusal as refusal:
        context.refuse(nodes[-1], refusal)
        return False
    return context.attempt(nodes, partial(_rewrite, region, shapes, context), "it repeats a constant")


def _rewrite(region: _Region, shapes: dict[ir.Value, tuple[Piece, ...]], context: Context) -> list[ir.Node]:
    """Build what is repeated, and repeat what is needed."""
    built: dict[ir.Value, ir.Value] = {}
    for node, narrow in (*region.sources.items(), *region.nodes.items()):
        built[node.outputs[0]] = narrow.build(built)
    targets = {pieces: _target(pieces) for pieces in dict.fromkeys(shapes.values())}
    added: list[ir.Node] = []
    for value, pieces in shapes.items():
        old = value.producer()
        assert old is not None
        wide = ir.node("Expand", [built[value], targets[pieces]]).outputs[0]
        added += context.replace({value: wide}, before=old, origin=(old,))
    return added


def _target(pieces: tuple[Piece, ...]) -> ir.Value:
    """The shape that some sizes make up."""
    parts: list[ir.Value] = []
    for piece in pieces:
        if isinstance(piece, int):
            parts.append(constant(np.array([piece], np.int64)))
        else:
            source, place = piece
            whole = ir.node("Shape", [source]).outputs[0]
            parts.append(ir.node("Gather", [whole, constant(np.array([place], np.int64))], {"axis": 0}).outputs[0])
    return parts[0] if len(parts) == 1 else ir.node("Concat", parts, {"axis": 0}).outputs[0]
