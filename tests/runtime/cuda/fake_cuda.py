"""A CUDA device that is none: what the runtime does with a device is done for real, in the host's memory, and noted.

Sessions "on CUDA" run on the CPU provider; values on the device are told from others by a list; the driver copies with
memmove and notes every call. What is copied to the host is only there after a wait, as on a device: who reads it
before reads rubbish. Runs with a CUDA graph must be bound, runs with changing addresses must not be captured. A replay
overwrites what the session has given since in runs without a graph. While one thread captures, what others do with the
device is noted as breaking the capture, as CUDA would have it. Arenas and the handles that ONNX Runtime makes for each
thread are counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from ortopt.analysis.providers import CPU, CUDA
from ortopt.runtime import session_factory
from ortopt.runtime.cuda import device as cuda_device
from ortopt.runtime.cuda.device import NO_WAITING, STREAM_KEY, CudaDevice
from ortopt.runtime.cuda.driver import DEFAULT_STREAM, Copy
from ortopt.runtime.execution import session_maker
from ortopt.runtime.execution.arena import ENTRY
from ortopt.runtime.onnxruntime_internals import native, native_device, tells_memories
from ortopt.runtime.specialization.cuda_graphs import GRAPH_KEY
from ortopt.runtime.values.tensors import elements


class Driver:
    """Notes what is put on streams; a stream is idle once it has been waited for."""

    def __init__(self, index: int, log: Log) -> None:
        self.index = index
        self.log = log
        self._streams = itertools.count(0x1000)
        self._lock = threading.Lock()
        self._arriving: list[tuple[int, bytes]] = []

    def create_stream(self) -> int:
        if self.log.no_stream:
            raise OSError("the NVIDIA driver answers cuStreamCreate with error 2")
        self.log.streams += 1
        return next(self._streams)

    def destroy_stream(self, stream: int) -> None:
        self.log.add("destroy", stream)

    def synchronize(self, stream: int) -> None:
        self.log.touch("wait")
        if stream == DEFAULT_STREAM:
            self.log.add("wait for default")
            return
        self.log.pending = 0
        self.log.add("wait", stream)
        self.log.alive.append(len(self.log.allocated))
        # Under the lock: another thread that waits may return only when what it fetched is there, and may free it then.
        with self._lock:
            for target, content in self._arriving:
                ctypes.memmove(target, content, len(content))
            self._arriving.clear()

    def copy(self, copies: Sequence[Copy], stream: int) -> None:
        for one in copies:
            self._copy("on device", *one)

    def copy_to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.log.touch("copy")
        self.log.pending += 1
        self.log.add("download", nbytes)
        ctypes.memset(target, 0xCD, nbytes)
        with self._lock:
            self._arriving.append((target, ctypes.string_at(source, nbytes)))

    def copy_to_device(self, copies: Sequence[Copy], stream: int) -> None:
        for one in copies:
            self._copy("upload", *one)

    def end_capture(self, stream: int) -> bool:
        self.log.add("end capture", stream)
        return True

    def _copy(self, kind: str, target: int, source: int, nbytes: int) -> None:
        self.log.touch("copy")
        self.log.pending += 1
        self.log.add(kind, nbytes)
        ctypes.memmove(target, source, nbytes)


class Log:
    """What happened, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.sessions: list[Session] = []
        self.devices: list[CudaDevice] = []
        self.streams = 0
        self.pending = 0
        self.no_stream = False
        self.no_arena = False
        """Whether ONNX Runtime refuses an arena for all."""
        self.arenas: set[int] = set()
        """The devices for which one has been registered."""
        self.is_old = False
        """Whether sessions do not tell where inputs and outputs are: before 1.23."""
        self.pinned: set[str] = set()
        """Names of inputs and outputs of sessions that are in the host's memory."""
        self.uncapturable: dict[str, str] = {}
        """What ONNX Runtime says of groups with these ops: when the session is made, or (``run: ...``) in the run."""
        self.resident: weakref.WeakSet[Any] = weakref.WeakSet()
        self.allocated: weakref.WeakSet[Any] = weakref.WeakSet()
        self.alive: list[int] = []
        """How many tensors of the process's allocator were alive at each wait."""
        self.inside = 0
        self.overlaps = 0
        self.capturing: int | None = None
        """The thread that captures, or makes a session on memory that others share."""
        self.broken: list[str] = []
        """What other threads did meanwhile."""
        self.while_capturing: Callable[[], object] = lambda: None
        self.while_making: Callable[[], object] = lambda: None

    def add(self, kind: str, detail: Any = None) -> None:
        self.events.append((kind, detail))

    def touch(self, what: str) -> None:
        """Something of which CUDA says that no other thread may do it during a capture in the global mode."""
        if self.capturing not in (None, threading.get_ident()):
            self.broken.append(what)

    def kinds(self) -> list[str]:
        """The kinds of all events so far, which are forgotten."""
        found = [kind for kind, _ in self.events]
        self.events.clear()
        return found

    def of(self, kind: str) -> list[Any]:
        return [detail for one, detail in self.events if one == kind]


