"""From a graph to a plan: groups as they are, nodes between them gathered into as few sessions as can be.

A node that no group took runs in a session of ONNX Runtime if that may have a kernel for it (its neighbours share the
session), as a plan of plans if groups or host nodes are in its subgraphs, and in onnx's reference implementation
otherwise, or if the caller gave an op for it.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis import kernels, shapes
from ortopt.analysis.providers import CUDA
from ortopt.errors import InvalidModelError, UsageError
from ortopt.graph import facts, scope
from ortopt.options import Options
from ortopt.runtime import control_flow
from ortopt.runtime.control_flow import Body
from ortopt.runtime.executables import AtHost
from ortopt.runtime.groups import HOST, Group, Workshop
from ortopt.runtime.guards import Choice, Guarded, choice_of
from ortopt.runtime.plan import Action, Plan, Step, ToDevice, ToHost
from ortopt.runtime.recipes import Library, Recipe
from ortopt.runtime.settings import RunType
from ortopt.runtime.threads import deal
from ortopt.runtime.values import tensor_to_ort
from ortopt.runtime.views import View, reshaping_of
from ortopt.semantics.opset_changes import SCAN_HAS_NO_BATCH_FROM

if TYPE_CHECKING:
    from ortopt.runtime.cuda_device import CudaDevice

_MATRIX: Final = 2
_CONTROL: Final = frozenset(("", op) for op in semantics.CONTROL_FLOW - {"SequenceMap"})  # which runs as a whole
_OLDEST_CONTROL: Final = {"Scan": SCAN_HAS_NO_BATCH_FROM}


class _Kind(enum.IntEnum):
    """What runs a node."""

    GROUP = 0
    CONTROL = 1
    HOST = 2
    SESSION = 3
    FOREIGN = 4
    """A session, if the caller's options bring a library that has the op."""


_GATHERED = frozenset({_Kind.HOST, _Kind.SESSION, _Kind.FOREIGN})


