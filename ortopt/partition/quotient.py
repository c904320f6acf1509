"""The quotient graph of a grouped model: a vertex for each group and each node outside, an edge for each value between.

It knows its critical path and its generations, becomes a graph of networkx where that is installed, and is drawn as
Graphviz text or as SVG. One quotient graph a graph: the main graph's, and those of graphs below it that hold groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import onnx_ir as ir

from ortopt.errors import UsageError
from ortopt.graph import facts, scope, symbolic
from ortopt.graph.index import op_key
from ortopt.graph.names import unused
from ortopt.partition.dag import is_constant_node
from ortopt.partition.groups import Group, groups_of
from ortopt.semantics import GROUP_DOMAIN, constant_tensor
from ortopt.terminal_text import escaped

HOST = "host"
"""Where what is in no group runs."""


@dataclass(frozen=True, slots=True)
class Vertex:
    """A group, a node outside of groups, or a side of the graph.

    Attributes:
        name: Unique in its quotient graph.
        kind: What it is.
        provider: Where it runs; ``host`` for nodes outside, empty for the sides.
        nodes: How many nodes it stands for: those below count too, Constants do not.
        ops: How many nodes of each op.
        inputs: Names of the runtime values that it takes.
        weights: Names of the weights that it takes.
        outputs: Names of the values that it gives.
    """

    name: str
    kind: Literal["group", "node", "inputs", "outputs"]
    provider: str
    nodes: int
    ops: Mapping[str, int]
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """A value that passes from one vertex to another.

    Attributes:
        source: Name of the vertex that gives it.
        target: Name of the vertex that takes it.
        value: Its name.
        type: Its type, or "unknown".
        shape: Its dimensions, or those of its elements, None for unknown ones; None where the rank is unknown.
        nbytes: How large it is: a number, or an expression of the inputs' dimensions; None where it is unknown.
    """

    source: str
    target: str
    value: str
    type: str
    shape: tuple[int | str | None, ...] | None
    nbytes: int | str | None


@dataclass(frozen=True, slots=True)
class Quotient:
    """The quotient graph of one graph.

    Attributes:
        graph: The graph's name for people.
        vertices: In topological order.
        edges: In the order of their targets.
    """

    graph: str
    vertices: tuple[Vertex, ...]
    edges: tuple[Edge, ...]

    def as_networkx(self) -> Any:
        """A ``networkx.MultiDiGraph``: vertices by name, with their `Vertex` as ``vertex``; edges with their `Edge`.

        Raises:
            UsageError: networkx is not installed.
        """
        try:
            import networkx as nx  # type: ignore[import-untyped,unused-ignore]
        except ImportError:
            raise UsageError("a graph of networkx needs networkx: pip install 'ortopt[networkx]'") from None
        graph = nx.MultiDiGraph(name=self.graph)
        for vertex in self.vertices:
            graph.add_node(vertex.name, vertex=vertex)
        for edge in self.edges:
            graph.add_edge(edge.source, edge.target, edge=edge)
        return graph

    def generations(self) -> list[list[str]]:
        """Vertices by the number of steps that they have to wait: those of one generation could run together."""
        sources = self._sources()
        place: dict[str, int] = {}
        for name in sources:
            place[name] = 1 + max((place[source] for source in sources[name]), default=-1)
        return [
            sorted(name for name in place if place[name] == at) for at in range(1 + max(place.values(), default=-1))
        ]

    def critical_path(self) -> list[str]:
        """The chain of vertices, each waiting for the one before, that holds the most nodes."""
        sources = self._sources()
        longest: dict[str, tuple[int, str | None]] = {}
        for vertex in self.vertices:
            before = max(((longest[source][0], source) for source in sources[vertex.name]), default=(0, None))
            longest[vertex.name] = (before[0] + vertex.nodes, before[1])
        at = max(longest, key=lambda name: (longest[name][0], name), default=None)
        path: list[str] = []
        while at is not None:
            path.append(at)
            at = longest[at][1]
        return path[::-1]

    def _sources(self) -> dict[str, set[str]]:
        """For each vertex, in topological order, those that give it a value."""
        sources: dict[str, set[str]] = {vertex.name: set() for vertex in self.vertices}
        for edge in self.edges:
            sources[edge.target].add(edge.source)
        return sources


def quotients(model: ir.Model) -> list[Quotient]:
    """The quotient graphs of a model: the main graph's first.

    Args:
        model: A model, grouped or not; types are inferred and `scope.attach` has seen it.
    """
    groups = {group.call: group for group in groups_of(model)}
    graphs = [model.graph]
    graphs += [
        graph
        for graph in scope.below(model.graph)
        if graph is not model.graph and any(node.domain == GROUP_DOMAIN for node in graph)
    ]
    return [_quotient(graph, groups) for graph in graphs]


def _quotient(graph: ir.Graph, groups: Mapping[ir.Node, Group]) -> Quotient:
    vertices = [_side("inputs", _names(graph.inputs))]
    edges: list[Edge] = []
    home: dict[ir.Value, str] = {}
    taken = {"inputs", "outputs"}
    for node in graph:
        if is_constant_node(node):
            continue
        name = unused(node.op_type if node in groups else node.name or node.op_type, taken, "{} ({})")
        used = {value: None for value in (*node.inputs, *scope.captured(node)) if value is not None}
        runtime = [value for value in used if constant_tensor(value) is None]
        weights = [value for value in used if constant_tensor(value) is not None]
        ops = Counter(op_key(inner.domain, inner.op_type) for inner in _inside(node, groups))
        vertices.append(
            Vertex(
                name,
                "group" if node in groups else "node",
                groups[node].provider if node in groups else HOST,
                sum(ops.values()),
                dict(sorted(ops.items())),
                _names(runtime),
                _names(weights),
                _names(node.outputs),
            )
        )
        edges += [_edge(home.get(value, "inputs"), name, value) for value in runtime]
        home.update(dict.fromkeys(node.outputs, name))
    vertices.append(_side("outputs", _names(graph.outputs)))
    edges += [
        _edge(home.get(value, "inputs"), "outputs", value) for value in graph.outputs if constant_tensor(value) is None
    ]
    return Quotient(scope.label(graph), tuple(vertices), tuple(edges))


def _side(kind: Literal["inputs", "outputs"], names: tuple[str, ...]) -> Vertex:
    return Vertex(kind, kind, "", 0, {}, names if kind == "outputs" else (), (), names if kind == "inputs" else ())


def _inside(node: ir.Node, groups: Mapping[ir.Node, Group]) -> Iterator[ir.Node]:
    """The nodes that a vertex stands for: a group's body, or a node, with all below them; Constants left out."""
    for outer in groups[node].function if node in groups else (node,):
        yield from (inner for inner in scope.with_nested(outer) if not is_constant_node(inner))


