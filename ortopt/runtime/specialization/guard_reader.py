"""Guards that a file says: an If that chooses between versions of a group is read back, and no If is run.

`guarded` writes them. What the metadata of a version promise counts only if the condition in the file is the very one
that `guarded` would write for it; any other If is run as it stands.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import semantics
from ortopt.documents import parse_json
from ortopt.graph.refusal import Refusal, need
from ortopt.graph.walk import Question, each, walk
from ortopt.partition.groups import GUARD_KEY
from ortopt.runtime.execution.group_runner import GroupRunner
from ortopt.runtime.instruments import Counters, Timeline
from ortopt.runtime.onnxruntime_internals import value_class
from ortopt.runtime.specialization.guard_writer import Condition
from ortopt.runtime.values.containers import to_numpy
from ortopt.runtime.values.tensors import PLAIN
from ortopt.semantics import GROUP_DOMAIN

if TYPE_CHECKING:
    import onnxruntime


_DEEPEST: Final = 12
_MAX_NODES: Final = 4096
_MAX_VERSIONS: Final = 256

Expected = tuple[list[int], bytes | None]
"""The sizes of an argument, and its bytes if its content is guarded."""


class ChosenCall(Struct, frozen=True):
    """A call of a version of a group.

    Attributes:
        call: The call.
        order: Which output of the call each output of the If is.
        expected: What must hold of values; nothing for the general version.
    """

    call: ir.Node
    order: tuple[int, ...]
    expected: tuple[tuple[ir.Value, Expected], ...] = ()


class Choice(Struct, frozen=True):
    """An If that chooses between versions of a group.

    Attributes:
        versions: The specialised ones, in the order in which they are asked.
        general: What is called where none holds.
        condition: The nodes beside the If that do nothing but tell which branch is taken.
    """

    versions: tuple[ChosenCall, ...]
    general: ChosenCall
    condition: frozenset[ir.Node]

    @property
    def operands(self) -> list[ir.Value]:
        """What must be known to choose, and to run what is chosen."""
        calls = [version.call for version in (*self.versions, self.general)]
        operands = [value for call in calls for value in call.inputs if value is not None]
        asked = [value for version in self.versions for value, _ in version.expected]
        return list(dict.fromkeys([*asked, *operands]))


def choice_of(node: ir.Node, functions: Mapping[ir.OperatorIdentifier, ir.Function]) -> Choice | None:
    """What an If chooses between, or None if it is no guard of a group.

    Args:
        node: The If.
        functions: The model's local functions.
    """
    versions: list[tuple[ir.Node, tuple[int, ...], ir.Value]] = []
    current = node
    general: ChosenCall | None = None
    while general is None:
        read = _branches(current, functions)
        if read is None or len(versions) == _MAX_VERSIONS:
            return None
        then, then_order, last, last_order, rest = read
        condition = current.inputs[0]
        if condition is None:
            return None
        versions.append((then, then_order, condition))
        if last.op_type == "If":
            if last_order != tuple(range(len(last.outputs))):
                return None
            inner = last.inputs[0]
            if inner is None or set(rest) - _only_for(inner, last):
                return None
            current = last
        else:
            if any(inner.op_type != "Constant" for inner in rest):
                return None
            general = ChosenCall(last, last_order)
    function = functions[general.call.op_identifier()]
    if GUARD_KEY in function.metadata_props:
        return None
    formals = {
        formal.name: value
        for formal, value in zip(function.inputs, general.call.inputs, strict=False)
        if value is not None
    }
    guarded = []
    for call, places, condition in versions:
        promise = functions[call.op_identifier()].metadata_props[GUARD_KEY]
        expected = _expected(promise, formals)
        if expected is None or not _is_condition(condition, expected):
            return None
        guarded.append(ChosenCall(call, places, tuple(expected.items())))
    first = node.inputs[0]
    assert first is not None
    return Choice(tuple(guarded), general, frozenset(_only_for(first, node)))


def _branches(
    node: ir.Node, functions: Mapping[ir.OperatorIdentifier, ir.Function]
) -> tuple[ir.Node, tuple[int, ...], ir.Node, tuple[int, ...], list[ir.Node]] | None:
    """The specialised call, and what else is chosen: another If, or the general call; and the nodes beside that."""
    if node.domain or node.op_type != "If":
        return None
    then, otherwise = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    calls = list(then)
    if len(calls) != 1 or not _is_call(calls[0], functions):
        return None
    if GUARD_KEY not in functions[calls[0].op_identifier()].metadata_props:
        return None
    below = list(otherwise)
    last = below[-1] if below else calls[0]
    if last is calls[0] or not (_is_call(last, functions) or (not last.domain and last.op_type == "If")):
        return None
    orders = [_order(graph, call) for graph, call in ((then, calls[0]), (otherwise, last))]
    if orders[0] is None or orders[1] is None:
        return None
    return calls[0], orders[0], last, orders[1], below[:-1]


def _is_call(node: ir.Node, functions: Mapping[ir.OperatorIdentifier, ir.Function]) -> bool:
    return node.domain == GROUP_DOMAIN and node.op_identifier() in functions


def _order(graph: ir.Graph, call: ir.Node) -> tuple[int, ...] | None:
    """Which output of a call each output of a graph is; None if one is something else."""
    places = {value: i for i, value in enumerate(call.outputs)}
    if graph.initializers or any(value not in places for value in graph.outputs):
        return None
    return tuple(places[value] for value in graph.outputs)


def _only_for(condition: ir.Value, holder: ir.Node) -> set[ir.Node]:
    """The nodes of a graph that do nothing but make a condition for a node."""
    graph = holder.graph
    above: dict[ir.Node, None] = {}
    pending = [condition.producer()]
    for node in pending:  # the nearest first: it grows meanwhile
        if node is None or node in above or node.graph is not graph or len(above) >= _MAX_NODES:
            continue
        above[node] = None
        pending.extend(value.producer() for value in node.inputs if value is not None)
    only = set(above)
    changed = True
    while changed:
        changed = False
        for node in list(only):
            users = {user for value in node.outputs for user, _ in value.uses()}
            leaves = any(value.is_graph_output() for value in node.outputs)
            if leaves or not users <= only | {holder} or (node.attributes and list(semantics.subgraphs(node))):
                only.discard(node)
                changed = True
    return only


def _expected(promise: str, formals: Mapping[str | None, ir.Value]) -> dict[ir.Value, Expected] | None:
    """What a guard's metadata promise of values; None if they make no sense."""
    try:
        guard = parse_json(promise)
        expected: dict[ir.Value, Expected] = {}
        for name, row in guard.items():
            value = formals[name]
            dtype = value.dtype
            if not isinstance(value.type, ir.TensorType) or dtype not in PLAIN or dtype is None or value in expected:
                return None
            sizes = [int(size) for size in row["shape"]]
            content = None
            if "value" in row:
                wide = [float(number) if isinstance(number, str) else number for number in row["value"]]
                array = np.array(wide, dtype.numpy()).reshape(sizes)
                if array.dtype.kind not in "biu" and np.isnan(array.astype(np.float64)).any():
                    return None
                content = array.tobytes()
            expected[value] = (sizes, content)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    return expected or None


