"""CUDA graphs of specialised groups: one graph for each argument specification, replayed on buffers of its own.

A graph reads and writes at the addresses that it was captured with. So arguments are copied into buffers on the device
and results out of them, all on the one stream: what a caller gets is never overwritten by a later call, and calls
cannot mix. ONNX Runtime warms up and captures by itself, in the first run with a graph's number.

ONNX Runtime keeps captured graphs per thread, and beside them handles of cuBLAS and cuDNN for each thread that runs
such a session, with or without a graph. It gives none of this back before the session is gone, not even when the
thread ends. So no more than `MAX_THREADS` threads ever run one. Each of them captures anew, on the same buffers; all
others are refused for good, and run the general session of the group.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ortopt.analysis.providers import CUDA
from ortopt.runtime.cuda.device import NO_WAITING, CudaDevice
from ortopt.runtime.execution import session_options
from ortopt.runtime.execution.arena import ENTRY
from ortopt.runtime.execution.executables import OnDevice, of_session
from ortopt.runtime.execution.group_runner import GroupContext, GroupRunner
from ortopt.runtime.execution.group_spec import GroupSpec
from ortopt.runtime.onnxruntime_internals import (
    NativeSession,
    NativeValue,
    input_memories,
    memory_names,
    new_binding,
    output_memories,
)
from ortopt.runtime.values.tensors import nbytes_of
from ortopt.terminal_text import one_line, quoted

if TYPE_CHECKING:
    import onnxruntime

GRAPH_KEY: Final = "gpu_graph_id"
"""The run option that numbers a session's graphs."""

_NO_GRAPH: Final = -1

MAX_THREADS: Final = 4
"""How many threads may capture a graph, those that have ended among them."""

_identifiers = itertools.count(1)


def captured(
    group: GroupRunner,
    context: GroupContext,
    spec: GroupSpec,
    values: Sequence[NativeValue],
    options: onnxruntime.RunOptions,
) -> CapturedGraph:
    """An executable that replays a CUDA graph, which has been captured.

    Args:
        group: The group.
        context: What all groups share.
        spec: The group with fixed sizes.
        values: Arguments of the specification, those that were folded in left out.
        options: The run options of the call.

    Raises:
        ValueError: The group takes or gives what the host reads: a replay would go on with what it was at the capture.
            Or its memory is not its own.
        onnxruntime.capi.onnxruntime_pybind11_state.Fail: And its kin: ONNX Runtime cannot capture the group, because a
            node of it is not for CUDA, or is control flow, or allocates memory or waits in its kernel.
    """
    device = context.device
    assert device is not None
    if session_options.entry(context.maker.options, ENTRY) == "1":
        raise ValueError(f"{ENTRY} lets other sessions have memory that a replay writes to")
    session = group.new_session(spec, CUDA, "-graph", provider_options={CUDA: {"enable_cuda_graph": "1"}})
    for arguments, memories in ((spec.inputs, input_memories), (spec.outputs, output_memories)):
        at_host = device.at_host(memory_names(memories, session))
        if at_host is None:
            raise ValueError("ONNX Runtime before 1.23 does not tell what is in the host's memory")
        for i in sorted(at_host):
            raise ValueError(f"{quoted(arguments[i].name)} is in the host's memory, where a replay does not look")
    feeds, fetches = ([argument.name for argument in arguments] for arguments in (spec.inputs, spec.outputs))
    plain = of_session(session, feeds, fetches, ["cuda"] * len(fetches), device)
    if not isinstance(plain, OnDevice):
        raise ValueError("it takes or gives something else than tensors of numbers")  # noqa: TRY004 -- of the model
    uncaptured = _options(device, _NO_GRAPH)
    plain.options = lambda *_, **__: uncaptured
    return CapturedGraph(session, device, spec, group.devices, values, plain(list(values), options), context)