class Device(CudaDevice):
    """A device whose memory is the host's."""

    log: Log

    def is_resident(self, value: Any) -> bool:
        return isinstance(value, self._tensor) and value in self.log.resident

    def place_of(self, name: str) -> Any:
        if name == "cuda":
            self.log.touch("allocation")
        return native_device("cpu")

    def allocate(self, shape: Sequence[int], element_type: int) -> Any:
        found = super().allocate(shape, element_type)
        self.log.resident.add(found)
        self.log.allocated.add(found)
        return found

    def received(self, values: Sequence[Any], places: Sequence[str]) -> Sequence[Any]:
        own = []
        for value, place in zip(values, places, strict=True):
            alone = native().OrtValueVector()
            alone.push_back(value)
            own.append(alone[0])
            if place == "cuda":
                self.log.resident.add(own[-1])
        return own


class Memory:
    """Where an input of a session is wanted, or an output put."""

    def __init__(self, name: str) -> None:
        self.name = name


class Contexts:
    """The handles of cuBLAS and cuDNN of one session: ONNX Runtime makes them for each thread that runs it.

    With graphs a thread's stay; without, a run gives its own back, and the next run of any thread takes them. Those of
    the thread that makes the session are there from the beginning, as it has a stream that it was given.
    """

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._mine = threading.local()
        self._retired = 0
        self.count = 0
        self._take()

    def run(self) -> None:
        if not getattr(self._mine, "has", False):
            self._take()
        if not self._keeps:
            self._mine.has = False
            self._retired += 1

    def _take(self) -> None:
        self._mine.has = True
        if self._retired:
            self._retired -= 1
        else:
            self.count += 1


class Session:
    """ONNX Runtime's C++ session on the CPU, in the place of one on CUDA."""

    def __init__(self, real: Any, options: Mapping[str, str], ops: set[str], log: Log) -> None:
        self._real = real
        self.options = dict(options)
        self._log = log
        self._ops = ops
        self._captured = threading.local()
        self._arena: list[Any] = []
        self._has_graph = False
        self.has_arena = True
        self.contexts = Contexts(keeps="enable_cuda_graph" in options)

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_meminfos"):  # an old one
            raise AttributeError(name)
        return getattr(self._real, name)

    @property
    def input_meminfos(self) -> list[Memory]:
        return self._memories(self._real.inputs_meta, "Cpu")

    @property
    def output_meminfos(self) -> list[Memory]:
        return self._memories(self._real.outputs_meta, "CudaPinned")

    def _memories(self, arguments: Sequence[Any], at_host: str) -> list[Memory]:
        if self._log.is_old:
            raise AttributeError("meminfos")
        return [Memory(at_host if one.name in self._log.pinned else "Cuda") for one in arguments]

    @contextlib.contextmanager
    def _running(self, options: Any) -> Iterator[None]:
        log = self._log
        log.touch("run")
        self.contexts.run()
        log.inside += 1
        log.overlaps += log.inside > 1
        try:
            yield
        finally:
            log.inside -= 1
            if _entry(options, NO_WAITING) == "1" and STREAM_KEY in self.options:
                log.pending += 1
            else:
                log.pending = 0

    def run_with_ortvaluevector(
        self, options: Any, feed_names: Any, feeds: Any, fetch_names: Any, fetches: Any, places: Any
    ) -> None:
        if "enable_cuda_graph" in self.options:
            assert _entry(options, GRAPH_KEY) == "-1", "a run with changing addresses would be captured"
        self._log.add("run", _entry(options, NO_WAITING) == "1")
        with self._running(options):
            self._real.run_with_ortvaluevector(options, feed_names, feeds, fetch_names, fetches, places)
        if self._has_graph:
            self._arena.extend(elements(fetches))

    def run_with_ort_values(self, feeds: Any, fetch_names: Any, options: Any) -> Any:
        self._log.add("run", _entry(options, NO_WAITING) == "1")
        with self._running(options):
            return self._real.run_with_ort_values(feeds, fetch_names, options)

    def run(self, fetch_names: Any, feeds: Any, options: Any) -> Any:
        self._log.add("run", _entry(options, NO_WAITING) == "1")
        with self._running(options):
            return self._real.run(fetch_names, feeds, options)

    def _scribble(self) -> None:
        """A graph's intermediate values are where the arena had room when it was captured, and has put others since."""
        for value in self._arena:
            ctypes.memset(value.data_ptr(), 0xEE, value.tensor_size_in_bytes())
        self._arena.clear()

    def run_with_iobinding(self, bound: Any, options: Any) -> None:
        number = _entry(options, GRAPH_KEY)
        known = self._captured.__dict__.setdefault("numbers", set())
        if number in known:
            self._log.add("replay", number)
            self._scribble()
            with self._running(options):
                self._real.run_with_iobinding(bound, options)
            return
        for op, reason in self._log.uncapturable.items():
            if op in self._ops and reason.startswith("run: "):
                raise RuntimeError(reason.removeprefix("run: "))
        known.add(number)
        self._has_graph = True
        self._log.add("capture", number)
        self._log.capturing = threading.get_ident()
        try:
            self._log.while_capturing()
            with self._running(options):
                self._real.run_with_iobinding(bound, options)
        finally:
            self._log.capturing = None


