"""A compiled plan: steps over slots in a flat list. A run walks no graph and looks no name up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import onnx
from msgspec import Struct

from ortopt.analysis.providers import CUDA
from ortopt.runtime.execution.executables import Executable
from ortopt.runtime.execution.group_runner import GroupRunner
from ortopt.runtime.instruments import Counters
from ortopt.semantics.domains import MICROSOFT

if TYPE_CHECKING:
    import onnxruntime


class PlacedGroup(Struct, frozen=True):
    """A group that a step runs.

    Attributes:
        group: The group.
        order: Which of its outputs each output of the step is.
    """

    group: GroupRunner
    order: tuple[int, ...]

    def leave(self, places: Sequence[str]) -> None:
        """Leave the group's outputs where the step's are wanted: on the device, if one output is two of the step's."""
        devices = ["cpu"] * len(self.group.spec.outputs)
        for output, place in zip(self.order, places, strict=True):
            if place != "cpu":
                devices[output] = place
        self.group.devices = tuple(devices)

    def made_at_host(self) -> list[bool]:
        """Which of the step's outputs its kernels leave in the host's memory, where it runs on CUDA."""
        spec = self.group.spec
        names = in_host_memory(spec.nodes)
        return [spec.outputs[output].name in names for output in self.order]


@dataclass(slots=True)
class PlannedStep:
    """A step, and what must be known of it to place values.

    Attributes:
        step: The step.
        groups: The groups of which it runs one.
        host_reads: Whether the host reads its operand at a position.
    """

    step: Step
    groups: tuple[PlacedGroup, ...] = ()
    host_reads: Callable[[int], bool] = lambda _: True

    @property
    def is_on_cuda(self) -> bool:
        """Whether it runs on CUDA, whichever of its groups it runs."""
        return is_on_cuda(self.groups)


def is_on_cuda(groups: Sequence[PlacedGroup]) -> bool:
    """Whether all groups of a step run on CUDA, and there are any."""
    return bool(groups) and all(placed.group.wanted_provider == CUDA for placed in groups)


def last_uses(steps: Sequence[PlannedStep], kept: Container[int]) -> None:
    """Let each step know which slots are of no use after it, and each group whether its outputs die apart.

    Args:
        steps: The steps, in their order.
        kept: The slots that are never freed: outputs of the graph, and constants.
    """
    seen: set[int] = set()
    for planned in reversed(steps):
        step = planned.step
        last = {slot for slot in (*step.inputs, *step.outputs) if slot not in kept} - seen
        step.dead = tuple(sorted(last))
        seen |= last
    ends = {slot: i for i, planned in enumerate(steps) for slot in planned.step.dead}
    for planned in steps:
        for placed in planned.groups:
            placed.group.separate = len({ends.get(slot, -1) for slot in planned.step.outputs}) > 1


_SEARCH: Final = frozenset({0, 1})
HOST_OUTPUTS: Final[dict[tuple[str, str], frozenset[int]]] = {
    ("", "Shape"): frozenset({0}),
    ("", "Size"): frozenset({0}),
    (MICROSOFT, "BeamSearch"): _SEARCH,
    (MICROSOFT, "GreedySearch"): frozenset({0}),
    (MICROSOFT, "RemovePadding"): frozenset({3}),  # the largest number of tokens
    (MICROSOFT, "Sampling"): _SEARCH,
    (MICROSOFT, "WhisperBeamSearch"): _SEARCH,
}
"""Outputs that kernels of the CUDA provider leave in the host's memory, plain or pinned, though they run on the device.

Their positions, by domain and op. So say the definitions of the kernels (``OutputMemoryType``) in ONNX Runtime's
sources; docs/runtime.md says which. A session of 1.23 and newer tells where its outputs are; this says it before there
is a session: such a result stays where it is, as most of its readers want it there (shapes, lengths) or take it away
(what a search has found).
"""