def _names(values: Iterable[ir.Value]) -> tuple[str, ...]:
    return tuple(value.name for value in values if value.name)


def _edge(source: str, target: str, value: ir.Value) -> Edge:
    dims = facts.dims_of(value)
    sizes = None if dims is None else tuple(_shown(dim) for dim in dims)
    return Edge(
        source,
        target,
        value.name or "",
        "unknown" if value.type is None else str(value.type),
        sizes,
        _nbytes(value, dims),
    )


def _nbytes(value: ir.Value, dims: facts.Dims | None) -> int | str | None:
    if dims is None or not isinstance(value.type, ir.TensorType) or value.dtype in (None, ir.DataType.STRING):
        return None  # of a sequence or an optional the dimensions are those of an element
    size = symbolic.product(dims)
    if isinstance(size, int):
        return math.ceil(size * value.dtype.bitwidth / 8)
    return _shown(symbolic.ceildiv(symbolic.mul(size, value.dtype.bitwidth), 8))


def _shown(dim: symbolic.Dim) -> int | str | None:
    """A dimension as it is shown: invented symbols are unknown."""
    if isinstance(dim, int):
        return dim
    return None if dim.value is None or symbolic.is_invented(dim) else dim.value


# -- pictures ---------------------------------------------------------------------------------------------------------

