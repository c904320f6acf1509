"""A small graph as a picture: ops in rows, from the inputs down to the outputs."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

import networkx as nx
import onnx

MAX_NODES = 28
"""A graph with more nodes is shown as text alone."""

_HEIGHT, _DOWN, _ACROSS, _LETTER = 26, 26, 16, 7.4


class _Box(NamedTuple):
    label: str
    kind: str  # "value", "kept", "gone" or "new"


def picture(model: onnx.ModelProto, other: onnx.ModelProto, colour: str) -> str | None:
    """The main graph of a model as SVG, or None if it is too large.

    Args:
        model: The model.
        other: The same model before or after the rewrite: nodes that it lacks are marked.
        colour: The mark, ``gone`` or ``new``.
    """
    if len(model.graph.node) > MAX_NODES:
        return None
    graph = _graph(model.graph, {_key(node) for node in other.graph.node}, colour)
    rows = [sorted(row, key=str) for row in nx.topological_generations(graph)]
    return _svg(graph, _ordered(graph, rows))


def _key(node: onnx.NodeProto) -> tuple[str, ...]:
    return (node.op_type, *node.input, "->", *node.output)


def _graph(graph: onnx.GraphProto, kept: set[tuple[str, ...]], colour: str) -> nx.DiGraph:
    drawn = nx.DiGraph()
    maker: dict[str, str] = {}
    constants = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        if value.name not in constants:
            maker[value.name] = f"in {value.name}"
            drawn.add_node(maker[value.name], box=_Box(value.name, "value"))
    for place, node in enumerate(graph.node):
        if node.op_type == "Constant":
            continue
        key = f"{place:03} {node.op_type}"
        drawn.add_node(key, box=_Box(node.op_type, "kept" if _key(node) in kept else colour))
        for name in node.input:
            if name in maker:
                drawn.add_edge(maker[name], key)
        maker |= dict.fromkeys((name for name in node.output if name), key)
    for value in graph.output:
        drawn.add_node(f"out {value.name}", box=_Box(value.name, "value"))
        if value.name in maker:
            drawn.add_edge(maker[value.name], f"out {value.name}")
    return drawn


def _ordered(graph: nx.DiGraph, rows: list[list[str]]) -> list[list[str]]:
    """Each row in the order of the means of the places above."""
    place: dict[str, float] = {}

    def above(name: str) -> float:
        places = [place[source] for source in graph.predecessors(name)]
        return sum(places) / len(places) if places else 0.5

    ordered = []
    for row in rows:
        inner = sorted(row, key=above)
        place |= {name: (column + 0.5) / len(inner) for column, name in enumerate(inner)}
        ordered.append(inner)
    return ordered


def _svg(graph: nx.DiGraph, rows: list[list[str]]) -> str:
    boxes: dict[str, _Box] = {name: data["box"] for name, data in graph.nodes(data=True)}
    widths = {name: len(box.label) * _LETTER + 18 for name, box in boxes.items()}
    totals = [sum(widths[name] + _ACROSS for name in row) + _ACROSS for row in rows]
    middle: dict[str, tuple[float, float]] = {}
    for number, (row, total) in enumerate(zip(rows, totals, strict=True)):
        left = (max(totals) - total) / 2 + _ACROSS
        for name in row:
            middle[name] = left + widths[name] / 2, number * (_HEIGHT + _DOWN) + _HEIGHT / 2 + 2
            left += widths[name] + _ACROSS
    number_of = {name: number for number, row in enumerate(rows) for name in row}
    long = any(number_of[target] - number_of[source] > 1 for source, target in graph.edges)
    full, height = max(totals) + _ACROSS * 2 * long, len(rows) * (_HEIGHT + _DOWN) - _DOWN + 4
    parts = [
        f'<svg class="graph" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full:.0f} {height}" '
        f'width="{full:.0f}" height="{height}" role="img" aria-label="the graph">'
    ]
    for source, target in graph.edges:
        between = totals[number_of[source] + 1 : number_of[target]]
        side = (max(totals) + max(between)) / 2 + _ACROSS if between else None
        parts.append(f'<path d="{_curve(middle[source], middle[target], side)}"/>')
    for name, (x, y) in middle.items():
        box, width = boxes[name], widths[name]
        round_by = _HEIGHT / 2 if box.kind == "value" else 5
        parts.append(
            f'<rect class="{box.kind}" x="{x - width / 2:.0f}" y="{y - _HEIGHT / 2:.0f}" width="{width:.0f}" '
            f'height="{_HEIGHT}" rx="{round_by:.0f}"/><text x="{x:.0f}" y="{y + 4:.0f}">{escape(box.label)}</text>'
        )
    return "".join([*parts, "</svg>"])


def _curve(above: tuple[float, float], below: tuple[float, float], side: float | None) -> str:
    """The way of an edge; past the boxes between its ends if `side` says where."""
    (x1, y1), (x2, y2) = above, below
    start, end, bend = y1 + _HEIGHT / 2, y2 - _HEIGHT / 2, _DOWN / 1.5
    if side is None:
        return f"M{x1:.0f} {start:.0f}C{x1:.0f} {start + bend:.0f} {x2:.0f} {end - bend:.0f} {x2:.0f} {end:.0f}"
    high, low = start + _DOWN, end - _DOWN
    down = f"M{x1:.0f} {start:.0f}C{x1:.0f} {start + bend:.0f} {side:.0f} {high - bend:.0f} {side:.0f} {high:.0f}"
    return f"{down}L{side:.0f} {low:.0f}C{side:.0f} {low + bend:.0f} {x2:.0f} {end - bend:.0f} {x2:.0f} {end:.0f}"