def _is_condition(condition: ir.Value, expected: Mapping[ir.Value, Expected]) -> bool:
    """Whether a value is what `guarded` computes for a guard: the same nodes, the parts in any order."""
    shadows = {value: ir.Value(name=value.name, type=value.type) for value in expected}
    numbers = itertools.count()
    written = Condition(lambda hint: f"{hint}/{next(numbers)}")
    for value, (sizes, content) in expected.items():
        written.shape(shadows[value], sizes)
        if content:
            assert value.dtype is not None
            written.content(shadows[value], np.frombuffer(content, value.dtype.numpy()).reshape(sizes))
    leaves = {value: i for i, value in enumerate(expected)}
    copies = {shadow: leaves[value] for value, shadow in shadows.items()}
    seen: dict[Hashable, int] = {}
    ways: tuple[tuple[ir.Value | None, Mapping[ir.Value, int]], ...] = (condition, leaves), (written.holds(), copies)
    deep = Refusal("no guard")
    try:
        read, wanted = (walk(partial(_way, seen, own), (at, 0), unknown=deep, most=_MAX_NODES) for at, own in ways)
    except (Refusal, ValueError, TypeError):
        return False
    return read == wanted


def _way(
    numbers: dict[Hashable, int], leaves: Mapping[ir.Value, int], about: tuple[ir.Value | None, int]
) -> Question[tuple[ir.Value | None, int], int]:
    """A number that stands for how a value is computed from others.

    Raises:
        Refusal: It is nothing that a guard computes.
    """
    value, depth = about
    need(value is not None and depth <= _DEEPEST, "no guard")
    assert value is not None
    if value in leaves:
        return numbers.setdefault(leaves[value], len(numbers))
    tensor = semantics.constant_tensor(value)
    if tensor is not None:
        content = str(tensor.dtype), tuple(tensor.shape.numpy()), tensor.tobytes()
        return numbers.setdefault(content, len(numbers))
    node = value.producer()
    need(node is not None and not node.domain and len(node.outputs) == 1, "no guard")
    assert node is not None
    named = sorted(node.attributes.items())
    need(not any(attribute.is_ref() for _, attribute in named), "no guard")
    attributes = tuple((name, attribute.type.name, str(attribute.value)) for name, attribute in named)
    below: list[int] = yield from each((operand, depth + 1) for operand in node.inputs)
    if node.op_type == "Concat" and depth == 2:  # of the parts, which may stand in any order
        below.sort()
    return numbers.setdefault((node.op_type, attributes, tuple(below)), len(numbers))


