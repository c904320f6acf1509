"""What the groups of one session share on a CUDA device: a stream, turns on it, and the copies to and from it.

All CUDA sessions of a process get the same stream (``user_compute_stream``), so that a group need not wait for the one
before it: the device runs them in the order in which they were started, and nothing else orders them. Memory that is
given back to an allocator is only used again by what comes later on it. As ONNX Runtime's own streams, it keeps no
order with the default stream, on which ONNX Runtime's Python API copies (``OrtValue.numpy``, ``ortvalue_from_numpy``)
and others compute: what a caller gives on the device is waited for before a call begins.

The host waits where it reads: a group that leaves an output in the host's memory waits for it, a copy to the host
does, and each call of the session ends with a wait, so that what the caller gave may change and what it got is there.

With a stream that the caller gave (``user_compute_stream`` of the provider options) each group's run waits for its end,
as in ONNX Runtime: others put work on it, too. The same holds without a stream.

One arena for the CUDA sessions of all plans on a device, instead of one for each session.

A session keeps what its activations took: with one for each group, the activations of all groups would be kept at the
same time. So the groups take their memory from an arena of ONNX Runtime's environment
(``create_and_register_allocator_v2``, ``session.use_env_allocators``), registered when the first is made.

What a run gives back to the arena is another session's at once, though the device may not have come to its end yet.
That is right where both are on one stream, and nowhere else: so the plans of a process share their stream on a device,
too. Sessions with CUDA graphs have arenas of their own, as a replay writes to what was free when it was captured.
The arena stays as long as the process.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

from ortopt.analysis.providers import CUDA
from ortopt.errors import UsageError
from ortopt.runtime.cuda.capture_gate import GATE, Turn
from ortopt.runtime.cuda.driver import DEFAULT_STREAM, Copy, Driver, unless_forked
from ortopt.runtime.instruments import Counters, Timeline, span
from ortopt.runtime.onnxruntime_internals import (
    NativeDevice,
    NativeSession,
    NativeValue,
    copies_from_values,
    native_device,
    native_value,
    provider_failure,
    value_class,
)
from ortopt.runtime.values.tensors import byte_view, has_no_array, holds_numbers, nbytes_of, to_ort
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    import onnxruntime


OWN_ARENA_KEYS: Final = ("gpu_mem_limit", "arena_extend_strategy")
"""Provider options that shape the arena of each session: who sets them gets such arenas."""

_arena_lock = threading.Lock()
_arenas: dict[tuple[int, int], bool] = {}
"""By process and device, whether there is an arena of ours."""


def register_arena(index: int) -> bool:
    """Register the arena that the sessions on a device share, if that has not been done; whether it is there.

    ONNX Runtime before 1.23 refuses a second arena for a device: then a caller's is there, and stays. Later releases
    replace it, and have no way to ask.

    Args:
        index: The device's number.
    """
    import onnxruntime as ort

    with _arena_lock:
        key = (os.getpid(), index)
        if key not in _arenas:
            where = ort.OrtMemoryInfo("Cuda", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, index, ort.OrtMemType.DEFAULT)
            try:
                with GATE:
                    ort.create_and_register_allocator_v2(
                        CUDA, where, {"device_id": str(index)}, ort.OrtArenaCfg(0, -1, -1, -1)
                    )
            except Exception:  # whatever ONNX Runtime raises: each session has its own
                _arenas[key] = False
            else:
                _arenas[key] = True
        return _arenas[key]


STREAM_KEY: Final = "user_compute_stream"
"""The provider option that says on which stream a session runs."""

NO_WAITING: Final = "disable_synchronize_execution_providers"
"""The run option of a run that does not wait for the device."""

_FOREIGN_ALLOCATOR: Final = "gpu_external_alloc"  # ONNX Runtime refuses it together with a stream

_HOST_MEMORIES: Final = frozenset({"cpu", "cudapinned"})


class OwnStream:
    """A stream that is not the caller's: it is destroyed with the last that holds this object.

    Args:
        driver: The device's driver.

    Attributes:
        handle: The stream.
    """

    def __init__(self, driver: Driver) -> None:
        self.handle = driver.create_stream()
        finalizer = weakref.finalize(self, unless_forked, os.getpid(), driver.destroy_stream, self.handle)
        finalizer.atexit = False  # the driver may be gone before


_opening = threading.Lock()
_shared: weakref.WeakValueDictionary[tuple[int, int], OwnStream] = weakref.WeakValueDictionary()
"""By process and device, the stream of all plans that share an arena."""


class CudaDevice:
    """A session's share of a CUDA device.

    Args:
        index: The device's number.
        counters: Where copies and waits are counted.
        timeline: Where copies are recorded, None for nowhere.
        driver: What copies on a stream, None if there is no stream.
        stream: The stream of all sessions, None if each has one of its own.
        ours: What keeps the stream, if it is not the caller's.
        shares: Whether the sessions share an arena, which other plans on the stream have too.

    Attributes:
        index: The device's number.
        stream: The stream of all sessions.
        turn: Held while something is put on the stream: what belongs together stays together.
        waits: Whether every run waits for its end.
    """

    def __init__(
        self,
        index: int,
        counters: Counters,
        timeline: Timeline | None = None,
        driver: Driver | None = None,
        stream: int | None = None,
        *,
        ours: OwnStream | None = None,
        shares: bool = False,
    ) -> None:
        import onnxruntime

        self.index = index
        self.stream = stream
        self.turn = Turn(GATE)
        self.waits = ours is None
        self._ours = ours
        self._shares = shares
        self._counters = counters
        self._timeline = timeline
        self._driver = driver
        self._kept: list[NativeValue] = []
        # Memory of the process's allocator: what others get of it is not ordered by our stream. Results of runs are
        # of the sessions' allocators, which only this stream uses.
        self._allocated: weakref.WeakSet[NativeValue] = weakref.WeakSet()
        self._tensor = value_class()
        self._unwaiting = onnxruntime.RunOptions()
        self._unwaiting.add_run_config_entry(NO_WAITING, "1")
        self.default_options = onnxruntime.RunOptions()

    # Sessions

    def session_options(self) -> dict[str, str]:
        """Provider options of every session on the device, besides the caller's."""
        return {} if self.waits else {STREAM_KEY: str(self.stream)}

    def shares_memory(self) -> bool:
        """Whether a session may take its memory from the arena that all share."""
        return self._shares and register_arena(self.index)

    def making_shared(self) -> contextlib.AbstractContextManager[None]:
        """Around the making of a session that takes its memory from the arena that all share.

        ONNX Runtime fills in weights on the default stream: in memory that has been given back, though what has been
        started may still read there. It waits for the device before, in the provider's constructor; and nothing may be
        started until it is done.
        """
        return GATE.alone()

    def outlives(self, session: NativeSession) -> None:
        """Keep the stream as long as a session of ONNX Runtime lives."""
        weakref.finalize(session, _keep, self).atexit = False

    def at_host(self, memories: Sequence[str] | None) -> frozenset[int] | None:
        """Which inputs or outputs of a session are in the host's memory (shapes, counts, conditions).

        Args:
            memories: The names of their memories, or None if ONNX Runtime does not tell: then nobody knows.
        """
        if memories is None:
            return None
        return frozenset(i for i, memory in enumerate(memories) if memory.lower() in _HOST_MEMORIES)

    # Values

    def place_of(self, name: str) -> NativeDevice:
        """ONNX Runtime's C++ object for ``cpu``, or for this device: ``cuda``."""
        return native_device(name, self.index if name == "cuda" else 0)

    def is_resident(self, value: Any) -> TypeGuard[NativeValue]:
        """Whether a value of a plan is a tensor on a device."""
        if not isinstance(value, self._tensor) or not value.has_value() or not value.is_tensor():
            return False
        return bool(value.device_name().lower() != "cpu")

    def stand_in(self, value: Any) -> Any:
        """For an ``onnxruntime.OrtValue`` on a device one in the host's memory, with any content; others as they are.

        ONNX Runtime's sessions that know no device look at the type and the sizes of it.
        """
        inner = native_value(value)
        return type(value)(self._host_tensor(inner)) if self.is_resident(inner) else value

    def allocate(self, shape: Sequence[int], element_type: int) -> NativeValue:
        """A tensor on the device, with any content."""
        with GATE:
            tensor = self._tensor.ortvalue_from_shape_and_onnx_type(list(shape), element_type, self.place_of("cuda"))
        if not self.waits:
            self._allocated.add(tensor)
        return tensor

    def received(self, values: Sequence[NativeValue], places: Sequence[str]) -> Sequence[NativeValue]:
        """The results of a run, each left where it was wanted."""
        return values

    def upload(self, value: Any, name: str) -> Any:
        """A copy of a tensor on the device; a value that is there, or is no tensor of numbers, as it is."""
        if not holds_numbers(value) or self.is_resident(value):
            return value
        with self._copying(value, name):
            copy = self.allocate(value.shape(), value.element_type())
            with self.turn:
                self.fill([copy], [value])
        return copy

    def download(self, value: Any, name: str) -> Any:
        """A copy of a tensor in the host's memory, which waits for it; a value that is there as it is."""
        if not self.is_resident(value):
            return value
        with self._copying(value, name):
            with self.turn:
                copy = self.fetch(value)
            self.settle()
        return copy

    def fetch(self, value: NativeValue) -> NativeValue:
        """A tensor in the host's memory that holds what one on the device does, after `settle`; hold the turn."""
        if self._driver is None or self.stream is None:
            if not has_no_array(value.data_type()):
                copy: NativeValue = to_ort(np.array(value.numpy()))
                return copy
            target = self._host_tensor(value)
            self._copy_without_stream(target, value)
            return target
        target = self._host_tensor(value)
        nbytes = nbytes_of(value)
        if nbytes:
            with _failures():
                self._driver.copy_to_host(target.data_ptr(), value.data_ptr(), nbytes, self.stream)
        return target

    def settle(self) -> None:
        """Wait until what was fetched is there."""
        if self._driver is not None and self.stream is not None:
            self._wait(self.stream)

    def accept(self, values: Sequence[Any]) -> None:
        """Wait for what a caller has put on the default stream, where it gives values on the device.

        Our stream would not: their contents may still be on the way. Without a stream of ours ONNX Runtime's order
        holds, in which the caller waits.
        """
        if not self.waits and any(self.is_resident(value) for value in values):
            self._wait(DEFAULT_STREAM)

    def fill(self, targets: Sequence[NativeValue], sources: Sequence[NativeValue]) -> None:
        """Copy tensors into others on the device, of the same types and sizes; hold the turn."""
        if self._driver is None or self.stream is None:
            for target, source in zip(targets, sources, strict=True):
                self._copy_without_stream(target, source)
            return
        there: list[Copy] = []
        here: list[Copy] = []
        for target, source in zip(targets, sources, strict=True):
            nbytes = nbytes_of(source)
            if nbytes:
                copies = there if self.is_resident(source) else here
                copies.append((target.data_ptr(), source.data_ptr(), nbytes))
        with _failures():
            if there:
                self._driver.copy(there, self.stream)
            if here:
                self._driver.copy_to_device(here, self.stream)
        if not self.waits:
            self._kept.extend(sources)
        elif there or here:
            self._wait(self.stream)

    def _copy_without_stream(self, target: NativeValue, source: NativeValue) -> None:
        """Copy a tensor into another of its type and sizes by ONNX Runtime, which waits for it."""
        if not nbytes_of(source):
            return
        has_array = not has_no_array(source.data_type())
        if copies_from_values() and (self.is_resident(source) or not has_array):
            target.update_inplace(source)
        elif has_array:
            target.update_inplace(source.numpy())  # by way of the host, where it is on the device
        else:
            array = self._bytes_of(source).numpy()
            self._bytes_of(target).update_inplace(array)

    def _bytes_of(self, value: NativeValue) -> NativeValue:
        return byte_view(value, self.index if self.is_resident(value) else 0)

    def crossed(self, values: Sequence[NativeValue]) -> None:
        """Count copies that ONNX Runtime makes by itself."""
        if values:
            self._counters.copied(len(values), sum(map(nbytes_of, values)))

    # Order

    def run_options(self, options: onnxruntime.RunOptions, *, waits: bool) -> onnxruntime.RunOptions:
        """The run options of a group.

        Args:
            options: Those of the call. A caller's own are used as they are.
            waits: Whether the group leaves something in the host's memory.
        """
        return self._unwaiting if options is self.default_options and not (waits or self.waits) else options

    def keep(self, values: Sequence[NativeValue]) -> None:
        """Keep what a run that is not waited for may still read, until `synchronize`; hold the turn."""
        if not self.waits:
            self._kept.extend(value for value in values if not self.is_resident(value) or value in self._allocated)

    def synchronize(self) -> None:
        """Wait for all that has been started; what was kept for it is given back."""
        if self.waits:
            return
        with self.turn:
            kept, self._kept = self._kept, []
        assert self.stream is not None
        self._wait(self.stream)
        del kept

    def _wait(self, stream: int) -> None:
        assert self._driver is not None
        with GATE, _failures():
            self._driver.synchronize(stream)
        self._counters.add("synchronizations")

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While a CUDA graph is captured nothing else may use CUDA (`ortopt.runtime.cuda.capture_gate`).

        A capture that failed would leave the stream in it, and everything after it would fail too.
        """
        with GATE.alone(), self.turn:
            try:
                yield
            except BaseException:
                if self._driver is not None and self.stream is not None:
                    self._driver.end_capture(self.stream)
                raise

    # Copies

    @contextlib.contextmanager
    def _copying(self, value: NativeValue, name: str) -> Iterator[None]:
        nbytes = nbytes_of(value)
        with span(self._timeline, "copy", name, bytes=nbytes):
            yield
        self._counters.copied(1, nbytes)

    def _host_tensor(self, value: NativeValue) -> NativeValue:
        return self._tensor.ortvalue_from_shape_and_onnx_type(
            list(value.shape()), value.element_type(), native_device("cpu")
        )


def open_device(
    options: Mapping[str, Any], counters: Counters, timeline: Timeline | None, *, watched: bool, allocators: str | None
) -> tuple[CudaDevice, str]:
    """A session's share of the device that the caller chose, and why it has no stream of its own (or ``""``).

    Args:
        options: The caller's options of the CUDA provider.
        counters: Where copies and waits are counted.
        timeline: Where copies are recorded.
        watched: Whether something is done around every run of a group: then all of them wait.
        allocators: What the caller says of the environment's allocators: with 1 sessions of theirs may have the same,
            on other streams; with 0 each session has its own.

    Raises:
        UsageError: An option is no number.
    """
    index = _number(options, "device_id")
    stream = _number(options, STREAM_KEY)
    try:
        driver = Driver(index)
        if stream:
            return CudaDevice(index, counters, timeline, driver, stream), ""
        if watched:
            return CudaDevice(index, counters, timeline), ""
        if _number(options, _FOREIGN_ALLOCATOR):
            return CudaDevice(index, counters, timeline), f"{_FOREIGN_ALLOCATOR} allows no stream of our own"
        if allocators == "1":
            return CudaDevice(index, counters, timeline), "session.use_env_allocators shares memory with other streams"
        shares = not allocators and not any(key in options for key in OWN_ARENA_KEYS)
        ours = _shared_stream(index, driver) if shares else OwnStream(driver)
        return CudaDevice(index, counters, timeline, driver, ours.handle, ours=ours, shares=shares), ""
    except OSError as error:
        return CudaDevice(index, counters, timeline), one_line(error)


def _shared_stream(index: int, driver: Driver) -> OwnStream:
    """The stream of all plans of this process on a device."""
    with _opening:
        key = (os.getpid(), index)
        stream = _shared.get(key)
        if stream is None:
            stream = _shared[key] = OwnStream(driver)
        return stream


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """The driver's errors are ONNX Runtime's of a provider that fails in a run: another one may take over."""
    try:
        yield
    except OSError as error:
        raise provider_failure()(str(error)) from error


def _number(options: Mapping[str, Any], name: str) -> int:
    text = str(options.get(name, "0") or "0")
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"the option {name} of {CUDA} must be a number, not {text!r}") from None


def _keep(_: CudaDevice) -> None:
    """Nothing: a finalizer that refers to it keeps the device."""