class Planner:
    """Plans one model.

    Args:
        model: The model, of which no more than shapes may become known; loaded by `ortopt.serialization.load`.
        workshop: What its groups share.
    """

    def __init__(self, model: ir.Model, workshop: Workshop) -> None:
        self._model = model
        self._workshop = workshop
        self._library = Library(model)
        self._host_keys = {(op.op_domain, op.__name__) for op in workshop.host_ops}  # type: ignore[attr-defined]
        self._function_kinds: dict[ir.OperatorIdentifier, _Kind] = {}
        self._kinds: dict[ir.Node, _Kind] = {}
        self._groups: list[Group] = []
        self._versions: list[tuple[Group, Group]] = []
        self._leftovers = 0
        self._inferred = False
        scope.attach(model, Options())

    def plan(self) -> Plan:
        """The plan of the main graph.

        Raises:
            InvalidModelError: A call does not fit its group.
            UsageError: Something cannot be run here at all.
        """
        plan = self._plan(self._model.graph, (), frozenset())
        sessions = [group for group in self._groups if group.wanted_provider != HOST]
        options = self._workshop.maker.options
        if len(sessions) > 1:
            threads = deal(options.intra_op_num_threads, [group.recipe.work for group in sessions])
            for group, count in zip(sessions, threads, strict=True):
                group.threads = count
        for version, group in self._versions:
            version.threads = group.threads
        return plan

    # What runs a node

    def _kind(self, node: ir.Node) -> _Kind:
        known = self._kinds.get(node)
        if known is None:
            known = self._kinds[node] = self._decide(node)
        return known

    def _decide(self, node: ir.Node) -> _Kind:
        if node.domain == semantics.GROUP_DOMAIN and self._library.group_of(node) is not None:
            return _Kind.GROUP
        inside = {self._kind(one) for held in semantics.subgraphs(node) for one in held} if node.attributes else set()
        on_host = self._workshop.settings.run_type is RunType.HOST
        if inside & {_Kind.GROUP, _Kind.CONTROL, _Kind.HOST, _Kind.FOREIGN} or (inside and on_host):
            # The bodies are executed here: onnx's reference implementation stacks a Loop's results up wrongly.
            if (node.domain, node.op_type) in _CONTROL and self.opset >= _OLDEST_CONTROL.get(node.op_type, 1):
                return _Kind.CONTROL
            if inside & {_Kind.GROUP, _Kind.CONTROL}:
                raise UsageError(f"node {node.name!r}: {node.op_type} at opset {self.opset} cannot hold groups")
        if on_host or (node.domain, node.op_type) in self._host_keys:
            return _Kind.HOST
        return max((self._own_kind(node), *inside), key=(_Kind.SESSION, _Kind.FOREIGN, _Kind.HOST).index)

    def _own_kind(self, node: ir.Node) -> _Kind:
        """The same, subgraphs apart."""
        identifier = node.op_identifier()
        if identifier in self._model.functions:
            if identifier not in self._function_kinds:
                self._function_kinds[identifier] = _Kind.SESSION  # a function that calls itself is refused elsewhere
                kinds = {self._in_function(one) for one in self._model.functions[identifier]}
                worst = max(kinds, key=(_Kind.SESSION, _Kind.FOREIGN, _Kind.HOST).index, default=_Kind.SESSION)
                self._function_kinds[identifier] = worst
            return self._function_kinds[identifier]
        opset = self._model.opset_imports.get(node.domain, 1)
        return self._by_kernel(node, opset)

    def _in_function(self, node: ir.Node) -> _Kind:
        """What runs a node of a function, whose types need not be known."""
        if (node.domain, node.op_type) in self._host_keys:
            return _Kind.HOST
        kinds = [self._own_kind(node)]
        for held in semantics.subgraphs(node) if node.attributes else ():
            kinds.extend(self._in_function(one) for one in held)
        return max(kinds, key=(_Kind.SESSION, _Kind.FOREIGN, _Kind.HOST).index)

    def _by_kernel(self, node: ir.Node, opset: int) -> _Kind:
        typed = all(value is None or value.type is not None for value in node.inputs)
        for provider in dict.fromkeys((*self._workshop.providers, kernels.CPU)):
            if provider not in (kernels.CPU, kernels.CUDA):
                return _Kind.SESSION  # its kernels are not in our tables: it is asked
            if kernels.support(provider, node, opset) is not None:
                return _Kind.SESSION
        if kernels.schema(node.domain, node.op_type, opset) is None:
            return _Kind.FOREIGN
        # An unknown type is no reason for the host: ONNX Runtime infers what we did not, and is asked.
        return _Kind.HOST if typed else _Kind.SESSION

    # The plan of a graph

    def _plan(self, graph: ir.Graph, captured: Sequence[ir.Value], at_host: frozenset[int]) -> Plan:
        return _GraphPlan(self, graph, captured, at_host).finish()

    def group(self, group: Group, *, version_of: Group | None = None) -> Group:
        """Remember a group that has been made.

        Args:
            group: The group.
            version_of: The group that never runs when it does: both have the same number of threads.
        """
        if version_of is None:
            self._groups.append(group)
        else:
            self._versions.append((group, version_of))
        return group

    def leftover_name(self) -> str:
        """A name for nodes that no group took."""
        self._leftovers += 1
        return f"leftover_{self._leftovers - 1}"

    def kind(self, node: ir.Node) -> _Kind:
        """What runs a node."""
        return self._kind(node)

    @property
    def library(self) -> Library:
        """Makes the recipes."""
        return self._library

    @property
    def opset(self) -> int:
        """The opset of ai.onnx."""
        return self._model.opset_imports.get("", 1)

    @property
    def workshop(self) -> Workshop:
        """What the groups share."""
        return self._workshop

    def inferred(self, values: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
        """Values of which all is known that can be: no iterations at all stack up to a shape, too."""
        if not self._inferred and any(facts.shape_of(value) is None for value in values):
            self._inferred = True
            shapes.infer_model(self._model)
        return tuple(values)

    def body(self, graph: ir.Graph, operands: list[ir.Value], at_host: Iterable[int] = ()) -> Body:
        """The plan of a nested graph; what it captures is added to the operands of its node.

        Args:
            graph: The graph.
            operands: What its node is given.
            at_host: Which of its outputs the host reads.
        """
        captured = [value for value in _captured_by(graph) if semantics.constant_tensor(value) is None]
        for value in captured:
            if value not in operands:
                operands.append(value)
        return Body(self._plan(graph, captured, frozenset(at_host)), tuple(operands.index(value) for value in captured))


class _GraphPlan:
    """One graph on its way to a plan."""

    def __init__(
        self, planner: Planner, graph: ir.Graph, captured: Sequence[ir.Value], at_host: frozenset[int]
    ) -> None:
        self._planner = planner
        self._at_host = at_host
        self._graph = graph
        self._captured = captured
        self._slots: dict[ir.Value, int] = {}
        self._template: list[object] = []
        self._steps: list[Step] = []
        self._step_groups: list[tuple[_Placed, ...]] = []  # one of them runs
        self._step_reads: list[Callable[[int], bool]] = []  # whether the host reads a step's operand at a position
        self._choices: dict[ir.Node, Choice] = {}
        for value in (*graph.inputs, *captured):
            default = _default(value)
            self._slots[value] = len(self._template)
            self._template.append(None if default is None else tensor_to_ort(default))

    def finish(self) -> Plan:
        skipped: set[ir.Node] = set()
        for node in self._graph:
            choice = choice_of(node, self._planner.library.functions) if node.op_type == "If" else None
            if choice is not None:
                self._choices[node] = choice
                skipped |= choice.condition
        nodes = [node for node in self._graph if node not in skipped and not _is_constant(node)]
        operands = {node: self._choices[node].operands if node in self._choices else _operands(node) for node in nodes}
        for kind, block in self._blocks(nodes, operands):
            self._add(kind, block, operands)
        outputs = tuple(self._slot(value) for value in self._graph.outputs)
        if self._planner.workshop.device is not None:
            outputs = self._place(outputs, self._planner.workshop.device)
        self._bury(set(outputs))
        return Plan(
            self._template,
            tuple(self._slots[value] for value in self._graph.inputs),
            tuple(self._slots[value] for value in self._captured),
            outputs,
            tuple(self._steps),
            self._planner.workshop.counters,
            sum(bool(groups) for groups in self._step_groups),
        )

    def _blocks(
        self, nodes: list[ir.Node], operands: dict[ir.Node, list[ir.Value]]
    ) -> Iterable[tuple[_Kind, list[ir.Node]]]:
        """Nodes of one kind that can run together, in topological order: as long a run of a kind as there is."""
        number = {node: i for i, node in enumerate(nodes)}
        waits = [0] * len(nodes)
        following: list[list[int]] = [[] for _ in nodes]
        last_random: int | None = None
        functions = self._planner.library.functions
        for i, node in enumerate(nodes):
            before = {number[maker] for value in operands[node] if (maker := value.producer()) in number}
            if semantics.is_random(node, functions):
                if last_random is not None:
                    before.add(last_random)
                last_random = i
            waits[i] = len(before)
            for j in before:
                following[j].append(i)
        ready: dict[_Kind, list[int]] = {kind: [] for kind in _Kind}
        for i, count in enumerate(waits):
            if count == 0:
                heapq.heappush(ready[self._planner.kind(nodes[i])], i)
        done = 0
        while done < len(nodes):
            kind = min((one for one in _Kind if ready[one]), key=lambda one: ready[one][0])
            block: list[ir.Node] = []
            while ready[kind] and (not block or kind in _GATHERED):
                i = heapq.heappop(ready[kind])
                block.append(nodes[i])
                for j in following[i]:
                    waits[j] -= 1
                    if waits[j] == 0:
                        heapq.heappush(ready[self._planner.kind(nodes[j])], j)
            done += len(block)
            yield kind, block

    def _add(self, kind: _Kind, block: list[ir.Node], operands: dict[ir.Node, list[ir.Value]]) -> None:
        if kind is _Kind.CONTROL:
            self._add_control(block[0])
            return
        library = self._planner.library
        if kind is _Kind.GROUP:
            node = block[0]
            function = library.group_of(node)
            assert function is not None
            wanted = [bool(value.uses()) or value.is_graph_output() for value in node.outputs]
            if not any(wanted):
                return
            recipe, given, results = library.of_call(node, function, wanted)
        else:
            inside = set(block)
            made = {value for node in block for value in node.outputs}
            given = [
                value
                for value in dict.fromkeys(value for node in block for value in operands[node])
                if value not in made and semantics.constant_tensor(value) is None
            ]
            results = [value for node in block for value in node.outputs if self._leaves(value, inside)]
            if not results:
                return
            recipe = library.of_nodes(self._planner.leftover_name(), block, given, results)
        group = self._planner.group(Group(recipe, self._planner.workshop, on_host=kind is _Kind.HOST))
        alone = kind is _Kind.SESSION and len(block) == 1 and group.wanted_provider != CUDA
        reshaping = reshaping_of(block[0]) if alone else None
        if reshaping is not None and self._planner.workshop.settings.run_type is RunType.ORT:
            self._append(recipe.name, View(reshaping, group), given, results)
            return
        reads = (lambda _: False) if group.wanted_provider == CUDA else (lambda _: True)
        placed = _Placed(group, tuple(range(len(results))))
        self._append(recipe.name, group, given, results, ordered=recipe.random, groups=(placed,), host_reads=reads)

    def _leaves(self, value: ir.Value, inside: set[ir.Node]) -> bool:
        """Whether a value is used outside of some nodes of this graph."""
        if value.is_graph_output():
            return True
        for node, _ in value.uses():
            ancestor = node if node.graph is self._graph else scope.ancestor_in(self._graph, node)
            if ancestor not in inside:
                return True
        return False

    def _append(
        self,
        name: str,
        action: Action,
        given: Sequence[ir.Value],
        results: Sequence[ir.Value],
        *,
        ordered: bool = False,
        groups: tuple[_Placed, ...] = (),
        host_reads: Callable[[int], bool] = lambda _: True,
    ) -> None:
        inputs = tuple(self._slot(value) for value in given)
        outputs = []
        for value in results:
            self._slots[value] = len(self._template)
            outputs.append(len(self._template))
            self._template.append(None)
        fresh = bool(groups) and all(len(set(one.order)) == len(one.order) for one in groups)
        self._steps.append(Step(name, action, inputs, tuple(outputs), (), ordered, fresh))
        self._step_groups.append(groups)
        self._step_reads.append(host_reads)

    def _slot(self, value: ir.Value) -> int:
        slot = self._slots.get(value)
        if slot is None:
            tensor = semantics.constant_tensor(value)
            if tensor is None:
                raise InvalidModelError(f"nobody produces {value.name!r}")
            slot = self._slots[value] = len(self._template)
            self._template.append(tensor_to_ort(tensor))
        return slot

    def _add_choice(self, node: ir.Node, choice: Choice) -> None:
        """An If that chooses between versions of a group: no If is run, and no condition."""
        planner = self._planner
        wanted = [i for i, value in enumerate(node.outputs) if value.uses() or value.is_graph_output()]
        given: dict[ir.Value, int] = {}
        recipe, group, places, order = self._version(choice.general, choice.order, wanted, given)
        versions = []
        groups = [_Placed(group, tuple(order))]
        for version in choice.versions:
            _, special, own, positions = self._version(version.call, version.order, wanted, given, general=group)
            expected = [(given.setdefault(value, len(given)), asked) for value, asked in version.expected]
            versions.append((expected, own, special, positions))
            groups.append(_Placed(special, tuple(positions)))
        workshop = planner.workshop
        action: Action = Guarded(versions, (places, group, order), recipe.name, workshop.counters, workshop.timeline)
        compared = {place for expected, *_ in versions for place, (_, content) in expected if content}
        device = workshop.device
        if device is not None:
            action = AtHost(action, device, f"guard of {recipe.name}", compared.__contains__)
        self._append(
            recipe.name,
            action,
            list(given),
            [node.outputs[i] for i in wanted],
            ordered=recipe.random,
            groups=tuple(groups),
            host_reads=compared.__contains__ if _is_on_cuda(groups) else lambda _: True,
        )

    def _version(
        self,
        call: ir.Node,
        order: Sequence[int],
        wanted: Sequence[int],
        given: dict[ir.Value, int],
        *,
        general: Group | None = None,
    ) -> tuple[Recipe, Group, list[int], list[int]]:
        """One version: its group, the places of what it is given, and of the wanted results among its own."""
        planner = self._planner
        function = planner.library.group_of(call)
        assert function is not None
        asked = {order[i] for i in wanted}
        recipe, values, _ = planner.library.of_call(call, function, [i in asked for i in range(len(call.outputs))])
        group = Group(recipe, planner.workshop, specializes=general is None)
        planner.group(group, version_of=general)
        positions = {place: i for i, place in enumerate(sorted(asked))}
        places = [given.setdefault(value, len(given)) for value in values]
        return recipe, group, places, [positions[order[i]] for i in wanted]

    def _add_control(self, node: ir.Node) -> None:
        if node in self._choices:
            self._add_choice(node, self._choices[node])
            return
        name = f"{node.op_type} {node.name or ''}".strip()
        random = semantics.is_random(node, self._planner.library.functions)
        given: list[ir.Value] = [value for value in node.inputs if value is not None]
        if node.op_type == "If":
            then, otherwise = (node.attributes[key].as_graph() for key in ("then_branch", "else_branch"))
            action: Action = control_flow.If(self._planner.body(then, given), self._planner.body(otherwise, given))
            read = range(1)
        elif node.op_type == "Loop":
            read = range(sum(value is not None for value in node.inputs[:2]))
            action = self._loop(node, given)
        else:
            count = node.attributes["num_scan_inputs"].as_int()
            read = range(len(node.inputs) - count, len(node.inputs))
            action = self._scan(node, given)
        device = self._planner.workshop.device
        if device is not None:
            action = AtHost(action, device, f"copy for {name}", read.__contains__)
        self._append(name, action, given, node.outputs, ordered=random, host_reads=read.__contains__)

    def _loop(self, node: ir.Node, given: list[ir.Value]) -> Action:
        body = node.attributes["body"].as_graph()
        has_count, has_condition = (len(node.inputs) > i and node.inputs[i] is not None for i in (0, 1))
        carried = len(node.inputs) - 2
        stacked = self._planner.inferred(body.outputs[1 + carried :])
        plan = self._planner.body(body, given, (0, *range(1 + carried, len(body.outputs))))
        return control_flow.Loop(plan, carried, stacked, has_count, has_condition)

    def _scan(self, node: ir.Node, given: list[ir.Value]) -> Action:
        body = node.attributes["body"].as_graph()
        count = node.attributes["num_scan_inputs"].as_int()
        states = len(node.inputs) - count

        def numbers(name: str, length: int) -> Sequence[int]:
            attribute = node.attributes.get(name)
            return [0] * length if attribute is None else attribute.as_ints()

        stacked = self._planner.inferred(body.outputs[states:])
        return control_flow.Scan(
            self._planner.body(body, given, range(states, len(body.outputs))),
            states,
            tuple(
                (axis, backwards == 1)
                for axis, backwards in zip(
                    numbers("scan_input_axes", count), numbers("scan_input_directions", count), strict=True
                )
            ),
            tuple(
                (value, axis, backwards == 1)
                for value, axis, backwards in zip(
                    stacked,
                    numbers("scan_output_axes", len(stacked)),
                    numbers("scan_output_directions", len(stacked)),
                    strict=True,
                )
            ),
        )

    # Where values are, and how long

    def _place(self, outputs: tuple[int, ...], device: CudaDevice) -> tuple[int, ...]:
        """Leave each group's outputs on the device where they are used; copy once where both devices use them.

        What control flow passes on, and what the graph gives, stays where it is: whoever reads it copies it.

        Returns:
            The slots of the graph's outputs.
        """
        on_cuda = [_is_on_cuda(groups) for groups in self._step_groups]
        at_host = {outputs[i] for i in self._at_host}
        on_device: Counter[int] = Counter()
        for step, cuda, host_reads in zip(self._steps, on_cuda, self._step_reads, strict=True):
            if cuda:
                on_device.update({slot for i, slot in enumerate(step.inputs) if not host_reads(i)})
            at_host.update(slot for i, slot in enumerate(step.inputs) if host_reads(i))
        uploads = self._uploads(on_device, on_cuda)
        downloads: dict[int, int] = {}
        steps: list[Step] = []
        step_groups: list[tuple[_Placed, ...]] = []

        def copy(kind: type[ToHost], name: str, slot: int) -> int:
            steps.append(Step(name, kind(device, name), (slot,), (self._new_slot(),), fresh=kind is ToHost))
            step_groups.append(())
            return steps[-1].outputs[0]

        for step, groups, cuda, host_reads in zip(
            self._steps, self._step_groups, on_cuda, self._step_reads, strict=True
        ):
            if cuda:
                for i, slot in enumerate(step.inputs):
                    if uploads.get(slot, 0) < 0 and not host_reads(i):
                        uploads[slot] = copy(ToDevice, f"copy for {step.name}", slot)
            step.inputs = tuple(
                downloads.get(slot, slot) if host_reads(i) else uploads.get(slot, slot) if cuda else slot
                for i, slot in enumerate(step.inputs)
            )
            steps.append(step)
            step_groups.append(groups)
            if not cuda:
                continue
            wanted = ["cpu" if slot in at_host and slot not in on_device else "cuda" for slot in step.outputs]
            for one in groups:
                one.leave(wanted)
            for slot in step.outputs:
                if slot in at_host and slot in on_device:
                    downloads[slot] = copy(ToHost, f"copy of {step.name}", slot)
        self._steps, self._step_groups = steps, step_groups
        return tuple(downloads.get(slot, slot) for slot in outputs)

    def _uploads(self, on_device: Counter[int], on_cuda: Sequence[bool]) -> dict[int, int]:
        """Slots that several groups on the device would each copy there, with -1 for each.

        Vectors and single numbers are left to ONNX Runtime: they may be shapes or counts, which its kernels read in the
        host's memory.
        """
        made = {slot for step, cuda in zip(self._steps, on_cuda, strict=True) if cuda for slot in step.outputs}
        matrices = {slot for value, slot in self._slots.items() if len(facts.shape_of(value) or ()) >= _MATRIX}
        return {
            slot: -1 for slot, readers in on_device.items() if readers > 1 and slot in matrices and slot not in made
        }

    def _new_slot(self) -> int:
        self._template.append(None)
        return len(self._template) - 1

    def _bury(self, outputs: set[int]) -> None:
        """Say after which step each value is of no use any more."""
        kept = outputs | {i for i, value in enumerate(self._template) if value is not None}
        seen: set[int] = set()
        for step in reversed(self._steps):
            last = {*step.inputs, *step.outputs} - seen - kept
            step.dead = tuple(sorted(last))
            seen |= last
        ends = {slot: i for i, step in enumerate(self._steps) for slot in step.dead}
        for step, groups in zip(self._steps, self._step_groups, strict=True):
            for one in groups:
                one.group.separate = len({ends.get(slot, -1) for slot in step.outputs}) > 1


class _Placed(NamedTuple):
    """A group that a step runs.

    Attributes:
        group: The group.
        order: Which of its outputs each output of the step is.
    """

    group: Group
    order: tuple[int, ...]

    def leave(self, places: Sequence[str]) -> None:
        """Leave the group's outputs where the step's are wanted: on the device, if one output is two of the step's."""
        found = ["cpu"] * len(self.group.recipe.outputs)
        for output, place in zip(self.order, places, strict=True):
            if place != "cpu":
                found[output] = place
        self.group.devices = tuple(found)


def _is_on_cuda(groups: Sequence[_Placed]) -> bool:
    """Whether a step runs on CUDA, whichever of its groups it runs."""
    return bool(groups) and all(one.group.wanted_provider == CUDA for one in groups)


def _default(value: ir.Value) -> ir.TensorProtocol | None:
    """What an input holds where nobody gives it a value: its initializer."""
    return value.const_value if value.is_graph_input() and value.is_initializer() else None


def _is_constant(node: ir.Node) -> bool:
    """Whether a node needs no step: its output is a constant."""
    return node.op_type == "Constant" and semantics.constant_tensor(node.outputs[0]) is not None


def _operands(node: ir.Node) -> list[ir.Value]:
    """What a node reads, in its subgraphs too."""
    return [*(value for value in node.inputs if value is not None), *scope.captured(node)]


def _captured_by(graph: ir.Graph) -> list[ir.Value]:
    """The values from outside that a graph uses, at any depth, each once."""
    inside: set[ir.Value] = set()
    used: dict[ir.Value, None] = {}
    for inner in scope.below(graph):
        inside.update(inner.inputs)
        inside.update(inner.initializers.values())
        for node in inner:
            inside.update(node.outputs)
            used.update(dict.fromkeys(value for value in node.inputs if value is not None))
        used.update(dict.fromkeys(inner.outputs))
    return [value for value in used if value not in inside]
