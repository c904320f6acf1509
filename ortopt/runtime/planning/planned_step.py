"""A step of a plan that is being made: what it runs, where that reads, and which groups it may run."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import onnx
from msgspec import Struct

from ortopt.analysis.providers import CUDA
from ortopt.runtime.execution.group_runner import GroupRunner
from ortopt.runtime.planning.execution_plan import Step
from ortopt.semantics.domains import MICROSOFT


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
