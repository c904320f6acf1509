"""A group at run time: compiled when it is first needed, on the first provider that can, else on the host."""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import onnx_ir as ir

from ortopt.analysis.providers import CPU, CUDA
from ortopt.errors import UsageError
from ortopt.runtime.execution import executables
from ortopt.runtime.execution.cache import Cache
from ortopt.runtime.execution.executables import Executable, HostExecutable
from ortopt.runtime.execution.group_spec import GroupSpec, Specialization
from ortopt.runtime.execution.session_maker import ProviderLeftOut, ProviderOptions, SessionMaker
from ortopt.runtime.execution.weights import place
from ortopt.runtime.instruments import Counters, Timeline, span
from ortopt.runtime.onnxruntime_internals import NativeSession
from ortopt.runtime.run_settings import RunSettings, RunType
from ortopt.runtime.values.containers import type_of
from ortopt.runtime.values.tensors import PLAIN, is_plain
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.cuda.device import CudaDevice

HOST: Final = "host"
"""Where a group runs that no provider takes."""


class GroupObserver(Protocol):
    """Something that is done around the compilation and the runs of every group: dumps, comparisons."""

    def before_compiling(self, spec: GroupSpec, label: str, types: Sequence[str]) -> None:
        """Called before a group is compiled.

        Args:
            spec: What the group computes.
            label: A name of this compilation.
            types: The types of its inputs at a run, where they are not known before.
        """

    def wrapped(self, group: GroupRunner, label: str, executable: Executable) -> Executable:
        """What is called in the place of an executable.

        Args:
            group: The group.
            label: A name of the executable.
            executable: What runs the group.
        """


class SpecializedExecutable(Protocol):
    """An executable that has versions of itself for some arguments."""

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions, /) -> Sequence[Any]:
        """Run it."""

    def specializations(self) -> list[Specialization]:
        """What there are versions for, the one that was used last first."""


Specializer = Callable[["GroupRunner", "GroupContext", Executable], SpecializedExecutable]
"""Makes an executable with versions of the general one of a group."""


@dataclass
class GroupContext:
    """What all groups of a session share.

    Attributes:
        settings: How groups are run.
        maker: Makes sessions.
        providers: The caller's execution providers, in order; those that work here.
        counters: The session's statistics.
        cache: Executables made for single argument specifications.
        host_ops: Users' own ops, subclasses of ``OpRun``.
        timeline: Where compiles and runs are recorded, None for nowhere.
        specializer: Makes an executable with versions of a general one, None if groups are not specialised.
        observers: What is done around every group, the innermost first.
        device: The CUDA device, None if the caller has none: then values are in the host's memory everywhere.
        falls_back: Whether a group that its provider cannot compile runs on another, or on the host.
        groups: The groups, in the order in which they were planned.
        off_cuda: The positions among them of those that stay off CUDA, as more are for it than may run there.
        told: What has been said and need not be said again.
    """

    settings: RunSettings
    maker: SessionMaker
    providers: tuple[str, ...]
    counters: Counters
    cache: Cache[Any]
    host_ops: tuple[type, ...] = ()
    timeline: Timeline | None = None
    specializer: Specializer | None = None
    observers: Sequence[GroupObserver] = ()
    device: CudaDevice | None = None
    falls_back: bool = True
    groups: list[GroupRunner] = field(default_factory=list)
    off_cuda: frozenset[int] = frozenset()
    told: set[str] = field(default_factory=set)

    def span(self, category: str, name: str, **details: Any) -> contextlib.AbstractContextManager[None]:
        """A span on the timeline, if there is one."""
        return span(self.timeline, category, name, **details)

    def tell(self, message: str) -> None:
        """Say that something was done otherwise than asked for, and count it."""
        self.counters.add("fallbacks")
        if self.timeline is not None:
            self.timeline.mark("fallback", reason=message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)

    def tell_once(self, message: str, about: str = "") -> None:
        """The same, of what many groups would say.

        Args:
            message: What is said.
            about: What it is about, where the groups would say it in different words.
        """
        if (about or message) not in self.told:
            self.told.add(about or message)
            self.tell(message)


