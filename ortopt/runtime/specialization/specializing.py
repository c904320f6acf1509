"""Executables for one argument specification: sizes fixed, arguments that never changed folded in, under a guard.

A group counts how often it has been called with each specification (the dtype and shape of every argument). From the
n-th time on, calls with that specification are run by an executable of its own: ortopt optimizes the group with the
sizes fixed, and ONNX Runtime makes a session of the result. Small arguments that were the same bytes all n times
(axes, shape vectors, scalars, conditions) can be folded in as constants; every call compares them, and one that
differs is run by the general session and counted. Nothing is specialised without such a profile.

Optimized group models on disk, from one process to the next.

A file is named by what it was made from, is written under another name and renamed, and begins with the checksum of its
contents: processes that write the same do not disturb each other, and a damaged file is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx_ir as ir

from ortopt.analysis.providers import CPU, CUDA
from ortopt.errors import InvalidModelError, OutputError
from ortopt.runtime.execution.executables import Executable
from ortopt.runtime.execution.group_runner import GroupContext, GroupRunner
from ortopt.runtime.execution.group_spec import GroupSpec, Specialization, Specification, SpecLibrary
from ortopt.runtime.execution.weights import held_bytes
from ortopt.runtime.instruments import Counters
from ortopt.runtime.specialization.optimized_group import LEVEL, optimized
from ortopt.runtime.values.containers import to_numpy
from ortopt.runtime.values.tensors import type_text
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.system.files import write_atomically
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    import onnxruntime


_MAGIC: Final = b"ortopt group 1\n"
_DIGEST_BYTES: Final = 32


class ModelCache:
    """A folder of optimized group models, from one process to the next; it may be deleted at any time.

    Args:
        path: The folder, made if it is not there.
        counters: Where hits and damaged files are counted.
    """

    def __init__(self, path: str | os.PathLike[str], counters: Counters) -> None:
        self._path = Path(path)
        self._counters = counters

    def get(self, key: str) -> ir.Model | None:
        """A model by its key, or None if there is none that is whole."""
        path = self._file(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        body = content[start:]
        if content[: len(_MAGIC)] == _MAGIC and hashlib.sha256(body).digest() == content[len(_MAGIC) : start]:
            with contextlib.suppress(InvalidModelError):
                model = load(body, checked=False)
                self._counters.add("restored")
                return model
        self._counters.add("discarded")
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def put(self, key: str, model: ir.Model) -> None:
        """Keep a model; one that cannot be written is not kept, and no error is raised."""
        try:
            body = to_bytes(model)
            self._path.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file(key), _MAGIC + hashlib.sha256(body).digest() + body)
        except (OSError, OutputError):
            return
        self._counters.add("stored")

    def _file(self, key: str) -> Path:
        return self._path / f"{key}.ortopt"


_MAX_COUNTED: Final = 1024
_LARGEST_CONSTANT: Final = 64  # elements
_SESSION_BYTES: Final = 256 << 10  # an estimate of what a session takes apart from its weights
_FAILURES_UNTIL_GENERAL: Final = 8
_MORE_CALLS_EACH_TIME: Final = 4
"""How many times as often as before a specification must be seen after its executable was dropped."""


@dataclass(frozen=True, slots=True)
class SpecializationPolicy:
    """When groups are specialised, and how.

    Attributes:
        after: How often a specification must have been seen.
        constants: Whether small arguments that never changed are folded in.
        cuda_graphs: Whether executables on CUDA are captured as CUDA graphs.
        folder: Where optimized models are kept from one process to the next; None keeps none.
    """

    after: int
    constants: bool = False
    cuda_graphs: bool = False
    folder: str | os.PathLike[str] | None = None


@dataclass(slots=True)
class _Profile:
    """What has been seen of one specification.

    Attributes:
        begun: When counting began, as the cache's clock has it.
        made: How many executables there have been for it.
        count: How many calls.
        constant: Arguments that were the same in all of them, with their bytes.
    """

    begun: int
    made: int = 0
    count: int = 0
    constant: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _Specialized:
    """An executable for one specification.

    Attributes:
        executable: What runs it; None if none could be made, so that it is not tried again.
        varying: The arguments that it takes.
        guarded: The arguments that were folded in, with the bytes that they must have.
        failures: How often the guard has failed.
        runs_here: Whether the calling thread may run it with these values; None if all threads may.
    """

    executable: Executable | None
    varying: tuple[int, ...] = ()
    guarded: tuple[tuple[int, bytes], ...] = ()
    failures: int = 0
    runs_here: Callable[[list[Any]], bool] | None = None


class SpecializingExecutable:
    """An executable that counts argument specifications, and makes executables for those that come again.

    Args:
        policy: When groups are specialised, and how.
        group: The group.
        context: What all groups share.
        general: What runs all other specifications.
    """

    def __init__(
        self, policy: SpecializationPolicy, group: GroupRunner, context: GroupContext, general: Executable
    ) -> None:
        self._group = group
        self._context = context
        self._policy = policy
        self._general = general
        self._lock = threading.Lock()
        self._profiles: OrderedDict[Specification, _Profile] = OrderedDict()
        self._folder = None if policy.folder is None else ModelCache(policy.folder, context.counters)
        self._unguarded: set[Specification] = set()
        self._nbytes = self._bytes_of(group.spec)  # of one executable: until one is made, a guess
        self._is_measured = False
        self._is_counted = policy.after == 1  # the first call waited for the general executable, which is one miss

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Run the executable that holds for these values."""
        specification = tuple((value.element_type(), *value.shape()) for value in values)
        version: _Specialized | None = self._context.cache.get((id(self), specification))
        if version is None:
            if not self._is_due(specification, values):
                return self._general(values, options)
            version = self._context.cache.get_or_make(
                (id(self), specification), lambda: self._specialize(specification, values, options)
            )
        if version.executable is None:
            return self._general(values, options)
        for i, expected in version.guarded:
            if self._content(values[i]) != expected:
                self._guard_failed(specification, version)
                return self._general(values, options)
        varying = [values[i] for i in version.varying]
        if version.runs_here is not None and not version.runs_here(varying):
            return self._general(values, options)
        self._context.counters.add("specialized_runs")
        return version.executable(varying, options)

    def specializations(self) -> list[Specialization]:
        """What there are executables for, the one that was used last first: sizes, and arguments folded in."""
        return [
            (key[1], version.guarded)
            for key, version in reversed(self._context.cache.items())
            if key[0] == id(self) and version.executable is not None
        ]

    def _is_due(self, specification: Specification, values: list[Any]) -> bool:
        """Count a call; whether its specification has been seen often enough, and there is room for it.

        Where all that is there is in use, as where one call needs more than the cache holds, nothing is dropped for it:
        it would be dropped in turn, and made anew in each call. What comes back after it was dropped must be seen more
        often each time, so that sizes that change at random do not push out one another for ever.
        """
        cache = self._context.cache
        with self._lock:
            profile = self._profiles.get(specification)
            if profile is None or not profile.count:
                profile = self._new_profile(specification, values, 0 if profile is None else profile.made)
            else:
                self._profiles.move_to_end(specification)
                for i in [i for i, seen in profile.constant.items() if self._content(values[i]) != seen]:
                    del profile.constant[i]
            profile.count += 1
            if profile.count < self._policy.after * _MORE_CALLS_EACH_TIME**profile.made:
                return False
            if cache.admits(self._nbytes, profile.begun):
                return True
            profile.count = 0  # from now on what is there may turn out to be no longer in use
        self._context.tell_once(
            f"not all groups are specialised: the cache is full of versions in use (cache_entries={cache.max_entries},"
            f" cache_bytes={cache.max_bytes})"
        )
        return False

    def _new_profile(self, specification: Specification, values: Sequence[Any], made: int) -> _Profile:
        """Begin to count a specification."""
        profile = self._profiles[specification] = _Profile(self._context.cache.clock, made)
        self._profiles.move_to_end(specification)
        if self._policy.constants and specification not in self._unguarded:
            folded = [i for i, value in enumerate(values) if self._may_fold(value)]
            profile.constant = {i: self._content(values[i]) for i in folded}
        if len(self._profiles) > _MAX_COUNTED:
            self._profiles.popitem(last=False)
        return profile

    def _may_fold(self, value: Any) -> bool:
        """Whether an argument is small enough to be compared at every call: integers, booleans, single numbers."""
        device = self._context.device
        if device is not None and device.is_resident(value):
            return False
        count = int(np.prod(value.shape(), dtype=np.int64))
        dtype = ir.DataType(value.element_type())
        return count == 1 or (count <= _LARGEST_CONSTANT and (dtype.is_integer() or dtype == ir.DataType.BOOL))

    def _content(self, value: Any) -> bytes:
        device = self._context.device
        at_host = value if device is None else device.download(value, f"guard of {self._group.spec.name}")
        return bytes(np.asarray(to_numpy(at_host)).tobytes())

    def _guard_failed(self, specification: Specification, version: _Specialized) -> None:
        """Count it; what fails again and again is specialised anew, in its sizes alone."""
        counters = self._context.counters
        counters.add("guard_failures")
        if self._context.timeline is not None:
            self._context.timeline.mark("guard failure", group=self._group.spec.name)
        with self._lock:
            version.failures += 1
            if version.failures < _FAILURES_UNTIL_GENERAL or specification in self._unguarded:
                return
            self._unguarded.add(specification)
            self._profiles.pop(specification, None)
        self._context.cache.drop((id(self), specification))

    def _specialize(
        self, specification: Specification, values: list[Any], options: onnxruntime.RunOptions
    ) -> tuple[_Specialized, int]:
        """Make an executable, and say how many bytes it takes."""
        context, group = self._context, self._group
        with self._lock:
            profile = self._profiles.get(specification) or _Profile(0)
            self._profiles[specification] = _Profile(0, profile.made + 1)
        guarded = tuple(sorted(profile.constant.items()))
        if self._is_counted:
            self._is_counted = False
        else:
            context.counters.missed()
        try:
            spec = self._spec(specification, guarded)
            provider = group.provider or CPU
            gone = {i for i, _ in guarded}
            varying = tuple(i for i in range(len(values)) if i not in gone)
            executable = self._session(spec, provider, specification, [values[i] for i in varying], options)
        except Exception as error:  # whatever ONNX Runtime raises, or a pass: the general session is there
            context.tell(f"group {group.spec.name} is not specialised: {one_line(error)}")
            return _Specialized(None), 0
        context.counters.add("compiles")
        context.counters.add("specializations")
        nbytes = self._bytes_of(spec) + getattr(executable, "nbytes", 0)
        self._nbytes = nbytes if not self._is_measured else max(self._nbytes, nbytes)
        self._is_measured = True
        version = _Specialized(executable, varying, guarded, runs_here=getattr(executable, "captured_here", None))
        return version, nbytes

    def _bytes_of(self, spec: GroupSpec) -> int:
        """How many bytes an executable of the group, or of a variant of it, takes."""
        is_on_cpu = (self._group.provider or CPU) == CPU
        return (held_bytes(spec.nodes, spec.weights) if is_on_cpu else spec.weight_bytes) + _SESSION_BYTES

    def _session(
        self,
        spec: GroupSpec,
        provider: str,
        specification: Specification,
        values: list[Any],
        options: onnxruntime.RunOptions,
    ) -> Executable:
        group, context = self._group, self._context
        with context.span("compile", f"{spec.name} specialised", provider=provider, specification=str(specification)):
            if provider == CUDA and self._policy.cuda_graphs and context.device is not None:
                from ortopt.runtime.specialization.cuda_graphs import captured

                try:
                    return captured(group, context, spec, values, options)
                except Exception as error:  # whatever ONNX Runtime raises: a session without a graph does as well
                    context.tell(f"group {group.spec.name} is not captured as a CUDA graph: {one_line(error)}")
            session = group.new_session(spec, provider, "-specialized")
        return group.executable_of(session, provider, spec)

    def _spec(self, specification: Specification, guarded: Sequence[tuple[int, bytes]]) -> GroupSpec:
        """The group optimized for a specification, from disk if it is there."""
        key = self._key(specification, guarded)
        stored = None if self._folder is None else self._folder.get(key)
        if stored is None:
            stored = self._optimized(specification, guarded)
            if self._folder is not None:
                self._folder.put(key, stored)
        return spec_of(stored, self._group.spec.name)

    def _optimized(self, specification: Specification, guarded: Sequence[tuple[int, bytes]]) -> ir.Model:
        shapes = [list(sizes) for _, *sizes in specification]
        contents = {
            i: np.frombuffer(content, ir.DataType(specification[i][0]).numpy()).reshape(shapes[i])
            for i, content in guarded
        }
        types = [type_text(ir.DataType(kind)) for kind, *_ in specification]
        return optimized(self._group.spec, self._group.provider or CPU, shapes, contents, types)

    def _key(self, specification: Specification, guarded: Sequence[tuple[int, bytes]]) -> str:
        """What an optimized model depends on, as hexadecimal digits."""
        versions = [f"{name} {importlib.metadata.version(name)}" for name in ("onnx", "onnx-ir", "numpy")]
        import onnxruntime

        from ortopt._version import __version__

        parts = (
            self._group.spec.digest if self._folder is not None else "",
            specification,
            tuple(guarded),
            self._group.provider,
            LEVEL,
            __version__,
            onnxruntime.__version__,
            tuple(versions),
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def spec_of(model: ir.Model, name: str) -> GroupSpec:
    """The description of a whole model as a group."""
    library = SpecLibrary(model)
    graph = model.graph
    spec = library.of_nodes(name, list(graph), list(graph.inputs), list(graph.outputs))
    constants = {
        value.name or "": value.const_value
        for value in graph.outputs
        if value.producer() is None and not value.is_graph_input() and value.const_value is not None
    }
    return replace(spec, weights={**spec.weights, **constants})