_COLORS = {"CPUExecutionProvider": "#cfe2f3", "CUDAExecutionProvider": "#d9ead3", HOST: "#fce5cd", "": "#eeeeee"}
_OTHER_COLOR = "#d9d2e9"


def color(vertex: Vertex) -> str:
    """The color of a vertex in pictures: by where it runs."""
    return _COLORS.get(vertex.provider, _OTHER_COLOR)


def _lines(vertex: Vertex) -> list[str]:
    """What a picture says of a vertex."""
    if vertex.kind != "group":
        return [vertex.name] if vertex.kind != "node" else [vertex.name, " ".join(vertex.ops)[:40]]
    common = sorted(vertex.ops.items(), key=lambda item: (-item[1], item[0]))[:3]
    where = vertex.provider.removesuffix("ExecutionProvider")
    return [
        f"{vertex.name}: {vertex.nodes} nodes on {where}",
        ", ".join(f"{count} {op}" for op, count in common) + (", ..." if len(vertex.ops) > len(common) else ""),
    ]


def as_dot(quotient: Quotient) -> str:
    """A quotient graph as text for Graphviz."""
    lines = ["digraph groups {", "  node [shape=box, style=filled];"]
    for vertex in quotient.vertices:
        label = "\\n".join(_quoted(line) for line in _lines(vertex))
        lines.append(f'  "{_quoted(vertex.name)}" [label="{label}", fillcolor="{color(vertex)}"];')
    for edge in quotient.edges:
        label = _quoted(f"{edge.value}{'' if edge.nbytes is None else f' ({edge.nbytes} B)'}")
        lines.append(f'  "{_quoted(edge.source)}" -> "{_quoted(edge.target)}" [label="{label}"];')
    return "\n".join([*lines, "}", ""])


def _quoted(text: str) -> str:
    return escaped(text).replace("\\", "\\\\").replace('"', '\\"')


_BOX = (260, 46)
_SPACE = (40, 60)


def as_svg(quotient: Quotient) -> str:
    """A quotient graph as an SVG picture: a row for each generation."""
    by_name = {vertex.name: vertex for vertex in quotient.vertices}
    rows = quotient.generations()
    (width, height), (across, down) = _BOX, _SPACE
    widest = max(map(len, rows), default=1)
    full = widest * (width + across) + across
    middle: dict[str, tuple[int, int]] = {}
    for row, names in enumerate(rows):
        left = (full - len(names) * (width + across) + across) // 2
        for column, name in enumerate(names):
            middle[name] = left + column * (width + across) + width // 2, down + row * (height + down) + height // 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{full}" height="{len(rows) * (height + down) + down}"'
        ' font-family="sans-serif" font-size="12">'
    ]
    for edge in quotient.edges:
        (x1, y1), (x2, y2) = middle[edge.source], middle[edge.target]
        parts.append(
            f'<line x1="{x1}" y1="{y1 + height // 2}" x2="{x2}" y2="{y2 - height // 2}" stroke="#888">'
            f"<title>{escape(escaped(edge.value))}: {escape(edge.type)}</title></line>"
        )
    for name, (x, y) in middle.items():
        parts.append(
            f'<rect x="{x - width // 2}" y="{y - height // 2}" width="{width}" height="{height}" rx="6"'
            f' fill="{color(by_name[name])}" stroke="#555"/>'
        )
        lines = _lines(by_name[name])
        for place, line in enumerate(lines):
            at = y + 4 + (place * 2 - len(lines) + 1) * 8
            parts.append(f'<text x="{x}" y="{at}" text-anchor="middle">{escape(escaped(line))}</text>')
    return "\n".join([*parts, "</svg>", ""])