def _entry(options: Any, key: str) -> str:
    try:
        return str(options.get_run_config_entry(key))
    except RuntimeError:
        return ""


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Log:
    """CUDA "works" here; what is done with it is noted."""
    import onnx

    if not tells_memories():
        pytest.skip("values stay on the GPU between groups from ONNX Runtime 1.23 on")

    log = Log()
    make = session_maker.SessionMaker.make

    def made(self: Any, placed: Any, providers: Sequence[str], **arguments: Any) -> Any:
        if CUDA not in providers:
            return make(self, placed, providers, **arguments)
        graph = "enable_cuda_graph" in (arguments.get("provider_options") or {}).get(CUDA, {})
        foreign = arguments.get("foreign", False)
        entries = self._entries(placed, providers, arguments["threads"], foreign=foreign, captures=graph)
        with self._making(providers, entries):
            log.capturing = threading.get_ident() if ENTRY in entries else log.capturing
            try:
                log.while_making()
                return on_cuda(self, placed, ENTRY in entries, **arguments)
            finally:
                log.capturing = None if ENTRY in entries else log.capturing

    def registered(index: int) -> bool:
        log.arenas.add(index)
        return not log.no_arena

    def on_cuda(self: Any, placed: Any, shares: bool, **arguments: Any) -> Session:
        log.touch("session")
        model = onnx.load_from_string(placed.model)
        ops = {node.op_type for node in model.graph.node}
        options = {**self.provider_options.get(CUDA, {}), **self.device.session_options()}
        options.update((arguments.pop("provider_options", None) or {}).get(CUDA, {}))
        for op, reason in log.uncapturable.items():
            if op in ops and "enable_cuda_graph" in options and not reason.startswith("run: "):
                raise RuntimeError(reason)
        found = Session(make(self, placed, (CPU,), **arguments), options, ops, log)
        found.has_arena = not shares
        self.device.outlives(found)
        log.sessions.append(found)
        return found

    def opened(index: int, *arguments: Any, **named: Any) -> Device:
        found = Device(index, *arguments, **named)
        found.log = log
        log.devices.append(found)
        return found

    own_binding = native().SessionIOBinding
    monkeypatch.setattr(session_maker.SessionMaker, "make", made)
    monkeypatch.setattr(cuda_device, "register_arena", registered)
    monkeypatch.setattr(cuda_device, "_shared", weakref.WeakValueDictionary())
    monkeypatch.setattr(session_factory, "usable", lambda name: (True, "ok"))
    monkeypatch.setattr(cuda_device, "CudaDevice", opened)
    monkeypatch.setattr(cuda_device, "Driver", lambda index: Driver(index, log))
    monkeypatch.setattr(native(), "SessionIOBinding", lambda one: own_binding(getattr(one, "_real", one)))
    return log
