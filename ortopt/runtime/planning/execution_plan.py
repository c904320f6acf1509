"""A compiled plan: steps over slots in a flat list. A run walks no graph and looks no name up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ortopt.runtime.execution.executables import Executable
from ortopt.runtime.instruments.statistics import Counters

if TYPE_CHECKING:
    import onnxruntime


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

    def run(self, arguments: Sequence[Any], captured: Sequence[Any], options: onnxruntime.RunOptions) -> list[Any]:
        """Run all steps, one after the other.

        Args:
            arguments: The values of the inputs.
            captured: The values that the graph takes from graphs around it.
            options: ONNX Runtime's run options.

        Returns:
            The values of the outputs.
        """
        slots = self.template.copy()
        for i, value in zip(self.inputs, arguments, strict=True):
            slots[i] = value
        for i, value in zip(self.captured, captured, strict=True):
            slots[i] = value
        for action, inputs, outputs, dead in self._code:
            for i, value in zip(outputs, action([slots[i] for i in inputs], options), strict=False):
                slots[i] = value
            for i in dead:
                slots[i] = None
        self.counters.ran(self.groups)
        return [slots[i] for i in self.outputs]
