"""Where a graph stands: which model, which function, below which node; and what the run that works on it wants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import onnx_ir as ir
from msgspec import Struct

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.onnx_ir_internals import attributes_of
from ortopt.options import Options
from ortopt.semantics import GROUP_DOMAIN, owns_interfaces, subgraphs

_KEY = "ortopt.graph.scope"
_TOKEN = "ortopt.graph.scope.token"


class Scope(Struct):
    """Where a graph stands.

    Attributes:
        model: The model that holds it.
        function: The local function that it is, or is nested in; None in the main graph.
        parent: The node whose attribute it is; None for the main graph and for a function's own.
        opset_imports: Domain to version, of the function or the model.
        options: What the run wants.
    """

    model: ir.Model
    function: ir.Function | None
    parent: ir.Node | None
    opset_imports: dict[str, int]
    options: Options

    @property
    def in_function(self) -> bool:
        """Whether constants must be nodes: functions have no initializers."""
        return self.function is not None

    @property
    def in_group(self) -> bool:
        """Whether it is, or is nested in, the function of a fusion group."""
        return self.function is not None and self.function.domain == GROUP_DOMAIN


def attach(model: ir.Model, options: Options, token: CancellationToken = NEVER) -> None:
    """Tell every graph of a model where it stands. Linear in the nodes.

    Args:
        model: The model.
        options: What the run wants.
        token: Cancellation token.
    """
    _attach(model.graph, Scope(model, None, None, model.opset_imports, options), token)
    for function in model.functions.values():
        _attach(function.graph, Scope(model, function, None, function.opset_imports, options), token)


def attach_function(function: ir.Function, model: ir.Model, options: Options, token: CancellationToken = NEVER) -> None:
    """Tell the graphs of a function that has come into a model where they stand."""
    _attach(function.graph, Scope(model, function, None, function.opset_imports, options), token)


def attach_below(node: ir.Node) -> None:
    """Tell the graphs below a node that has come into a graph where they stand."""
    assert node.graph is not None
    outer = of(node.graph)
    for graph in subgraphs(node):
        _attach(graph, Scope(outer.model, outer.function, node, outer.opset_imports, outer.options))


def _attach(graph: ir.Graph, scope: Scope, token: CancellationToken = NEVER) -> None:
    pending = [(graph, scope)]
    while pending:
        current, where = pending.pop()
        current.meta[_KEY] = where
        for node in token.checked(current):
            if attributes_of(node):
                inner = Scope(where.model, where.function, node, where.opset_imports, where.options)
                pending.extend((graph, inner) for graph in subgraphs(node))


def of(graph: ir.Graph) -> Scope:
    """The scope of a graph that `attach` has seen."""
    scope: Scope = graph.meta[_KEY]
    return scope


@contextmanager
def stopped_by(model: ir.Model, token: CancellationToken) -> Iterator[None]:
    """Let questions about a model's graphs know what stops the run that works on it.

    Args:
        model: The model; what takes the place of its content meanwhile is meant too.
        token: Cancellation token.
    """
    before = model.meta.get(_TOKEN)
    model.meta[_TOKEN] = token
    try:
        yield
    finally:
        if before is None:
            del model.meta[_TOKEN]
        else:
            model.meta[_TOKEN] = before


def token_of(graph: ir.Graph) -> CancellationToken:
    """The token of the run that works on the model of a graph; `NEVER` where there is none."""
    where: Scope | None = graph.meta.get(_KEY)
    token: CancellationToken | None = None if where is None else where.model.meta.get(_TOKEN)
    return NEVER if token is None else token


def graph_of(node: ir.Node) -> ir.Graph:
    """The graph that holds a node; a function's nodes are held by the function's graph."""
    graph = node.graph
    assert isinstance(graph, ir.Graph), f"{node.op_type} is in no graph"
    return graph


def of_node(node: ir.Node) -> Scope:
    """The scope of the graph that holds a node."""
    return of(graph_of(node))


def interface(graph: ir.Graph) -> list[ir.Value]:
    """The tensors among the inputs of a graph and of those around it, whose dimensions can be read everywhere in it."""
    inputs: list[ir.Value] = [*graph.inputs]
    for node in around(graph):
        inputs.extend(graph_of(node).inputs)
    return [value for value in inputs if value.type is None or isinstance(value.type, ir.TensorType)]


def is_foreign(graph: ir.Graph) -> bool:
    """Whether a graph stands below a node that is none of the standard's control flow."""
    return not all(map(owns_interfaces, around(graph)))


