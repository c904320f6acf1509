"""Outputs of groups whose users ask only for the shape or the type: both are known without the output.

``Shape(v)`` and ``Size(v)`` of a group's output are computed from the shapes of the group's inputs, by the expressions
that inference has found. ``CastLike(x, v)`` is a Cast to v's type. Then nobody needs v outside, and the group keeps it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import facts, scope, symbolic
from ortopt.graph.edit import Conflict, Editor, constant, discard, new_nodes
from ortopt.graph.match import opset
from ortopt.graph.symbolic import Dim
from ortopt.semantics.op_traits import SHAPE_QUERIES

Attempt: TypeAlias = Callable[[Sequence[ir.Node], Callable[[], Iterable[ir.Node] | None]], bool]
"""Makes a change of some nodes where it is allowed and possible; returns whether it was made."""

Place: TypeAlias = tuple[ir.Value, int]

_NEEDS = {"+": 7, "*": 7, "//": 10, "max": 12, "min": 12}
"""The first opsets that have the arithmetic for integers."""


def drop(
    edit: Editor,
    graph: ir.Graph,
    clusters: Sequence[Sequence[ir.Node]],
    attempt: Attempt,
    token: CancellationToken = NEVER,
) -> bool:
    """Compute outside what users ask of outputs of which they need only the shape or the type.

    Args:
        edit: The editor of the model.
        graph: The graph that is cut.
        clusters: The nodes of each cluster, in topological order.
        attempt: Makes each change.
        token: Cancellation token.

    Returns:
        Whether anything changed: the clusters may be others now.
    """
    changed = False
    for nodes in token.checked(clusters):
        inside, places = set(nodes), _Places(nodes)
        for node in token.checked(nodes):
            for value in node.outputs:
                users = [use.node for use in value.uses() if scope.ancestor_in(graph, use.node) not in inside]
                if users and not value.is_graph_output() and all(_asks_shape_or_type(user, value) for user in users):
                    changed |= _replace_all(edit, places, users, attempt)
    return changed


def _asks_shape_or_type(user: ir.Node, value: ir.Value) -> bool:
    """Whether a node asks a value for nothing but its shape or its type."""
    if user.domain:
        return False
    if user.op_type in SHAPE_QUERIES:
        return True
    return user.op_type == "CastLike" and user.inputs[0] is not value


def _replace_all(edit: Editor, places: _Places, users: Sequence[ir.Node], attempt: Attempt) -> bool:
    """Replace all users of an output, or none: one that stays would keep the output."""
    shapes: dict[ir.Graph, dict[ir.Value, ir.Value]] = {}  # two branches see nothing of each other
    replacements: list[tuple[ir.Node, ir.Value]] = []
    done = False
    try:
        for user in dict.fromkeys(users):
            known = shapes.setdefault(scope.graph_of(user), {})
            replacements.append((user, _cast(user) if user.op_type == "CastLike" else _size(user, places, known)))
    except Conflict:
        pass  # it stays as it is
    else:
        done = attempt([user for user, _ in replacements], lambda: _put_in(edit, replacements))
    if not done:
        built = itertools.chain((value for _, value in replacements), *(known.values() for known in shapes.values()))
        discard(new_nodes(built))
    return done


def _put_in(edit: Editor, replacements: Sequence[tuple[ir.Node, ir.Value]]) -> list[ir.Node]:
    """Let values stand for the results of nodes; the new nodes."""
    return [
        node
        for user, value in replacements
        for node in edit.replace({user.outputs[0]: value}, before=user, origin=[user])
    ]


def _cast(user: ir.Node) -> ir.Value:
    like = user.inputs[1]
    if like is None or like.dtype is None:
        raise Conflict("the type is unknown")
    attributes: dict[str, int] = {"to": int(like.dtype)}
    if "saturate" in user.attributes and opset(user) >= 19:
        saturate = user.attributes["saturate"]
        if saturate.is_ref():
            raise Conflict("the function's caller decides saturate")
        attributes["saturate"] = saturate.as_int()
    value: ir.Value = ir.node("Cast", [user.inputs[0]], attributes).outputs[0]
    return value


class _Places:
    """Where the size of a symbol can be seen: an input of a cluster, and the axis of its shape.

    Args:
        nodes: The nodes of the cluster; some of them may go meanwhile, and inputs with them.
    """

    def __init__(self, nodes: Sequence[ir.Node]) -> None:
        self._nodes = nodes
        self._found: dict[str, list[Place]] | None = None  # of each symbol the first last

    def of(self, symbol: str) -> Place:
        """The first place where a symbol can be seen.

        Raises:
            Conflict: If there is none.
        """
        if self._found is None:
            self._found = self._look()
        found = self._found.get(symbol, [])
        while found:
            producer = found[-1][0].producer()
            if producer is None or producer.graph is not None:
                return found[-1]
            found.pop()
        raise Conflict("it depends on more than the shapes of the group's inputs")

    def _look(self) -> dict[str, list[Place]]:
        own = {value for node in self._nodes for value in node.outputs}
        taken = dict.fromkeys(value for node in self._nodes for value in node.inputs)
        found: dict[str, list[Place]] = {}
        for value in reversed(taken):
            if value is None or value in own or not isinstance(value.type, ir.TensorType | None):
                continue
            for axis, dim in reversed(list(enumerate(facts.dims_of(value) or ()))):
                if isinstance(dim, ir.SymbolicDim) and dim.value is not None and {dim.value} == symbolic.symbols(dim):
                    found.setdefault(dim.value, []).append((value, axis))
        return found


def _size(user: ir.Node, places: _Places, shapes: dict[ir.Value, ir.Value]) -> ir.Value:
    """What a Shape or Size gives, computed from other values' shapes.

    Args:
        user: The Shape or Size.
        places: Where the size of each symbol can be seen.
        shapes: What nodes before have made to see them.

    Raises:
        Conflict: If it cannot be.
    """
    known = facts.contents(user.outputs[0])
    if known is None:
        raise Conflict("the shape is unknown")
    version = opset(user)
    pieces: list[ir.Value] = []
    numbers: list[int] = []
    for dim in known:
        if isinstance(dim, int):
            numbers.append(dim)
            continue
        if numbers:
            pieces.append(constant(numbers))
            numbers = []
        pieces.append(_node_for(dim, places, shapes, version))
    if numbers or not pieces:
        pieces.append(constant(numbers, ir.DataType.INT64))
    value = pieces[0] if len(pieces) == 1 else _output("Concat", pieces, {"axis": 0})
    if user.op_type == "Size":
        value = _output("Reshape", [value, constant([], ir.DataType.INT64)], {})
    return value


def _node_for(dim: Dim, places: _Places, shapes: dict[ir.Value, ir.Value], version: int) -> ir.Value:
    """An expression as nodes whose result has one element."""

    def number(n: int) -> ir.Value:
        return constant([n])

    def symbol(name: str) -> ir.Value:
        source, axis = places.of(name)
        if source not in shapes:
            shapes[source] = _output("Shape", [source], {})
        return _output("Gather", [shapes[source], constant([axis])], {"axis": 0})

    def operate(name: str, a: ir.Value, b: ir.Value) -> ir.Value:
        if version < _NEEDS[name]:
            raise Conflict(f"opset {version} cannot compute {name} of integers")
        if name == "//":  # Div cuts off, an expression rounds down
            return _output("Div", [_output("Sub", [a, _output("Mod", [a, b], {})], {}), b], {})
        return _output({"+": "Add", "*": "Mul", "max": "Max", "min": "Min"}[name], [a, b], {})

    try:
        return symbolic.compute(dim, number, symbol, operate)
    except ValueError as error:
        raise Conflict("a dimension is unknown") from error


def _output(op: str, inputs: Sequence[ir.Value], attributes: Mapping[str, int]) -> ir.Value:
    value: ir.Value = ir.node(op, inputs, attributes).outputs[0]
    return value
