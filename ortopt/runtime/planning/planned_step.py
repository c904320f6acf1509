"""A step of a plan that is being made: what it runs, where that reads, and which groups it may run."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from msgspec import Struct

from ortopt.analysis.providers import CUDA
from ortopt.runtime.execution.group_runner import GroupRunner
from ortopt.runtime.planning.execution_plan import Step


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
        from ortopt.runtime.cuda.host_outputs import in_host_memory

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