class GroupRunner:
    """A group of a plan: calls its executable, which it compiles when there is none.

    Args:
        spec: What it computes.
        context: What all groups share.
        on_host: Whether no provider is asked.
        specializes: Whether it may be specialised; not what is special already.

    Attributes:
        spec: What it computes.
        threads: Intra-op threads of its sessions; None leaves the caller's setting. Set before the first run.
        devices: Where each output is left. Set before the first run.
        separate: Whether its outputs are freed at different times. Set before the first run.
        provider: Where it runs; None as long as it is not compiled.
    """

    def __init__(
        self, spec: GroupSpec, context: GroupContext, *, on_host: bool = False, specializes: bool = True
    ) -> None:
        self.spec = spec
        self.threads: int | None = None
        self.devices: tuple[str, ...] = ()
        self.separate = True
        self.provider: str | None = None
        self._context = context
        self._on_host = on_host or context.settings.run_type is RunType.HOST
        self._lock = threading.Lock()
        self._executable: Executable | None = None
        self._by_types: dict[tuple[str, ...], Executable] = {}
        self._sessions: list[NativeSession] = []
        self._specializes = specializes
        self._specialized: list[SpecializedExecutable] = []
        self._off = {CUDA} if len(context.groups) in context.off_cuda else set[str]()
        context.groups.append(self)

    @property
    def label(self) -> str:
        """Its name as part of a file's name."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", self.spec.name) or "group"

    @property
    def _dump_label(self) -> str:
        """The name of the file that it is dumped to: one for each types that it is called with."""
        return f"{self.label}-{len(self._by_types)}" if self._by_types else self.label

    @property
    def wanted_provider(self) -> str:
        """The provider that it is tried on first."""
        return HOST if self._on_host else self._chain()[0]

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Run it."""
        executable = self._executable
        if executable is None:
            executable = self._find(values)
        return executable(values, options)

    def _find(self, values: list[Any]) -> Executable:
        """The executable, compiled if there is none for the types of these values."""
        types = None if self.spec.typed else tuple(type_of(value) for value in values)
        if types is not None and (known := self._by_types.get(types)) is not None:
            return known
        with self._lock:
            known = self._executable if types is None else self._by_types.get(types)
            if known is not None:
                return known
            self._context.counters.missed()
            executable = self._complete(self.compile(types or ()), types or ())
            if types is None:
                self._executable = executable
            else:
                self._by_types[types] = executable
        return executable

    def _complete(self, general: Executable, types: Sequence[str]) -> Executable:
        """What is called instead of the general executable: the same, specialised, observed and recorded."""
        context = self._context
        executable = general
        if context.specializer is not None and self._can_specialize(types):
            specialized = context.specializer(self, context, general)
            self._specialized.append(specialized)
            executable = specialized
        for observer in context.observers:
            executable = observer.wrapped(self, self._dump_label, executable)
        if context.timeline is not None:
            executable = self._recorded(executable, context.timeline)
        return executable

    def _recorded(self, executable: Executable, timeline: Timeline) -> Executable:
        """An executable whose runs are on the timeline."""

        def run(values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
            with timeline.span("run", self.spec.name, provider=self.provider):
                return executable(values, options)

        return run

    def _can_specialize(self, types: Sequence[str]) -> bool:
        """Whether calls can be told apart by dtypes and sizes: the arguments are tensors of numbers, none is drawn."""
        if self.provider == HOST or self.spec.random or not self._specializes:
            return False
        for argument, seen in zip(self.spec.inputs, types or [""] * len(self.spec.inputs), strict=True):
            if not (is_plain(seen) if argument.type is None else _is_plain_tensor(argument.type)):
                return False
        return True

    def prepare(self) -> None:
        """Compile it now rather than at the first run, if its types are known."""
        if not self.spec.typed or self._executable is not None:
            return
        with self._lock:
            if self._executable is None:
                self._executable = self._complete(self.compile(), ())

    def compile(self, types: Sequence[str] = ()) -> Executable:
        """Make the general executable: on its provider, or the next that can, or the host.

        Args:
            types: The types of its inputs at a run, where they are not known before.

        Raises:
            UsageError: If no provider and no host op runs it, or the only provider of the caller's does not work here.
        """
        context = self._context
        for observer in context.observers:
            observer.before_compiling(self.spec, self._dump_label, types)
        if self._on_host:
            return self._compile_on_host(types)
        optimize = context.settings.run_type is not RunType.REFERENCE
        first: Exception | None = None
        for provider in self._chain():
            try:
                executable = self.compile_on(provider, types, optimize=optimize)
            except Exception as error:  # whatever ONNX Runtime raises: there are a dozen classes
                if not context.falls_back:
                    raise
                if isinstance(error, ProviderLeftOut) and context.providers == (provider,):
                    raise UsageError(f"{error} (name another provider after it to fall back to)") from error
                if first is None:
                    first = error
                continue
            self.provider = provider
            if first is not None:
                context.tell(f"group {self.spec.name} runs on {provider}: {one_line(first)}")
            return executable
        assert first is not None
        try:
            executable = self._compile_on_host(types)
        except Exception as error:
            first.add_note(f"(group {self.spec.name}, which the host cannot run either: {one_line(error)})")
            raise first from None
        context.tell(f"group {self.spec.name} runs on the host: {one_line(first)}")
        return executable

    def compile_on(self, provider: str, types: Sequence[str], *, optimize: bool) -> Executable:
        """Make an executable on a provider. Raises what ONNX Runtime raises."""
        context = self._context
        spec = self.spec
        with context.span("compile", spec.name, provider=provider, nodes=len(spec.nodes)):
            session = self.new_session(spec, provider, types=types, optimize=optimize)
        context.counters.add("compiles")
        self._sessions.append(session)
        return self.executable_of(session, provider, spec)

    def new_session(
        self,
        spec: GroupSpec,
        provider: str,
        kind: str = "",
        *,
        types: Sequence[str] = (),
        optimize: bool = True,
        provider_options: ProviderOptions | None = None,
    ) -> NativeSession:
        """A session of this group, or of a variant of it: ONNX Runtime's C++ object. Raises what ONNX Runtime raises.

        Args:
            spec: What it computes.
            provider: The execution provider.
            kind: What is put behind the group's name for what belongs to this session alone.
            types: The types of its inputs at a run, where they are not known before.
            optimize: Whether ONNX Runtime may optimize.
            provider_options: Options by provider besides the caller's.
        """
        return self._context.maker.make(
            place(spec.model(types), spec.weights),
            (provider,) if provider == CPU else (provider, CPU),
            label=f"{self.label}{kind}",
            threads=self.threads,
            optimize=optimize,
            foreign=spec.foreign,
            provider_options=provider_options,
        )

    def sessions(self) -> list[NativeSession]:
        """ONNX Runtime's C++ sessions of the general executables that have been made."""
        return list(self._sessions)

    def specializations(self) -> list[Specialization]:
        """What it has been specialised for, the one that was used last first."""
        return [version for executable in self._specialized for version in executable.specializations()]

    def executable_of(self, session: NativeSession, provider: str, spec: GroupSpec) -> Executable:
        """What runs a session of this group, or of a variant of it."""
        device = self._context.device
        feeds, fetches = ([argument.name for argument in arguments] for arguments in (spec.inputs, spec.outputs))
        if provider == CUDA and device is not None:
            return executables.of_session(session, feeds, fetches, self.devices, device, separate=self.separate)
        return self._at_host(executables.of_session(session, feeds, fetches, separate=self.separate))

    def _at_host(self, executable: Executable) -> Executable:
        """An executable that takes values from everywhere."""
        device = self._context.device
        return executable if device is None else executables.at_host(executable, device, f"copy for {self.spec.name}")

    def _compile_on_host(self, types: Sequence[str]) -> Executable:
        context = self._context
        spec = self.spec
        with context.span("compile", spec.name, provider=HOST, nodes=len(spec.nodes)):
            try:
                executable = HostExecutable(spec.host_model(types), list(spec.weights.values()), context.host_ops)
            except Exception as error:
                ops = sorted({f"{node.domain or 'ai.onnx'}::{node.op_type}" for node in spec.nodes})
                raise UsageError(
                    f"no provider and no host op runs {', '.join(ops[:5])}: {one_line(error)}"
                    " (host_ops= takes subclasses of onnx.reference.op_run.OpRun)"
                ) from error
        context.counters.add("compiles")
        self.provider = HOST
        return self._at_host(executable)

    def _chain(self) -> tuple[str, ...]:
        """The providers to try: its own if the caller has it, then the caller's, the CPU last."""
        own = self.spec.provider
        first = (own,) if own is not None and own in self._context.providers else ()
        chain = dict.fromkeys((*first, *self._context.providers, CPU))
        return tuple(provider for provider in chain if provider not in self._off)


def _is_plain_tensor(type_: ir.TypeProtocol) -> bool:
    return isinstance(type_, ir.TensorType) and type_.dtype in PLAIN
