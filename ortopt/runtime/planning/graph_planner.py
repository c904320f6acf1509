"""One graph on its way to a plan: its nodes as steps over slots, nested graphs as plans of their own.

Reshape, Flatten, Squeeze, Unsqueeze and Identity between groups are another shape of the same memory.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis.providers import CUDA
from ortopt.graph import scope
from ortopt.partition.dag import is_constant_node
from ortopt.runtime.execution.executables import Executable, at_host
from ortopt.runtime.execution.group_runner import GroupRunner
from ortopt.runtime.onnxruntime_internals import value_class
from ortopt.runtime.planning import control_flow
from ortopt.runtime.planning.control_flow import Body
from ortopt.runtime.planning.execution_plan import ExecutionPlan, PlacedGroup, PlannedStep, Step, is_on_cuda, last_uses
from ortopt.runtime.planning.node_kinds import ModelPlanning, NodeKind, blocks_of
from ortopt.runtime.planning.placement import SlotTable, place_values
from ortopt.runtime.run_settings import RunType
from ortopt.runtime.specialization.guard_reader import Choice, ChosenCall, GuardedCall, GuardedVersion, choice_of
from ortopt.runtime.values.tensors import Array, has_no_array, is_plain, to_ort, type_text
from ortopt.semantics.op_traits import RESHAPING

if TYPE_CHECKING:
    import onnxruntime


Numbers = tuple[int, ...]
Reshaping = Callable[[Array], Array]
"""A view of an array in another shape; raises ValueError where the array does not fit."""

_COPIES: Final = RESHAPING | {"Identity"}


class ZeroCopyReshape:
    """Gives a tensor another shape.

    Args:
        reshaping: Which.
        session: What runs the node where that fails, with ONNX Runtime's own error.
    """

    __slots__ = ("_reshaping", "_session", "_tensor")

    def __init__(self, reshaping: Reshaping, session: Executable) -> None:
        self._reshaping = reshaping
        self._session = session
        self._tensor = value_class()

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Make the view, which keeps the memory alive."""
        value = values[0]
        if type(value) is self._tensor and value.device_name() in {"cpu", "Cpu", "CPU"}:
            with contextlib.suppress(ValueError):
                return (to_ort(self._reshaping(value.numpy())),)
        return self._session(values, options)


def reshaping_of(node: ir.Node) -> Reshaping | None:
    """What a node does to the shape of its operand; None if it is no view, or not for sure."""
    if node.domain != "" or node.op_type not in _COPIES:
        return None
    operand = node.inputs[0]
    if operand is None or operand.dtype is None or not isinstance(operand.type, ir.TensorType):
        return None
    type_ = type_text(operand.dtype)
    if not is_plain(type_) or has_no_array(type_) or semantics.constant_tensor(operand) is not None:
        return None
    if node.op_type == "Identity":
        return lambda array: array
    if node.op_type == "Flatten":
        axis = node.attributes.get_int("axis", 1)
        return lambda array: _flattened(array, axis)
    numbers = _constant_shape(node)
    if numbers is None:
        return None
    if node.op_type == "Reshape":
        return None if node.attributes.get_int("allowzero", 0) else lambda array: _reshaped(array, numbers)
    if node.op_type == "Squeeze":
        return lambda array: np.squeeze(array, numbers)
    return lambda array: np.expand_dims(array, numbers)


def _constant_shape(node: ir.Node) -> Numbers | None:
    """The target of a Reshape, or axes: a constant operand, or an attribute of older opsets."""
    if len(node.inputs) > 1:
        tensor = semantics.constant_tensor(node.inputs[1])
        return None if tensor is None else tuple(int(number) for number in tensor.numpy().reshape(-1))
    name = "shape" if node.op_type == "Reshape" else "axes"
    attribute = node.attributes.get(name)
    return None if attribute is None or attribute.is_ref() else tuple(attribute.as_ints())


def _flattened(array: Array, axis: int) -> Array:
    dims = array.shape
    place = axis + len(dims) if axis < 0 else axis
    if not 0 <= place <= len(dims):
        raise ValueError("the axis is out of range")
    return array.reshape(math.prod(dims[:place]), math.prod(dims[place:]))


def _reshaped(array: Array, target: Numbers) -> Array:
    dims = array.shape
    if any(size == 0 and i >= len(dims) for i, size in enumerate(target)):
        raise ValueError("there is no size to keep")
    return array.reshape([dims[i] if size == 0 else size for i, size in enumerate(target)])


