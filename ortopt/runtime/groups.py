"""A group at run time: compiled when it is first needed, on the first provider that can, else on the host."""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import onnx_ir as ir

from ortopt.analysis.providers import CPU, CUDA
from ortopt.errors import UsageError
from ortopt.runtime import executables
from ortopt.runtime.cache import Cache
from ortopt.runtime.executables import Executable
from ortopt.runtime.recipes import Recipe
from ortopt.runtime.sessions import SessionMaker
from ortopt.runtime.settings import RunType, Settings
from ortopt.runtime.statistics import Counters
from ortopt.runtime.tracing import Timeline
from ortopt.runtime.values import PLAIN, is_plain, type_of
from ortopt.runtime.weights import place
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    from ortopt.runtime.cuda_device import CudaDevice
    from ortopt.runtime.specialization import Policy, Specialization, Specializing

HOST: Final = "host"
"""Where a group runs that no provider takes."""


@dataclass
class Workshop:
    """What all groups of a session share.

    Attributes:
        settings: What the caller wants.
        maker: Makes sessions.
        providers: The caller's execution providers, in order; those that work here.
        counters: The session's statistics.
        cache: Executables made for single argument specifications.
        host_ops: Users' own ops, subclasses of ``OpRun``.
        timeline: Where compiles and runs are recorded, if anybody wants to know.
        specialize: When groups are specialised, None for never.
        device: The CUDA device, None if the caller has none: then values are in the host's memory everywhere.
        falls_back: Whether a group that its provider cannot compile runs on another, or on the host.
    """

    settings: Settings
    maker: SessionMaker
    providers: tuple[str, ...]
    counters: Counters
    cache: Cache[Any]
    host_ops: tuple[type, ...] = ()
    timeline: Timeline | None = None
    specialize: Policy | None = None
    device: CudaDevice | None = None
    falls_back: bool = True
    groups: list[Group] = field(default_factory=list)

    def span(self, category: str, name: str, **details: Any) -> contextlib.AbstractContextManager[None]:
        """A span on the timeline, if there is one."""
        return contextlib.nullcontext() if self.timeline is None else self.timeline.span(category, name, **details)

    def tell(self, message: str) -> None:
        """Say that something was done otherwise than asked for, and count it."""
        self.counters.add("fallbacks")
        if self.timeline is not None:
            self.timeline.mark("fallback", reason=message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


class Group:
    """A group of a plan: calls its executable, which it compiles when there is none.

    Args:
        recipe: What it computes.
        workshop: What all groups share.
        on_host: Whether no provider is asked.
        specializes: Whether it may be specialised; not what is special already.

    Attributes:
        recipe: What it computes.
        threads: Intra-op threads of its sessions; None leaves the caller's setting. Set before the first run.
        devices: Where each output is left. Set before the first run.
        separate: Whether its outputs are freed at different times. Set before the first run.
        provider: Where it runs; None as long as it is not compiled.
    """

    def __init__(self, recipe: Recipe, workshop: Workshop, *, on_host: bool = False, specializes: bool = True) -> None:
        self.recipe = recipe
        self.threads: int | None = None
        self.devices: tuple[str, ...] = ()
        self.separate = True
        self.provider: str | None = None
        self._workshop = workshop
        self._on_host = on_host or workshop.settings.run_type is RunType.HOST
        self._lock = threading.Lock()
        self._executable: Executable | None = None
        self._by_types: dict[tuple[str, ...], Executable] = {}
        self._sessions: list[Any] = []
        self._specializes = specializes
        self._specializing: list[Specializing] = []
        workshop.groups.append(self)

    @property
    def label(self) -> str:
        """Its name as part of a file's name."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", self.recipe.name) or "group"

    @property
    def _dump_label(self) -> str:
        """The name of the file that it is dumped to: one for each types that it is called with."""
        return f"{self.label}-{len(self._by_types)}" if self._by_types else self.label

    @property
    def wanted_provider(self) -> str:
        """The provider that it is tried on first."""
        return HOST if self._on_host else self._chain()[0]

    def __call__(self, values: list[Any], options: Any) -> Sequence[Any]:
        """Run it."""
        executable = self._executable
        if executable is None:
            executable = self._find(values)
        return executable(values, options)

    def _find(self, values: list[Any]) -> Executable:
        """The executable, compiled if there is none for the types of these values."""
        types = None if self.recipe.typed else tuple(type_of(value) for value in values)
        if types is not None and (known := self._by_types.get(types)) is not None:
            return known
        with self._lock:
            known = self._executable if types is None else self._by_types.get(types)
            if known is not None:
                return known
            self._workshop.counters.missed()
            made = self._complete(self.compile(types or ()), types or ())
            if types is None:
                self._executable = made
            else:
                self._by_types[types] = made
        return made

    def _complete(self, general: Executable, types: Sequence[str]) -> Executable:
        """What is called instead of the general executable: the same, unless somebody watches or specialises."""
        workshop = self._workshop
        made = general
        if workshop.specialize is not None and self._can_specialize(types):
            from ortopt.runtime.specialization import Specializing

            made = Specializing(self, workshop, workshop.specialize, general)
            self._specializing.append(made)
        if workshop.settings.dump_groups:
            from ortopt.runtime.debugging import Dumping

            made = Dumping(self, workshop, self._dump_label, made)
        if workshop.settings.watches_groups:
            from ortopt.runtime.debugging import Watching

            made = Watching(self, workshop, made)
        if workshop.timeline is not None:
            made = _Recorded(made, workshop.timeline, self)
        return made

    def _can_specialize(self, types: Sequence[str]) -> bool:
        """Whether calls can be told apart by dtypes and sizes: the arguments are tensors of numbers, none is drawn."""
        if self.provider == HOST or self.recipe.random or not self._specializes:
            return False
        return all(
            is_plain(seen) if one.type is None else isinstance(one.type, ir.TensorType) and one.type.dtype in PLAIN
            for one, seen in zip(self.recipe.inputs, types or [""] * len(self.recipe.inputs), strict=True)
        )

    def prepare(self) -> None:
        """Compile it now rather than at the first run, if its types are known."""
        if not self.recipe.typed or self._executable is not None:
            return
        with self._lock:
            if self._executable is None:
                self._executable = self._complete(self.compile(), ())

    def compile(self, types: Sequence[str] = ()) -> Executable:
        """Make the general executable: on its provider, or the next that can, or the host.

        Args:
            types: The types of its inputs at a run, where they are not known before.
        """
        workshop = self._workshop
        if workshop.settings.dump_groups:
            from ortopt.runtime.debugging import dump_group

            dump_group(self.recipe, workshop.settings.dump_folder, self._dump_label, types)
        if self._on_host:
            return self._compile_on_host(types)
        optimize = workshop.settings.run_type is not RunType.REFERENCE
        first: Exception | None = None
        for provider in self._chain():
            try:
                made = self.compile_on(provider, types, optimize=optimize)
            except Exception as error:  # whatever ONNX Runtime raises: there are a dozen classes
                if not workshop.falls_back:
                    raise
                if first is None:
                    first = error
                continue
            self.provider = provider
            if first is not None:
                workshop.tell(f"group {self.recipe.name} runs on {provider}: {one_line(first)}")
            return made
        assert first is not None
        try:
            made = self._compile_on_host(types)
        except Exception as error:
            first.add_note(f"(group {self.recipe.name}, which the host cannot run either: {one_line(error)})")
            raise first from None
        workshop.tell(f"group {self.recipe.name} runs on the host: {one_line(first)}")
        return made

    def compile_on(self, provider: str, types: Sequence[str], *, optimize: bool) -> Executable:
        """Make an executable on a provider. Raises what ONNX Runtime raises."""
        workshop = self._workshop
        recipe = self.recipe
        providers = (provider,) if provider == CPU else (provider, CPU)
        with workshop.span("compile", recipe.name, provider=provider, nodes=len(recipe.nodes)):
            session = workshop.maker.make(
                place(recipe.model(types), recipe.weights),
                providers,
                label=self.label,
                threads=self.threads,
                optimize=optimize,
                foreign=recipe.foreign,
            )
        workshop.counters.add("compiles")
        self._sessions.append(session)
        return self.executable_of(session, provider, recipe)

    def sessions(self) -> list[Any]:
        """ONNX Runtime's C++ sessions of the general executables that have been made."""
        return list(self._sessions)

    def specializations(self) -> list[Specialization]:
        """What it has been specialised for, the one that was used last first."""
        return [one for made in self._specializing for one in made.found()]

    def executable_of(self, session: Any, provider: str, recipe: Recipe) -> Executable:
        """What runs a session of this group, or of a variant of it."""
        device = self._workshop.device
        feeds, fetches = ([one.name for one in arguments] for arguments in (recipe.inputs, recipe.outputs))
        if provider == CUDA and device is not None:
            return executables.of_session(session, feeds, fetches, self.devices, device, separate=self.separate)
        return self._at_host(executables.of_session(session, feeds, fetches, separate=self.separate))

    def _at_host(self, executable: Executable) -> Executable:
        """An executable that takes values from everywhere."""
        device = self._workshop.device
        return executable if device is None else executables.AtHost(executable, device, f"copy for {self.recipe.name}")

    def _compile_on_host(self, types: Sequence[str]) -> Executable:
        workshop = self._workshop
        recipe = self.recipe
        with workshop.span("compile", recipe.name, provider=HOST, nodes=len(recipe.nodes)):
            try:
                made = executables.Host(recipe.host_model(types), list(recipe.weights.values()), workshop.host_ops)
            except Exception as error:
                ops = sorted({f"{node.domain or 'ai.onnx'}::{node.op_type}" for node in recipe.nodes})
                raise UsageError(
                    f"no provider and no host op runs {', '.join(ops[:5])}: {one_line(error)}"
                    " (host_ops= takes subclasses of onnx.reference.op_run.OpRun)"
                ) from error
        workshop.counters.add("compiles")
        self.provider = HOST
        return self._at_host(made)

    def _chain(self) -> tuple[str, ...]:
        """The providers to try: its own if the caller has it, then the caller's, the CPU last."""
        own = self.recipe.provider
        first = (own,) if own is not None and own in self._workshop.providers else ()
        return tuple(dict.fromkeys((*first, *self._workshop.providers, CPU)))


class _Recorded:
    """An executable whose runs are on the timeline."""

    __slots__ = ("_executable", "_group", "_timeline")

    def __init__(self, executable: Executable, timeline: Timeline, group: Group) -> None:
        self._executable = executable
        self._timeline = timeline
        self._group = group

    def __call__(self, values: list[Any], options: Any) -> Sequence[Any]:
        with self._timeline.span("run", self._group.recipe.name, provider=self._group.provider):
            return self._executable(values, options)