def in_host_memory(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """The names of the values that some nodes leave in the host's memory, where they run on CUDA."""
    names: set[str] = set()
    for node in nodes:
        positions = HOST_OUTPUTS.get((node.domain.removeprefix("ai.onnx"), node.op_type), frozenset())
        names.update(name for i, name in enumerate(node.output) if i in positions)
    return names


@dataclass(slots=True)
class Step:
    """Something that is run: a group, a node with plans inside, a copy to another device.

    Attributes:
        name: What it is, for people.
        action: Called with the values of ``inputs`` and the run options; returns the values of ``outputs``.
        inputs: The slots that it reads.
        outputs: The slots that it writes.
        dead: The slots that are not read after it, in the order of the steps.
        ordered: Whether it must run after all earlier steps that are ordered too: it draws random numbers.
        fresh: Whether its results share memory with nothing that was there before.
    """

    name: str
    action: Executable
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    dead: tuple[int, ...] = ()
    ordered: bool = False
    fresh: bool = False


@dataclass(slots=True)
class ExecutionPlan:
    """What a graph does, as steps.

    Attributes:
        template: What the slots hold before a run: constants and defaults, None in the others.
        inputs: The slots of the graph's inputs.
        captured: The slots of what the graph takes from graphs around it.
        outputs: The slots of the graph's outputs.
        steps: In an order in which they can run.
        groups: How many of the steps are groups.
    """

    template: list[Any]
    inputs: tuple[int, ...]
    captured: tuple[int, ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    counters: Counters
    groups: int = 0
    _code: tuple[tuple[Executable, tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = field(init=False)

    def __post_init__(self) -> None:
        self._code = tuple((step.action, step.inputs, step.outputs, step.dead) for step in self.steps)

    def dependencies(self) -> tuple[list[int], list[list[int]]]:
        """For each step, how many steps it waits for, and which steps wait for it."""
        made_by = {slot: i for i, step in enumerate(self.steps) for slot in step.outputs}
        needs = ({made_by[slot] for slot in step.inputs if slot in made_by} for step in self.steps)
        return dependencies(needs, (step.ordered for step in self.steps))

    def filled(self, arguments: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
        """The slots at the start of a run; see `run`."""
        slots = self.template.copy()
        for i, value in zip(self.inputs, arguments, strict=True):
            slots[i] = value
        for i, value in zip(self.captured, captured, strict=True):
            slots[i] = value
        return slots

    def run(self, arguments: Sequence[Any], captured: Sequence[Any], options: onnxruntime.RunOptions) -> list[Any]:
        """Run all steps, one after the other.

        Args:
            arguments: The values of the inputs.
            captured: The values that the graph takes from graphs around it.
            options: ONNX Runtime's run options.

        Returns:
            The values of the outputs.
        """
        slots = self.filled(arguments, captured)
        for action, inputs, outputs, dead in self._code:
            for i, value in zip(outputs, action([slots[i] for i in inputs], options), strict=False):
                slots[i] = value
            for i in dead:
                slots[i] = None
        self.counters.ran(self.groups)
        return [slots[i] for i in self.outputs]


class ParallelPlan:
    """Runs a plan's steps as soon as what they need is there, several at a time.

    Args:
        plan: The plan.
        executor: Whose threads run the steps.
    """

    def __init__(self, plan: ExecutionPlan, executor: Executor) -> None:
        self._plan = plan
        self._executor = executor
        self._waits, self._following = plan.dependencies()
        self._readers = [0] * len(plan.template)
        for step in plan.steps:
            for slot in step.inputs:
                self._readers[slot] += 1
        self._kept = {*plan.outputs}

    @property
    def is_chain(self) -> bool:
        """Whether no two steps could ever run at the same time."""
        return all(len(following) <= 1 for following in self._following) and self._waits.count(0) <= 1

    def run(self, arguments: Sequence[Any], captured: Sequence[Any], options: onnxruntime.RunOptions) -> list[Any]:
        """As `Plan.run`; the first error ends it, once the steps that run have ended."""
        plan = self._plan
        slots = plan.filled(arguments, captured)
        run = _ParallelRun(self, slots, options)
        run.finish()
        plan.counters.ran(plan.groups)
        return [slots[i] for i in plan.outputs]

    def parts(self) -> tuple[tuple[Step, ...], list[int], list[list[int]], list[int], set[int], Executor]:
        """What one run needs."""
        return self._plan.steps, list(self._waits), self._following, list(self._readers), self._kept, self._executor


class _ParallelRun:
    """One run: what each step still waits for, and how many steps still read each slot."""

    def __init__(self, plan: ParallelPlan, slots: list[Any], options: onnxruntime.RunOptions) -> None:
        self._steps, self._waits, self._following, self._readers, self._kept, self._executor = plan.parts()
        self._slots = slots
        self._options = options
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._left = len(self._steps)
        self._running = 0
        self._error: BaseException | None = None
        if not self._steps:
            self._done.set()
        ready = [i for i, count in enumerate(self._waits) if count == 0]
        self._running = len(ready)
        for i in ready:
            if not self._hand_over(i):
                self._run(i)

    def finish(self) -> None:
        self._done.wait()
        if self._error is not None:
            raise self._error

    def _hand_over(self, index: int) -> bool:
        """Let another thread run a step; False if there are none any more: the session was closed meanwhile."""
        try:
            self._executor.submit(self._run, index)
        except RuntimeError:
            return False
        return True

    def _run(self, index: int) -> None:
        mine = [index]
        while mine:
            ready = self._step(mine.pop())
            if ready:
                mine.append(ready.pop())  # one of them here: no hand-over
            mine.extend(i for i in ready if not self._hand_over(i))

    def _step(self, index: int) -> list[int]:
        """Run a step; the steps that can run now."""
        step = self._steps[index]
        try:
            if self._error is None:
                results = step.action([self._slots[i] for i in step.inputs], self._options)
                for i, value in zip(step.outputs, results, strict=False):
                    if self._readers[i] or i in self._kept:
                        self._slots[i] = value
        except BaseException as error:
            self._error = self._error or error
        ready: list[int] = []
        with self._lock:
            self._left -= 1
            for slot in step.inputs:
                self._readers[slot] -= 1
                if self._readers[slot] == 0 and slot not in self._kept:
                    self._slots[slot] = None
            if self._error is None:
                for i in self._following[index]:
                    self._waits[i] -= 1
                    if self._waits[i] == 0:
                        ready.append(i)
            self._running += len(ready) - 1
            if self._left == 0 or (self._error is not None and self._running == 0):
                self._done.set()
        return ready


def dependencies(needs: Iterable[set[int]], ordered: Iterable[bool]) -> tuple[list[int], list[list[int]]]:
    """For each of some items, how many others it waits for, and which wait for it.

    Args:
        needs: For each item those before it that it waits for.
        ordered: For each whether it waits for the last one before it that is ordered, too: they draw random numbers.
    """
    waits: list[int] = []
    following: list[list[int]] = []
    last_ordered: set[int] = set()
    for i, (own, is_ordered) in enumerate(zip(needs, ordered, strict=True)):
        before = own | last_ordered if is_ordered else own
        if is_ordered:
            last_ordered = {i}
        waits.append(len(before))
        following.append([])
        for j in sorted(before):
            following[j].append(i)
    return waits, following
