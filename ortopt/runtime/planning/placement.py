"""Where the values of a plan are: their slots, each group's outputs where they are used, copies between devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import onnx_ir as ir

from ortopt import semantics
from ortopt.errors import InvalidModelError
from ortopt.graph import facts
from ortopt.runtime.execution.executables import Executable
from ortopt.runtime.planning.execution_plan import PlannedStep, Step
from ortopt.runtime.values.tensors import tensor_to_ort

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.cuda.device import CudaDevice


class SlotTable:
    """The slots of one graph.

    Args:
        values: The inputs of the graph, and what it takes from graphs around it.

    Attributes:
        template: What the slots hold before a run: constants and defaults, None in the others.
    """

    def __init__(self, values: Iterable[ir.Value]) -> None:
        self.template: list[Any] = []
        self._slots: dict[ir.Value, int] = {}
        for value in values:
            default = _default(value)
            self._slots[value] = self.free(None if default is None else tensor_to_ort(default))

    def __getitem__(self, value: ir.Value) -> int:
        """The slot of a value; that of a constant is made when it is first asked for.

        Raises:
            InvalidModelError: It is no constant, and nothing before has made it.
        """
        slot = self._slots.get(value)
        if slot is None:
            tensor = semantics.constant_tensor(value)
            if tensor is None:
                raise InvalidModelError(f"nobody produces {value.name!r}")
            slot = self._slots[value] = self.free(tensor_to_ort(tensor))
        return slot

    def add(self, value: ir.Value) -> int:
        """A new slot for the result of a step."""
        slot = self._slots[value] = self.free()
        return slot

    def free(self, content: Any = None) -> int:
        """A new slot that no value of the graph has."""
        self.template.append(content)
        return len(self.template) - 1

    def items(self) -> Iterator[tuple[ir.Value, int]]:
        """All values that have a slot."""
        return iter(self._slots.items())

    def constants(self) -> set[int]:
        """The slots that hold something before a run."""
        return {slot for slot, content in enumerate(self.template) if content is not None}


def _default(value: ir.Value) -> ir.TensorProtocol | None:
    """The default of an input: its initializer."""
    return value.const_value if value.is_graph_input() and value.is_initializer() else None


def to_host(device: CudaDevice, name: str) -> Executable:
    """Copies a value to the host's memory, if it is elsewhere.

    Args:
        device: Where values may be.
        name: What to call it on the timeline.
    """
    return lambda values, _: (device.download(values[0], name),)


def to_device(device: CudaDevice, name: str) -> Executable:
    """Copies a value to a device, if it is in the host's memory; see `to_host`."""

    def copy(values: list[Any], _: onnxruntime.RunOptions) -> Sequence[Any]:
        try:
            return (device.upload(values[0], name),)
        except RuntimeError:  # there is no memory for it: it stays, and the step that reads it raises the error
            return values

    return copy


_MATRIX: Final = 2


def place_values(
    steps: Sequence[PlannedStep],
    slots: SlotTable,
    outputs: tuple[int, ...],
    at_host: Collection[int],
    device: CudaDevice,
) -> tuple[list[PlannedStep], tuple[int, ...]]:
    """Leave each group's outputs on the device where they are used; copy once where both devices use them.

    What control flow passes on, and what the graph gives, stays where it is: its readers copy it.

    Args:
        steps: The steps, in their order; they are changed.
        slots: The slots of the graph.
        outputs: The slots of the graph's outputs.
        at_host: The positions of the outputs that the host reads.
        device: The CUDA device.

    Returns:
        The steps with the copies among them, and the slots of the graph's outputs.
    """
    return _Placement(steps, slots, {outputs[i] for i in at_host}, device).finish(outputs)


class _Placement:
    """The readers of each slot, and the steps with the copies so far."""

    def __init__(self, steps: Sequence[PlannedStep], slots: SlotTable, at_host: set[int], device: CudaDevice) -> None:
        self._planned = steps
        self._slots = slots
        self._device = device
        self._at_host = at_host
        self._on_device: Counter[int] = Counter()
        for planned in steps:
            inputs = planned.step.inputs
            if planned.is_on_cuda:
                self._on_device.update({slot for i, slot in enumerate(inputs) if not planned.host_reads(i)})
            self._at_host.update(slot for i, slot in enumerate(inputs) if planned.host_reads(i))
        self._pending = self._shared_uploads()
        self._uploads: dict[int, int] = {}
        self._downloads: dict[int, int] = {}
        self._steps: list[PlannedStep] = []

    def finish(self, outputs: tuple[int, ...]) -> tuple[list[PlannedStep], tuple[int, ...]]:
        for planned in self._planned:
            on_cuda = planned.is_on_cuda
            self._read(planned, on_cuda=on_cuda)
            self._steps.append(planned)
            if on_cuda:
                self._leave(planned)
        return self._steps, tuple(self._downloads.get(slot, slot) for slot in outputs)

    def _read(self, planned: PlannedStep, *, on_cuda: bool) -> None:
        """Let a step read the copies."""
        step, host_reads = planned.step, planned.host_reads
        if on_cuda:
            for i, slot in enumerate(step.inputs):
                if slot in self._pending and not host_reads(i):
                    self._pending.discard(slot)
                    self._uploads[slot] = self._copy(to_device, f"copy for {step.name}", slot)
        step.inputs = tuple(
            self._downloads.get(slot, slot) if host_reads(i) else self._uploads.get(slot, slot) if on_cuda else slot
            for i, slot in enumerate(step.inputs)
        )

    def _leave(self, planned: PlannedStep) -> None:
        """Leave what a step on the device gives where it is used."""
        step = planned.step
        made_there = [all(flags) for flags in zip(*(placed.made_at_host() for placed in planned.groups), strict=True)]
        stays = {slot for slot, is_there in zip(step.outputs, made_there, strict=True) if is_there}
        stays |= {slot for slot in step.outputs if slot in self._at_host and slot not in self._on_device}
        wanted = ["cpu" if slot in stays else "cuda" for slot in step.outputs]
        for placed in planned.groups:
            placed.leave(wanted)
        for slot in step.outputs:
            if slot in self._at_host and slot not in stays:
                self._downloads[slot] = self._copy(to_host, f"copy of {step.name}", slot)

    def _copy(self, kind: Callable[[CudaDevice, str], Executable], name: str, slot: int) -> int:
        """A step that copies a slot; the slot of the copy."""
        copy = self._slots.free()
        self._steps.append(PlannedStep(Step(name, kind(self._device, name), (slot,), (copy,), fresh=kind is to_host)))
        return copy

    def _shared_uploads(self) -> set[int]:
        """Slots that several groups on the device would each copy there.

        Vectors and single numbers are left to ONNX Runtime: they may be shapes or counts, which its kernels read in the
        host's memory.
        """
        inside = {slot for planned in self._planned if planned.is_on_cuda for slot in planned.step.outputs}
        matrices = {slot for value, slot in self._slots.items() if len(facts.shape_of(value) or ()) >= _MATRIX}
        shared = {slot for slot, readers in self._on_device.items() if readers > 1}
        return (shared & matrices) - inside
