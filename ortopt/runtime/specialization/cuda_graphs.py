"""CUDA graphs of specialised groups: one graph for each argument specification, replayed on buffers of its own.

A graph reads and writes at the addresses that it was captured with. So arguments are copied into buffers on the device
and results out of them, all on the one stream: what a caller gets is never overwritten by a later call, and calls
cannot mix. ONNX Runtime warms up and captures by itself, in the first run with a graph's number.

ONNX Runtime keeps captured graphs per thread. Each thread that calls captures anew, on the same buffers; no more than
`MAX_THREADS` that live at the same time do, the others run the same session without a graph. Their results are copied
out as well: they lie in the session's arena, where a replay in another thread overwrites all that was free when its
graph had been captured.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ortopt.analysis.providers import CPU, CUDA
from ortopt.runtime.cuda.device import NO_WAITING, CudaDevice
from ortopt.runtime.execution import session_options
from ortopt.runtime.execution.arena import ENTRY
from ortopt.runtime.execution.executables import OnDevice, of_session
from ortopt.runtime.execution.group_runner import GroupContext, GroupRunner
from ortopt.runtime.execution.group_spec import GroupSpec
from ortopt.runtime.execution.weights import place
from ortopt.runtime.onnxruntime_internals import NativeSession, NativeValue, native
from ortopt.runtime.values.tensors import nbytes_of
from ortopt.terminal_text import one_line, quoted

if TYPE_CHECKING:
    import onnxruntime

GRAPH_KEY: Final = "gpu_graph_id"
"""The run option that numbers a session's graphs; -1 is a run without."""

MAX_THREADS: Final = 8

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
    session = context.maker.make(
        place(spec.model(), spec.weights),
        (CUDA, CPU),
        label=f"{group.label}-graph",
        threads=group.threads,
        optimize=True,
        foreign=spec.foreign,
        provider_options={CUDA: {"enable_cuda_graph": "1"}},
    )
    for arguments, memories in ((spec.inputs, session.input_meminfos), (spec.outputs, session.output_meminfos)):
        for i in sorted(device.at_host(memories)):
            raise ValueError(f"{quoted(arguments[i].name)} is in the host's memory, where a replay does not look")
    feeds, fetches = ([argument.name for argument in arguments] for arguments in (spec.inputs, spec.outputs))
    plain = of_session(session, feeds, fetches, ["cuda"] * len(fetches), device)
    if not isinstance(plain, OnDevice):
        raise ValueError("it takes or gives something else than tensors of numbers")  # noqa: TRY004 -- of the model
    plain.options = _Options(device, -1)
    return CapturedGraph(plain, device, spec, group.devices, values, plain(list(values), options), context)


class _Options:
    """Run options of one graph of a session, or of none: -1. A caller's own do not reach captured sessions."""

    def __init__(self, device: CudaDevice, identifier: int) -> None:
        import onnxruntime

        self._options = onnxruntime.RunOptions()
        self._options.add_run_config_entry(GRAPH_KEY, str(identifier))
        if not device.waits:
            self._options.add_run_config_entry(NO_WAITING, "1")

    def __call__(self, options: onnxruntime.RunOptions | None, *, waits: bool) -> onnxruntime.RunOptions:
        return self._options


class _Token:
    """That a thread has captured; it goes with the thread."""