@dataclass(eq=False)
class GraphPlanner:
    """Plans one graph.

    Attributes:
        model: What the plans of the model's graphs share.
        graph: The graph.
        captured: What the graph takes from graphs around it.
        at_host: Which of its outputs the host reads.
    """

    model: ModelPlanning
    graph: ir.Graph
    captured: Sequence[ir.Value] = ()
    at_host: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self._slots = SlotTable((*self.graph.inputs, *self.captured))
        self._steps: list[PlannedStep] = []
        self._choices: dict[ir.Node, Choice] = {}

    def plan(self) -> ExecutionPlan:
        """The plan.

        Raises:
            InvalidModelError: A call does not fit its group.
            UsageError: Something cannot be run here at all.
        """
        skipped: set[ir.Node] = set()
        functions = self.model.library.functions
        for node in self.graph:
            choice = choice_of(node, functions) if node.op_type == "If" else None
            if choice is not None:
                self._choices[node] = choice
                skipped |= choice.condition
        nodes = [node for node in self.graph if node not in skipped and not is_constant_node(node)]
        operands = {node: self._choices[node].operands if node in self._choices else _operands(node) for node in nodes}
        for kind, block in blocks_of(nodes, operands, self.model.kind, functions):
            self._add(kind, block, operands)
        outputs = tuple(self._slots[value] for value in self.graph.outputs)
        device = self.model.context.device
        if device is not None:
            self._steps, outputs = place_values(self._steps, self._slots, outputs, self.at_host, device)
        last_uses(self._steps, {*outputs, *self._slots.constants()})
        return ExecutionPlan(
            self._slots.template,
            tuple(self._slots[value] for value in self.graph.inputs),
            tuple(self._slots[value] for value in self.captured),
            outputs,
            tuple(planned.step for planned in self._steps),
            self.model.context.counters,
            sum(bool(planned.groups) for planned in self._steps),
        )

    # Steps

    def _append(
        self,
        name: str,
        action: Executable,
        operands: Iterable[ir.Value],
        results: Iterable[ir.Value],
        *,
        ordered: bool = False,
        groups: tuple[PlacedGroup, ...] = (),
        host_reads: Callable[[int], bool] = lambda _: True,
    ) -> None:
        inputs = tuple(self._slots[value] for value in operands)
        outputs = tuple(self._slots.add(value) for value in results)
        fresh = bool(groups) and all(len(set(placed.order)) == len(placed.order) for placed in groups)
        step = Step(name, action, inputs, outputs, (), ordered, fresh)
        self._steps.append(PlannedStep(step, groups, host_reads))

    def _add(self, kind: NodeKind, block: Sequence[ir.Node], operands: Mapping[ir.Node, Sequence[ir.Value]]) -> None:
        if block[0] in self._choices:
            self._add_choice(block[0], self._choices[block[0]])
        elif kind is NodeKind.CONTROL:
            self._add_control(block[0])
        elif kind is NodeKind.GROUP:
            self._add_call(block[0])
        else:
            self._add_nodes(kind, block, operands)

    def _add_call(self, node: ir.Node) -> None:
        """A call of a group."""
        function = self.model.library.group_of(node)
        assert function is not None
        wanted = [_is_used(value) for value in node.outputs]
        if any(wanted):
            spec, arguments, results = self.model.library.of_call(node, function, wanted)
            self._add_group(self.model.new_group(spec), arguments, results)

    def _add_nodes(
        self, kind: NodeKind, block: Sequence[ir.Node], operands: Mapping[ir.Node, Sequence[ir.Value]]
    ) -> None:
        """Nodes that no group took."""
        inside = set(block)
        internal = {value for node in block for value in node.outputs}
        arguments = [
            value
            for value in dict.fromkeys(value for node in block for value in operands[node])
            if value not in internal and semantics.constant_tensor(value) is None
        ]
        results = [value for node in block for value in node.outputs if self._leaves(value, inside)]
        if not results:
            return
        spec = self.model.library.of_nodes(self.model.leftover_name(), block, arguments, results)
        group = self.model.new_group(spec, on_host=kind is NodeKind.HOST)
        is_alone = kind is NodeKind.SESSION and len(block) == 1 and group.wanted_provider != CUDA
        reshaping = reshaping_of(block[0]) if is_alone else None
        if reshaping is not None and self.model.context.settings.run_type is RunType.ORT:
            self._append(spec.name, ZeroCopyReshape(reshaping, group), arguments, results)
            return
        self._add_group(group, arguments, results)

    def _add_group(self, group: GroupRunner, arguments: Sequence[ir.Value], results: Sequence[ir.Value]) -> None:
        reads = (lambda _: False) if group.wanted_provider == CUDA else (lambda _: True)
        placed = PlacedGroup(group, tuple(range(len(results))))
        spec = group.spec
        self._append(spec.name, group, arguments, results, ordered=spec.random, groups=(placed,), host_reads=reads)

    def _leaves(self, value: ir.Value, inside: set[ir.Node]) -> bool:
        """Whether a value is used outside of some nodes of this graph."""
        if value.is_graph_output():
            return True
        for node, _ in value.uses():
            ancestor = node if node.graph is self.graph else scope.ancestor_in(self.graph, node)
            if ancestor not in inside:
                return True
        return False

    # Versions of a group

    def _add_choice(self, node: ir.Node, choice: Choice) -> None:
        """An If that chooses between versions of a group: no If is run, and no condition."""
        wanted = [i for i, value in enumerate(node.outputs) if _is_used(value)]
        arguments: dict[ir.Value, int] = {}
        general = self._version(choice.general, wanted, arguments)
        group = general.group
        versions = [self._version(version, wanted, arguments, group) for version in choice.versions]
        placed = tuple(PlacedGroup(version.group, version.order) for version in (general, *versions))
        context, spec = self.model.context, group.spec
        action: Executable = GuardedCall(versions, general, spec.name, context.counters, context.timeline)
        compared = {place for version in versions for place, (_, content) in version.expected if content}
        if context.device is not None:
            action = at_host(action, context.device, f"guard of {spec.name}", compared.__contains__)
        self._append(
            spec.name,
            action,
            list(arguments),
            [node.outputs[i] for i in wanted],
            ordered=spec.random,
            groups=placed,
            host_reads=compared.__contains__ if is_on_cuda(placed) else lambda _: True,
        )

    def _version(
        self,
        version: ChosenCall,
        wanted: Sequence[int],
        arguments: dict[ir.Value, int],
        general: GroupRunner | None = None,
    ) -> GuardedVersion:
        """One version: its group, what that is given, the wanted results among its own, and what must hold.

        Args:
            version: Its call.
            wanted: The outputs of the If that are used.
            arguments: What all versions are given, by place; added to.
            general: The group that runs where no version does; None if it is this one.
        """
        library, call, order = self.model.library, version.call, version.order
        function = library.group_of(call)
        assert function is not None
        asked = {order[i] for i in wanted}
        spec, values, _ = library.of_call(call, function, [i in asked for i in range(len(call.outputs))])
        group = self.model.new_group(spec, version_of=general)
        positions = {place: i for i, place in enumerate(sorted(asked))}
        places = tuple(arguments.setdefault(value, len(arguments)) for value in values)
        expected = tuple((arguments.setdefault(value, len(arguments)), asked) for value, asked in version.expected)
        return GuardedVersion(group, places, tuple(positions[order[i]] for i in wanted), expected)

    # Control flow

    def _add_control(self, node: ir.Node) -> None:
        name = f"{node.op_type} {node.name or ''}".strip()
        random = semantics.is_random(node, self.model.library.functions)
        operands: list[ir.Value] = [value for value in node.inputs if value is not None]
        if node.op_type == "If":
            then, otherwise = (node.attributes[key].as_graph() for key in ("then_branch", "else_branch"))
            action: Executable = control_flow.If(self._body(then, operands), self._body(otherwise, operands))
            read = range(1)
        elif node.op_type == "Loop":
            read = range(sum(value is not None for value in node.inputs[:2]))
            action = self._loop(node, operands)
        else:
            count = node.attributes["num_scan_inputs"].as_int()
            read = range(len(node.inputs) - count, len(node.inputs))
            action = self._scan(node, operands)
        device = self.model.context.device
        if device is not None:
            action = at_host(action, device, f"copy for {name}", read.__contains__)
        self._append(name, action, operands, node.outputs, ordered=random, host_reads=read.__contains__)

    def _body(self, graph: ir.Graph, operands: list[ir.Value], at_host: Iterable[int] = ()) -> Body:
        """The plan of a nested graph; what it captures is added to the operands of its node.

        Args:
            graph: The graph.
            operands: What its node is given.
            at_host: Which of its outputs the host reads.
        """
        captured = [value for value in scope.captured_by([graph]) if semantics.constant_tensor(value) is None]
        for value in captured:
            if value not in operands:
                operands.append(value)
        plan = GraphPlanner(self.model, graph, captured, frozenset(at_host)).plan()
        return Body(plan, tuple(operands.index(value) for value in captured))

    def _loop(self, node: ir.Node, operands: list[ir.Value]) -> Executable:
        body = node.attributes["body"].as_graph()
        has_count, has_condition = (len(node.inputs) > i and node.inputs[i] is not None for i in (0, 1))
        carried = len(node.inputs) - 2
        stacked = self.model.inferred(body.outputs[1 + carried :])
        plan = self._body(body, operands, (0, *range(1 + carried, len(body.outputs))))
        return control_flow.Loop(plan, carried, stacked, has_count, has_condition)

    def _scan(self, node: ir.Node, operands: list[ir.Value]) -> Executable:
        body = node.attributes["body"].as_graph()
        count = node.attributes["num_scan_inputs"].as_int()
        states = len(node.inputs) - count
        stacked = self.model.inferred(body.outputs[states:])
        scanned = zip(
            _numbers(node, "scan_input_axes", count), _numbers(node, "scan_input_directions", count), strict=True
        )
        axes = _numbers(node, "scan_output_axes", len(stacked))
        directions = _numbers(node, "scan_output_directions", len(stacked))
        return control_flow.Scan(
            self._body(body, operands, range(states, len(body.outputs))),
            states,
            tuple((axis, backwards == 1) for axis, backwards in scanned),
            tuple(
                (value, axis, backwards == 1) for value, axis, backwards in zip(stacked, axes, directions, strict=True)
            ),
        )


def _numbers(node: ir.Node, name: str, length: int) -> Sequence[int]:
    """An attribute of a Scan; zeros if it has none."""
    attribute = node.attributes.get(name)
    return [0] * length if attribute is None else attribute.as_ints()


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _operands(node: ir.Node) -> list[ir.Value]:
    """What a node reads, in its subgraphs too."""
    return [*(value for value in node.inputs if value is not None), *scope.captured(node)]