def _options(device: CudaDevice, identifier: int) -> onnxruntime.RunOptions:
    """Run options of one graph of a session. A caller's own do not reach captured sessions."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry(GRAPH_KEY, str(identifier))
    if not device.waits:
        options.add_run_config_entry(NO_WAITING, "1")
    return options


class CapturedGraph:
    """A session with a CUDA graph: what it reads and writes stays where it was when it was captured.

    Args:
        session: ONNX Runtime's C++ session.
        device: The device.
        spec: What the session computes.
        places: Where each output is left, ``cpu`` or ``cuda``; everywhere in the host's memory, if empty.
        values: Arguments, for the capture.
        results: What the session gives for them: the buffers of the outputs are made like these.
        context: What all groups share.

    Attributes:
        session: ONNX Runtime's C++ session.
        nbytes: Bytes of its buffers.

    Raises:
        onnxruntime.capi.onnxruntime_pybind11_state.Fail: And its kin: ONNX Runtime cannot capture it.
    """

    def __init__(
        self,
        session: NativeSession,
        device: CudaDevice,
        spec: GroupSpec,
        places: Sequence[str],
        values: Sequence[NativeValue],
        results: Sequence[NativeValue],
        context: GroupContext,
    ) -> None:
        self.session = session
        self._device = device
        self._name = spec.name
        self._places = list(places) or ["cpu"] * len(results)
        self._context = context
        self._inputs = [device.allocate(value.shape(), value.element_type()) for value in values]
        self._outputs = [device.allocate(value.shape(), value.element_type()) for value in results]
        self.nbytes = sum(map(nbytes_of, (*self._inputs, *self._outputs)))
        self._binding = new_binding(session)
        for argument, buffer in zip(spec.inputs, self._inputs, strict=True):
            self._binding.bind_ortvalue_input(argument.name, buffer)
        for argument, buffer in zip(spec.outputs, self._outputs, strict=True):
            self._binding.bind_ortvalue_output(argument.name, buffer)
        self._options = _options(device, next(_identifiers))
        self._lock = threading.Lock()
        self._mine = threading.local()
        self._threads = 1  # the one that makes it has run the session
        self._capture(values)

    def captured_here(self, values: Sequence[NativeValue]) -> bool:
        """Whether the calling thread replays: it has captured, or does so now.

        Args:
            values: Arguments, for the capture.
        """
        answer: bool | None = getattr(self._mine, "replays", None)
        if answer is None:
            answer = self._captures(values)
            self._mine.replays = answer
        return answer

    def __call__(self, values: list[NativeValue], options: onnxruntime.RunOptions) -> Sequence[NativeValue]:
        """Copy the arguments in, replay, copy the results out; in a thread that has captured."""
        device = self._device
        with device.turn:
            crossing = self._fill(values)
            self.session.run_with_iobinding(self._binding, self._options)
            results = self._copied_out()
        if "cpu" in self._places:
            device.settle()
        device.crossed(
            [*crossing, *(one for one, wanted in zip(self._outputs, self._places, strict=True) if wanted == "cpu")]
        )
        return results

    def _copied_out(self) -> list[NativeValue]:
        """Results in memory of their own, where they are wanted; on the way there, to the host's."""
        device = self._device
        results: list[NativeValue] = []
        copied: list[tuple[NativeValue, NativeValue]] = []
        for source, wanted in zip(self._outputs, self._places, strict=True):
            if wanted == "cpu":
                results.append(device.fetch(source))
            else:
                results.append(device.allocate(source.shape(), source.element_type()))
                copied.append((results[-1], source))
        device.fill([target for target, _ in copied], [source for _, source in copied])
        return results

    def _captures(self, values: Sequence[NativeValue]) -> bool:
        """Capture in one more thread; False if that may not be, or fails."""
        with self._lock:
            refused = self._threads >= MAX_THREADS
            self._threads += not refused
        if refused:
            self._context.tell_once(
                f"group {self._name}, and others, run without a CUDA graph in further threads: {MAX_THREADS} have"
                " captured it, and ONNX Runtime keeps what a thread has captured, also when that has ended. Call"
                " from the same few threads",
                "threads that capture",
            )
            return False
        try:
            self._capture(values)
        except Exception as error:  # whatever ONNX Runtime raises
            self._threads = MAX_THREADS
            self._context.tell(
                f"group {self._name} is not captured as a CUDA graph in another thread: {one_line(error)}"
            )
            return False
        return True

    def _capture(self, values: Sequence[NativeValue]) -> None:
        """Capture in this thread."""
        with self._device.alone():
            self._fill(values)
            self.session.run_with_iobinding(self._binding, self._options)
        self._mine.replays = True
        self._context.counters.add("captures")

    def _fill(self, values: Sequence[NativeValue]) -> list[NativeValue]:
        """Copy arguments into the buffers; those that came from the host."""
        self._device.fill(self._inputs, values)
        return [value for value in values if not self._device.is_resident(value)]