def around(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes below which a graph stands, innermost first."""
    parent = of(graph).parent
    while parent is not None:
        yield parent
        parent = of(graph_of(parent)).parent


def below(graph: ir.Graph, token: CancellationToken = NEVER) -> Iterator[ir.Graph]:
    """A graph and all graphs nested in it, outer before inner, in the nodes' order.

    Args:
        graph: The outermost.
        token: Cancellation token: the nodes of each graph are looked through for what they hold.
    """
    pending = [graph]
    while pending:
        current = pending.pop()
        yield current
        inner: list[ir.Graph] = []
        for node in token.checked(current):
            if attributes_of(node):
                inner.extend(subgraphs(node))
        pending.extend(reversed(inner))


def nested(node: ir.Node) -> Iterator[ir.Graph]:
    """All graphs below a node."""
    for graph in subgraphs(node):
        yield from below(graph)


def ancestor_in(graph: ir.Graph, node: ir.Node) -> ir.Node | None:
    """The node of a graph that is, or holds below it, some node; None where the node stands elsewhere."""
    current: ir.Node | None = node
    while current is not None and current.graph is not graph:
        current = of(graph_of(current)).parent if current.graph is not None else None
    return current


def captured(node: ir.Node) -> list[ir.Value]:
    """The outer values that the graphs below a node use, each once; a value that such a graph returns counts."""
    return captured_by(subgraphs(node)) if attributes_of(node) else []


def captured_by(held: Iterable[ir.Graph]) -> list[ir.Value]:
    """The outer values that graphs use, at any depth, each once; a value that such a graph returns counts."""
    inside: set[ir.Value] = set()
    used: dict[ir.Value, None] = {}
    for graph in (graph for outermost in held for graph in below(outermost)):
        inside.update(graph.inputs)
        inside.update(graph.initializers.values())
        for node in graph:
            inside.update(node.outputs)
            used.update(dict.fromkeys(value for value in node.inputs if value is not None))
        used.update(dict.fromkeys(graph.outputs))
    return [value for value in used if value not in inside]


def read_by(node: ir.Node) -> list[ir.Value]:
    """The values that a node reads, and the outer ones that the graphs below it do."""
    return [*(value for value in node.inputs if value is not None), *captured(node)]


def called_functions(
    start: ir.Graph, functions: Mapping[ir.OperatorIdentifier, ir.Function], token: CancellationToken = NEVER
) -> set[ir.OperatorIdentifier]:
    """The local functions that a graph calls, directly or indirectly.

    Args:
        start: The main graph, or a function's.
        functions: The model's functions.
        token: Cancellation token.
    """
    called: set[ir.OperatorIdentifier] = set()
    pending = [start]
    while pending:
        for graph in below(pending.pop(), token):
            new = {node.op_identifier() for node in token.checked(graph)} & functions.keys() - called
            called |= new
            pending.extend(functions[identifier].graph for identifier in new)
    return called


def graphs(model: ir.Model, token: CancellationToken = NEVER) -> Iterator[ir.Graph]:
    """Every graph of a model: the main graph and what is nested in it, then each function and what is nested there.

    Args:
        model: The model.
        token: Cancellation token.
    """
    yield from below(model.graph, token)
    for function in tuple(model.functions.values()):
        yield from below(function.graph, token)


def with_nested(node: ir.Node) -> Iterable[ir.Node]:
    """A node and all nodes in the graphs below it."""
    if not attributes_of(node):
        return (node,)
    nodes = [node]
    for graph in subgraphs(node):
        for inner in below(graph):
            nodes.extend(inner)
    return nodes


def label(graph: ir.Graph) -> str:
    """A graph's name for people, e.g. ``main`` or ``main/If:then_branch`` or ``function pkg.Block``."""
    scope = of(graph)
    if scope.parent is None:
        return f"function {scope.function.domain}.{scope.function.name}" if scope.function else (graph.name or "main")
    assert scope.parent.graph is not None
    attribute = next(
        name
        for name, value in scope.parent.attributes.items()
        if not value.is_ref()
        and (
            value.value is graph
            or (value.type == ir.AttributeType.GRAPHS and any(item is graph for item in value.value))
        )
    )
    return f"{label(graph_of(scope.parent))}/{scope.parent.name or scope.parent.op_type}:{attribute}"
