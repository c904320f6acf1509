"""No function calls itself along the edges of a graph: a chain of a thousand nodes is no exception, and none is slow.

Such questions go through `ortopt.graph.walk`. What calls itself for another reason is bounded: by how deeply subgraphs
are nested (protobuf reads a hundred levels), or by how deeply an expression, a type or a data structure is.

The calls of functions are taken from the source, and more of them than there are: a name of a function is a call of it,
wherever it stands (``map(f, values)``, a table of functions); ``x.f`` is a call of every method f of the file, and of
none of another file. Functions that reach one another in a circle *step*, if one of them, or what they call to get a
value or a node, goes from a value to its producer or to its uses. ``node.inputs`` alone leads to no other node, nor do
the nodes of a graph, those of subgraphs, or the attributes of a node: this is how the two kinds are told apart.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import networkx as nx

from tests.test_architecture import module_name, modules

STEPS = frozenset({"producer", "uses", "consumers", "predecessors", "successors"})
"""Methods of onnx-ir that lead to a neighbour."""

MATCHES = frozenset({"first_use", "only_user", "operand_from", "producer", "users"})
"""Functions of ortopt that do."""

GIVES = ("ir.Node", "ir.Value", "Value", "Node")


class Name(NamedTuple):
    """A function: its module, its class or nothing, its name."""

    module: str
    owner: str
    name: str

    def __str__(self) -> str:
        return ".".join(part for part in self if part)


class Source:
    """What a file defines, and what its names stand for.

    Args:
        name: The module's name.
        tree: Its syntax tree.
    """

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name = name
        self.functions: dict[Name, ast.FunctionDef] = {}
        self.variables: dict[str, ast.expr] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                self.imported |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        for node in tree.body:
            target = node.target if isinstance(node, ast.AnnAssign) else None
            target = node.targets[0] if isinstance(node, ast.Assign) else target
            if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
                self.variables[target.id] = node.value
        self._define(tree, "")

    def _define(self, at: ast.AST, owner: str) -> None:
        for node in ast.iter_child_nodes(at):
            if isinstance(node, ast.FunctionDef):
                self.functions[Name(self.name, owner, node.name)] = node
            self._define(node, node.name if isinstance(node, ast.ClassDef) else owner)

    def called(self, name: Name) -> Iterator[tuple[str, str, str]]:
        """What a function may call: a module, a class or nothing or ``*`` for any, a name."""
        function = self.functions[name]
        arguments = function.args
        own = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        inner = [node for node in ast.walk(function) if isinstance(node, ast.Name | ast.Attribute)]
        own |= {node.id for node in inner if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        for node in inner:
            if isinstance(node, ast.Name) and node.id not in own:
                yield from self._named(node.id)
            elif isinstance(node, ast.Attribute):
                yield from self._attribute(node, name.owner)

    def _named(self, name: str) -> Iterator[tuple[str, str, str]]:
        if name in self.imported:
            yield self.imported[name][0], "", self.imported[name][1]
        elif name in self.variables:
            held = [node.id for node in ast.walk(self.variables[name]) if isinstance(node, ast.Name)]
            for each in held:
                yield self.name, "", each
        else:
            yield self.name, "", name

    def _attribute(self, node: ast.Attribute, owner: str) -> Iterator[tuple[str, str, str]]:
        of = node.value.id if isinstance(node.value, ast.Name) else ""
        if of in self.imported:
            yield ".".join(self.imported[of]), "", node.attr
        elif of in {"self", "cls"} and Name(self.name, owner, node.attr) in self.functions:
            yield self.name, owner, node.attr
        else:
            yield self.name, "*", node.attr

    def steps(self, name: Name) -> bool:
        """Whether a function itself goes from a value to a neighbour."""
        for node in ast.walk(self.functions[name]):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Attribute) and node.func.attr in STEPS:
                return True
            if isinstance(node.func, ast.Name) and node.func.id in MATCHES:
                return True
        return False

    def gives_neighbours(self, name: Name) -> bool:
        """Whether a function gives values or nodes."""
        returned = self.functions[name].returns
        return returned is not None and any(kind in ast.unparse(returned) for kind in GIVES)


def circles(sources: Mapping[str, Source]) -> Iterator[frozenset[Name]]:
    """Functions that reach one another in a circle and step along the edges of a graph."""
    methods: dict[tuple[str, str], list[Name]] = {}
    defined = {name: source for source in sources.values() for name in source.functions}
    for name in defined:
        if name.owner:
            methods.setdefault((name.module, name.name), []).append(name)
    calls = nx.DiGraph()
    calls.add_nodes_from(defined)
    for name, source in defined.items():
        for module, owner, called in source.called(name):
            found = methods.get((module, called), []) if owner == "*" else [Name(module, owner, called)]
            calls.add_edges_from((name, other) for other in found if other in defined)
    stepping = {name for name, source in defined.items() if source.steps(name)}
    giving = {name for name, source in defined.items() if source.gives_neighbours(name)}
    leading = stepping | {name for name in giving if nx.descendants(calls.subgraph(giving), name) & stepping}
    for group in nx.strongly_connected_components(calls):
        is_circle = len(group) > 1 or any(calls.has_edge(name, name) for name in group)
        called = {other for name in group for other in calls.successors(name)} & giving
        if is_circle and (group & stepping or called & leading):
            yield frozenset(group)


@functools.cache
def found() -> dict[str, frozenset[Name]]:
    """The circles of the package, by their first function."""
    sources = {module_name(path): Source(module_name(path), ast.parse(path.read_text("utf-8"))) for path in modules()}
    return {min(map(str, group)): group for group in circles(sources)}


ALLOWED = {
    "ortopt.graph.node_edits.NodeEdits._insert": "a Constant node is inserted for a constant; it reads nothing",
    "ortopt.testing._canonical_graph": "from a graph to the graphs in its nodes' attributes",
}
"""Circles that lead to no neighbour, with the reason."""


def test_nothing_calls_itself_along_the_edges_of_a_graph() -> None:
    circles_found = {first: sorted(map(str, group)) for first, group in found().items()}
    assert {first: group for first, group in circles_found.items() if first not in ALLOWED} == {}, (
        "write it as a question for ortopt.graph.walk"
    )
    assert circles_found.keys() == ALLOWED.keys()


BEHIND = """
import onnx_ir as ir
from ortopt.graph.match import users
def by_producer(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and all(map(by_producer, node.inputs))
def by_users(node: ir.Node) -> bool:
    return any(by_users(user) for user in users(node.outputs[0]))
def first(value: ir.Value) -> int:
    return second(behind(value))
def second(node: ir.Node) -> int:
    return TABLE[node.op_type](node)
def behind(value: ir.Value) -> ir.Node:
    return further(value)
def further(value: ir.Value) -> ir.Node:
    return value.producer()
def third(node: ir.Node) -> int:
    return first(node.inputs[0])
TABLE = {"Add": third}
class Known:
    def of(self, value: ir.Value) -> int:
        return self.kept(value) + 1
    def kept(self, value: ir.Value) -> int:
        return value.producer() is None or Step(self).of(value)
"""

NESTED = """
import onnx_ir as ir
def graphs(graph: ir.Graph) -> int:
    return sum(graphs(inner) for node in graph for inner in subgraphs(node))
def expression(term: tuple) -> int:
    return sum(map(expression, term))
def question(value: ir.Value):
    node = value.producer()
    return node is not None and (yield node.inputs[0])
def asked(value: ir.Value) -> bool:
    return walk(question, value, unknown=False)
def loop(value: ir.Value) -> int:
    while value.producer() is not None:
        value = value.producer().inputs[0]
"""


def circles_in(text: str) -> set[frozenset[str]]:
    source = Source("module", ast.parse(text))
    return {frozenset(name.name for name in group) for group in circles({"module": source})}


def test_the_check_knows_what_it_looks_for() -> None:
    assert circles_in(BEHIND) == {
        frozenset({"by_producer"}),
        frozenset({"by_users"}),
        frozenset({"first", "second", "third"}),
        frozenset({"of", "kept"}),
    }


def test_the_check_knows_what_it_leaves_alone() -> None:
    assert circles_in(NESTED) == set()


def test_functions_of_several_modules_are_a_circle_too() -> None:
    ours = "from b import theirs\ndef ours(value): return theirs(value.producer())"
    theirs = "import a\nfrom a import ours\ndef theirs(node): return ours(node.inputs[0])"
    found = list(circles({name: Source(name, ast.parse(text)) for name, text in (("a", ours), ("b", theirs))}))
    assert [{name.name for name in group} for group in found] == [{"ours", "theirs"}]