class CapturedGraph:
    """A session with a CUDA graph: what it reads and writes stays where it was when it was captured.

    Args:
        plain: Runs the session without a graph.
        device: The device.
        spec: What the session computes.
        places: Where each output is left, ``cpu`` or ``cuda``; everywhere in the host's memory, if empty.
        values: Arguments, for the capture.
        results: What the session gives for them: the buffers of the outputs are made like these.
        context: What all groups share.

    Attributes:
        nbytes: Bytes of its buffers.

    Raises:
        onnxruntime.capi.onnxruntime_pybind11_state.Fail: And its kin: ONNX Runtime cannot capture it.
    """

    def __init__(
        self,
        plain: OnDevice,
        device: CudaDevice,
        spec: GroupSpec,
        places: Sequence[str],
        values: Sequence[NativeValue],
        results: Sequence[NativeValue],
        context: GroupContext,
    ) -> None:
        self._plain = plain
        self._device = device
        self._name = spec.name
        self._places = list(places) or ["cpu"] * len(results)
        self._tell = context.tell
        self._count = context.counters.add
        self._inputs = [device.allocate(value.shape(), value.element_type()) for value in values]
        self._outputs = [device.allocate(value.shape(), value.element_type()) for value in results]
        self.nbytes = sum(map(nbytes_of, (*self._inputs, *self._outputs)))
        self._binding = native().SessionIOBinding(plain.session)
        for argument, buffer in zip(spec.inputs, self._inputs, strict=True):
            self._binding.bind_ortvalue_input(argument.name, buffer)
        for argument, buffer in zip(spec.outputs, self._outputs, strict=True):
            self._binding.bind_ortvalue_output(argument.name, buffer)
        self._options = _Options(device, next(_identifiers))(None, waits=False)
        self._threads = threading.local()
        self._tokens: weakref.WeakSet[_Token] = weakref.WeakSet()
        self._refused = False
        self._capture(values)

    def __call__(self, values: list[NativeValue], options: onnxruntime.RunOptions) -> Sequence[NativeValue]:
        """Copy the arguments in, replay, copy the results out.

        What is run without a graph is copied out too, before the next replay: it lies in the session's arena, in
        which a replay writes to all that was free after the capture.
        """
        device = self._device
        replays = getattr(self._threads, "token", None) is not None or self._captures_here(values)
        with device.lock:
            if replays:
                crossing = self._fill(values)
                self.session.run_with_iobinding(self._binding, self._options)
                sources: Sequence[NativeValue] = self._outputs
            else:
                sources, crossing = self._plain.start(values, options)
            results = self._copied_out(sources)
        if "cpu" in self._places:
            device.settle()
        device.crossed(
            [*crossing, *(source for source, wanted in zip(sources, self._places, strict=True) if wanted == "cpu")]
        )
        return results

    def _copied_out(self, sources: Sequence[NativeValue]) -> list[NativeValue]:
        """Results of a run in memory of their own, where they are wanted; on the way there, to the host's."""
        device = self._device
        results: list[NativeValue] = []
        copied: list[tuple[NativeValue, NativeValue]] = []
        for source, wanted in zip(sources, self._places, strict=True):
            if wanted == "cpu":
                results.append(device.fetch(source))
            else:
                results.append(device.allocate(source.shape(), source.element_type()))
                copied.append((results[-1], source))
        device.fill([target for target, _ in copied], [source for _, source in copied])
        return results

    @property
    def session(self) -> NativeSession:
        """ONNX Runtime's C++ session."""
        return self._plain.session

    def _captures_here(self, values: Sequence[NativeValue]) -> bool:
        """Capture in this thread; False if that may not be, or fails."""
        if self._refused or len(self._tokens) >= MAX_THREADS:
            return False
        try:
            return self._capture(values)
        except Exception as error:  # whatever ONNX Runtime raises
            self._refused = True
            self._tell(f"group {self._name} is not captured as a CUDA graph in another thread: {one_line(error)}")
            return False

    def _capture(self, values: Sequence[NativeValue]) -> bool:
        """Capture in this thread; False if as many threads as may have captured."""
        with self._device.alone():
            if len(self._tokens) >= MAX_THREADS:
                return False
            self._fill(values)
            self.session.run_with_iobinding(self._binding, self._options)
            self._threads.token = _Token()
            self._tokens.add(self._threads.token)
        self._count("captures")
        return True

    def _fill(self, values: Sequence[NativeValue]) -> list[NativeValue]:
        """Copy arguments into the buffers; those that came from the host."""
        self._device.fill(self._inputs, values)
        return [value for value in values if not self._device.is_resident(value)]