class GuardedVersion(NamedTuple):
    """One version of a group, among the values of a step.

    Attributes:
        group: What runs it.
        places: The places of what it is given among the values of the step.
        order: Where each result of the step is among its own.
        expected: What must hold of values, by their places; nothing for the general version.
    """

    group: GroupRunner
    places: tuple[int, ...]
    order: tuple[int, ...]
    expected: tuple[tuple[int, Expected], ...] = ()

    def run(self, values: Sequence[Any], options: onnxruntime.RunOptions) -> list[Any]:
        """Run it with the values of the step; the results of the step."""
        results = self.group([values[i] for i in self.places], options)
        return [results[i] for i in self.order]


@dataclass(eq=False)
class GuardedCall:
    """Runs the first version of a group that holds for its arguments, or else the general one.

    Attributes:
        versions: The versions, in the order in which they are asked.
        general: The general version.
        name: The group's name.
        counters: Where the runs of both are counted.
        timeline: Where failures are recorded, None for nowhere.
    """

    versions: Sequence[GuardedVersion]
    general: GuardedVersion
    name: str
    counters: Counters
    timeline: Timeline | None

    def __post_init__(self) -> None:
        self._tensor = value_class()

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Choose, and run what is chosen."""
        for version in self.versions:
            if self._holds(version.expected, values):
                self.counters.add("specialized_runs")
                return version.run(values, options)
        self.counters.add("guard_failures")
        if self.timeline is not None:
            self.timeline.mark("guard failure", group=self.name)
        return self.general.run(values, options)

    def _holds(self, expected: Sequence[tuple[int, Expected]], values: list[Any]) -> bool:
        for place, (sizes, content) in expected:
            value = values[place]
            if type(value) is not self._tensor or value.shape() != sizes:
                return False
            if content and np.asarray(to_numpy(value)).tobytes() != content:
                return False
        return True
