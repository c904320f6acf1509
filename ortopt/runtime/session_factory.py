"""From what a caller asks for to what runs the model: one session of ONNX Runtime, or a session of several groups."""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.analysis.providers import CPU, CUDA, usable
from ortopt.errors import InvalidModelError, OutputError, UsageError
from ortopt.partition.groups import PROVIDER_KEY
from ortopt.partition.partitioning import group
from ortopt.partition.settings import PartitionOptions
from ortopt.runtime import denormals
from ortopt.runtime.execution import session_options
from ortopt.runtime.execution.arena import ENTRY
from ortopt.runtime.execution.cache import Cache
from ortopt.runtime.execution.group_runner import HOST, GroupContext, GroupObserver, Specializer
from ortopt.runtime.execution.session_maker import ProviderOptions, SessionMaker, making_on
from ortopt.runtime.execution.weights import FOLDER_KEY, Placed
from ortopt.runtime.instruments import Counters, Timeline, span
from ortopt.runtime.onnxruntime_interface.grouped_session import GroupedSession
from ortopt.runtime.onnxruntime_internals import tells_memories
from ortopt.runtime.planning.planner import plan_model
from ortopt.runtime.run_settings import DEFAULT_ENTRIES, RunSettings, RunType
from ortopt.semantics import GROUP_DOMAIN
from ortopt.serialization.load import load
from ortopt.serialization.scan import mentions_groups
from ortopt.terminal_text import one_line, quoted

if TYPE_CHECKING:
    from os import PathLike

    import onnxruntime

    from ortopt.runtime.cuda.device import CudaDevice
    from ortopt.runtime.specialization.specializing import SpecializationPolicy


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What a caller asked for, providers apart: what is needed to open the model, and to open it again.

    Attributes:
        source: The model: a path, bytes, an ``onnx.ModelProto`` or an ``ir.Model``.
        options: ``onnxruntime.SessionOptions``, or None.
        settings: How groups are run.
        disabled_optimizers: Names of ONNX Runtime's optimizers that are left out.
        host_ops: Users' own ops.
        specialize: When groups are specialised, None for never.
        cache_entries: How many specialised executables there are at most; None for `DEFAULT_ENTRIES`, or one for each
            group if there are more.
        cache_bytes: How many bytes they have together at most.
        global_pool: Whether all sessions use the process's thread pool.
        counters: The statistics.
        timeline: Where compiles and runs are recorded, None for nowhere.
        denormals_as_zero: Whether denormals are zero in the kernels.
        shared_cache: The presents by the pasts with which they share a buffer; empty for all that there are, None
            where there shall be no such buffers.
    """

    source: Any
    options: onnxruntime.SessionOptions | None
    settings: RunSettings
    disabled_optimizers: tuple[str, ...]
    host_ops: tuple[type, ...]
    specialize: SpecializationPolicy | None
    cache_entries: int | None
    cache_bytes: int
    global_pool: bool
    counters: Counters
    timeline: Timeline | None
    denormals_as_zero: bool = False
    shared_cache: Mapping[str, str] | None = None


def open_session(
    request: SessionRequest, chosen: ProviderOptions | None, *, falls_back: bool
) -> onnxruntime.InferenceSession | GroupedSession:
    """Make what runs a model: ``onnxruntime.InferenceSession`` or `GroupedSession`.

    Raises what ONNX Runtime raises where it refuses the model.

    Args:
        request: What the caller asked for.
        chosen: Options by the providers that the caller named, None if none.
        falls_back: Whether other providers take over from those that do not work.

    Raises:
        UsageError: No provider works here, or something that was asked for makes no sense.
        InvalidModelError: The model is broken.
    """
    return _SessionFactory(request, chosen, falls_back=falls_back).session()


class _SessionFactory:
    """Makes the session of one request."""

    def __init__(self, request: SessionRequest, chosen: ProviderOptions | None, *, falls_back: bool) -> None:
        self._request = request
        self._settings = request.settings
        self._counters = request.counters
        self._chosen = chosen
        self._falls_back = falls_back
        self._found: tuple[str, ...] | None = None  # which of the caller's providers work here

    def session(self) -> onnxruntime.InferenceSession | GroupedSession:
        """The session."""
        request, settings = self._request, self._settings
        if request.shared_cache is not None:
            return self._cached(request.shared_cache)
        simple = (
            not request.host_ops
            and settings.run_type in (RunType.ORT, RunType.REFERENCE)
            and not (settings.dump_graph or settings.dump_groups or settings.observes_groups)
            and request.specialize is None
            and not request.global_pool
        )
        refused: Exception | None = None
        if simple and not mentions_groups(request.source):
            whole, refused = self._whole(self._chosen)
            if whole is not None:
                return whole
        try:
            session = self._plan(simple=simple)
        except (UsageError, InvalidModelError) as error:
            if refused is None:
                raise
            raise refused from error
        if refused is not None and isinstance(session, GroupedSession):
            on_host = any(group.wanted_provider == HOST for group in session.context.groups)
            if not on_host:
                raise refused
        return session

    def _whole(
        self, chosen: ProviderOptions | None, placed: Placed | None = None
    ) -> tuple[onnxruntime.InferenceSession | None, Exception | None]:
        """One session of ONNX Runtime of the whole model, or what it said if it would not.

        Neither where the model is too large for it.

        Args:
            chosen: Options by the providers that the caller named, None if none.
            placed: A model in the place of the caller's.
        """
        import onnxruntime

        source, options = self._request.source if placed is None else placed.model, self._request.options
        flushes = self._request.denormals_as_zero
        entries = {**({denormals.ENTRY: "1"} if flushes else {}), **({} if placed is None else placed.entries)}
        if entries:
            options = session_options.with_entries(options, entries)
        providers = None if chosen is None else self._working(chosen)
        model = source
        if isinstance(source, str | os.PathLike):
            if not os.path.exists(source):  # noqa: PTH110 -- ONNX Runtime's own error for it follows
                return None, load_error(source)
        elif not isinstance(source, bytes):
            from ortopt.serialization.save import to_bytes

            try:
                model = to_bytes(self._loaded())
            except OutputError:  # too large for one message; its groups need not be
                return None, None
        unoptimized = self._settings.run_type is RunType.REFERENCE

        def make(names: Sequence[str] | None) -> onnxruntime.InferenceSession:
            session: onnxruntime.InferenceSession = onnxruntime.InferenceSession(
                model,
                used,
                None if names is None else [(name, dict((chosen or {})[name])) for name in names],
                disabled_optimizers=set(self._request.disabled_optimizers),
                enable_fallback=0,
            )
            return session

        try:
            with (
                making_on(providers or ()),
                denormals.kept_flags() if flushes else contextlib.nullcontext(),
                _unoptimized(options) if unoptimized else contextlib.nullcontext(options) as used,
                span(self._request.timeline, "compile", "whole model"),
            ):
                whole = self._make(make, providers)
        except Exception as error:  # whatever ONNX Runtime raises: there are a dozen classes
            return None, error
        self._counters.add("compiles")
        self._check_whole(whole, self._found or ())
        return denormals.FlushingSession(whole) if flushes else whole, None

    def _cached(self, wanted: Mapping[str, str]) -> onnxruntime.InferenceSession:
        """One session of ONNX Runtime of a model that has past and present in one buffer.

        Raises:
            UsageError: It cannot have, or this must be more than one session, or on another provider than the CPU.
        """
        from ortopt.runtime.decoding.decode_loop import CachedSession
        from ortopt.runtime.decoding.sharing import share_cache

        request = self._request
        providers = (CPU,) if self._chosen is None else self._working(self._chosen)
        if providers != (CPU,):
            raise UsageError(f"shared_cache is there on {CPU} only")
        if request.host_ops or request.specialize is not None or request.global_pool:
            raise UsageError("shared_cache: the model is one session, without host_ops, specialisation and global pool")
        if self._settings.run_type not in (RunType.ORT, RunType.REFERENCE) or mentions_groups(request.source):
            raise UsageError("shared_cache: the model is one session, of ONNX Runtime, without groups")
        shared, placed = share_cache(self._loaded(), wanted or None)
        whole, refused = self._whole(self._chosen or {CPU: {}}, placed)
        if whole is None:
            assert refused is not None
            raise refused
        return CachedSession(whole, shared, placed)

    def _make(
        self, make: Callable[[Sequence[str] | None], onnxruntime.InferenceSession], providers: Sequence[str] | None
    ) -> onnxruntime.InferenceSession:
        """A session on the caller's providers; without the first ones, where that helps.

        ONNX Runtime leaves some providers out that do not work here, and raises what they say for others.
        """
        try:
            return make(providers)
        except Exception as error:
            for i in range(1, len(providers or ()) if self._falls_back else 0):
                rest = (providers or ())[i:]
                with contextlib.suppress(Exception):
                    session = make(rest)
                    self._leave_out({name: one_line(error) for name in (providers or ())[:i]}, tuple(rest))
                    return session
            raise

    def _check_whole(self, whole: onnxruntime.InferenceSession, wanted: Sequence[str]) -> None:
        """Say which providers ONNX Runtime left out in making a session, as it only does on stderr.

        Raises:
            UsageError: The caller wanted no fallback, or named no other.
        """
        missing = [name for name in wanted if name not in whole.get_providers()]
        if not missing:
            return
        message = f"ONNX Runtime made no {', '.join(missing)}: its own words are on stderr"
        if len(missing) == len(wanted) or not self._falls_back:
            raise UsageError(message)
        self._counters.add("fallbacks")
        warnings.warn(f"{message}; falling back to {', '.join(whole.get_providers())}", RuntimeWarning, stacklevel=6)

    def _plan(self, *, simple: bool) -> onnxruntime.InferenceSession | GroupedSession:
        """The session of a model's groups; that of ONNX Runtime if there is only one."""
        options = self._request.options
        copies = None if options is None else session_options.Copies(options)
        if copies is not None and session_options.brings_files(copies):
            return self._with_files(simple=simple)
        model = self._loaded()
        working = _made_for(model) if self._chosen is None else self._working(self._chosen)
        if simple and _is_one_group(model):
            whole, _ = self._whole(self._chosen or {name: {} for name in working})
            if whole is not None:
                return whole
        _check_types(model)
        has_initializers = copies is not None and session_options.apply(options, copies, model)
        if has_initializers:
            warnings.warn(
                "the session options have initializers: of their configuration entries only those that ortopt knows"
                " reach the groups",
                RuntimeWarning,
                stacklevel=5,
            )
        self._group(model, working)
        context = self._context(working, copies, has_initializers=has_initializers)
        plan = plan_model(model, context)
        if self._request.cache_entries is None:  # a call needs one version of each group, and all are kept
            context.cache.max_entries = max(context.cache.max_entries, len(context.groups))
        self._check_options(context)
        if self._settings.dump_graph:
            from ortopt.runtime.debugging import dump_graph

            dump_graph(model, plan, self._settings.dump_folder)
        return GroupedSession(model, plan, context)

    def _group(self, model: ir.Model, working: Sequence[str]) -> None:
        """Let a model have groups, if it has none."""
        if mentions_groups(model) or self._settings.run_type is RunType.HOST:
            shapes.infer_model(model)  # what a file declares are claims, what a group's arguments declare is enforced
            return
        names = [(op.op_domain, op.__name__) for op in self._request.host_ops]  # type: ignore[attr-defined]
        deny = tuple(f"{domain}::{name}" if domain else name for domain, name in names)
        group(model, PartitionOptions(providers=tuple(working) or (CPU,), deny=deny))

    def _context(
        self, working: Sequence[str], copies: session_options.Copies | None, *, has_initializers: bool
    ) -> GroupContext:
        """What the groups share."""
        request, counters = self._request, self._counters
        chosen = self._chosen or {}
        provider_options = {name: dict(chosen.get(name, {})) for name in dict.fromkeys((*working, CPU))}
        device, notices = self._device(provider_options)
        maker = SessionMaker(
            request.options,
            provider_options,
            request.disabled_optimizers,
            global_pool=request.global_pool,
            copies=copies,
        )
        maker.has_initializers = has_initializers
        maker.device = device
        maker.denormals_as_zero = request.denormals_as_zero
        cache: Cache[Any] = Cache(
            request.cache_entries or DEFAULT_ENTRIES,
            request.cache_bytes,
            lambda _: counters.add("evictions"),
        )
        context = GroupContext(
            self._settings,
            maker,
            tuple(working) or (CPU,),
            counters,
            cache,
            request.host_ops,
            request.timeline,
            _specializer(request.specialize),
            _observers(self._settings, device),
            device,
            self._falls_back,
        )
        for message in notices:
            context.tell(message)
        return context

    def _check_options(self, context: GroupContext) -> None:
        """Say which of the caller's options several groups cannot have.

        Raises:
            UsageError: They are such that no group could do without.
        """
        options, groups = context.maker.options, context.groups
        if any(runner.threads for runner in groups):
            if session_options.has_affinities(options):
                warnings.warn(
                    "threads are not pinned to processors: they are divided among the groups",
                    RuntimeWarning,
                    stacklevel=6,
                )
            if options.optimized_model_filepath:
                warnings.warn(
                    "optimized_model_filepath is left out: each group is optimized apart"
                    " (ORTOPT_DUMP_GROUPS=1 writes it)",
                    RuntimeWarning,
                    stacklevel=6,
                )
        foreign = [runner for runner in groups if runner.spec.foreign and runner.wanted_provider != HOST]
        if context.maker.has_initializers and foreign:
            raise UsageError("initializers and a library of custom ops in the session options: one group can have both")

    def _loaded(self) -> ir.Model:
        """The model; its files of external data are where ONNX Runtime looks for them."""
        source = self._request.source
        folder = self._entry(FOLDER_KEY) or None
        if folder is None and isinstance(source, bytes | onnx.ModelProto):
            folder = os.curdir
        return load(source, folder=folder, checked=False)

    def _with_files(self, *, simple: bool) -> onnxruntime.InferenceSession:
        """One session of a grouped model, where the options bring contents of files: they cannot be told apart.

        Raises:
            UsageError: It has to be several.
        """
        whole, refused = self._whole(self._chosen or {CPU: {}}) if simple else (None, None)
        reason = "the session options bring contents of files (add_external_initializers_from_files_in_memory)"
        if whole is None:
            raise UsageError(f"{reason}: groups cannot have them. Put the files beside the model") from refused
        warnings.warn(f"{reason}: the model is one session", RuntimeWarning, stacklevel=6)
        return whole

    def _device(self, provider_options: dict[str, dict[str, Any]]) -> tuple[CudaDevice | None, list[str]]:
        """What the groups on CUDA share, if there can be any; and what is otherwise than asked for, in words."""
        if CUDA not in provider_options or self._settings.run_type is RunType.HOST:
            return None, []
        if not tells_memories():
            told = f"values between groups on {CUDA} go through the host's memory: ONNX Runtime 1.23 and newer tells"
            return None, [f"{told} where sessions want them"]
        from ortopt.runtime.cuda.device import open_device

        options = provider_options[CUDA]
        graphs = options.pop("enable_cuda_graph", "0")
        device, reason = open_device(
            options,
            self._counters,
            self._request.timeline,
            watched=self._settings.observes_groups,
            allocators=self._entry(ENTRY),
        )
        notices = [f"the groups on {CUDA} share no stream: {reason}"] if reason else []
        if str(graphs).lower() in {"1", "true"}:
            notices.append(
                "enable_cuda_graph is left out, as values between groups do not stay in one place: ask for"
                " specialize_after=1, cuda_graphs=True"
            )
        return device, notices

    def _entry(self, key: str) -> str | None:
        """A configuration entry of the caller's, None if it is not set."""
        options = self._request.options
        return None if options is None else session_options.entry(options, key)

    def _working(self, chosen: ProviderOptions) -> tuple[str, ...]:
        """The providers that work here.

        Raises:
            UsageError: None does, or the caller wanted no fallback.
        """
        if self._found is not None:
            return self._found
        reasons = {name: reason for name in chosen for works, reason in (usable(name),) if not works}
        working = tuple(name for name in chosen if name not in reasons)
        if not reasons:
            self._found = working
            return working
        if not working or not self._falls_back:
            raise UsageError(f"{_said(reasons)} (name another provider after it to fall back to)")
        self._leave_out(reasons, working)
        return working

    def _leave_out(self, reasons: Mapping[str, str], working: tuple[str, ...]) -> None:
        """Go on without providers."""
        self._counters.add("fallbacks")
        warnings.warn(f"{_said(reasons)}; falling back to {', '.join(working)}", RuntimeWarning, stacklevel=7)
        self._found = working


def _said(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name} does not work here: {reason}" for name, reason in reasons.items())


def _made_for(model: ir.Model) -> tuple[str, ...]:
    """The providers that work here among those that a model's groups were made for, and the CPU."""
    made_for = [function.metadata_props.get(PROVIDER_KEY) for function in model.functions.values()]
    providers = dict.fromkeys(name for name in made_for if name is not None)
    return tuple(dict.fromkeys((*(name for name in providers if usable(name)[0]), CPU)))


def _is_one_group(model: ir.Model) -> bool:
    """Whether a model does nothing but call one group: ONNX Runtime, which inlines it, can have it as it is."""
    nodes = [node for node in model.graph if node.op_type != "Constant"]
    return len(nodes) == 1 and nodes[0].domain == GROUP_DOMAIN and nodes[0].op_identifier() in model.functions


def load_error(path: str | PathLike[str]) -> Exception:
    """What ONNX Runtime says of a file that is not there."""
    import onnxruntime

    try:
        onnxruntime.InferenceSession(path, providers=[CPU], enable_fallback=0)
    except Exception as error:
        return error
    raise AssertionError(f"{path} is there")


@contextlib.contextmanager
def _unoptimized(options: onnxruntime.SessionOptions | None) -> Iterator[onnxruntime.SessionOptions]:
    """Options under which ONNX Runtime optimizes nothing; a caller's own object is changed back."""
    import onnxruntime

    own = onnxruntime.SessionOptions() if options is None else options
    level = own.graph_optimization_level
    own.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        yield own
    finally:
        own.graph_optimization_level = level


def _check_types(model: ir.Model) -> None:
    """Refuse what ONNX Runtime's Python API can neither take apart nor make."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if isinstance(value.type, ir.SparseTensorType):
            raise UsageError(f"{quoted(value.name)} is a sparse tensor: those cannot pass between groups")


def _specializer(policy: SpecializationPolicy | None) -> Specializer | None:
    """What makes versions of a group, None if there is no policy."""
    if policy is None:
        return None
    from ortopt.runtime.specialization.specializing import SpecializingExecutable

    return functools.partial(SpecializingExecutable, policy)


def _observers(settings: RunSettings, device: CudaDevice | None) -> list[GroupObserver]:
    """What the settings want to be done around every group."""
    observers: list[GroupObserver] = []
    if settings.dump_groups:
        from ortopt.runtime.debugging import GroupDumps

        observers.append(GroupDumps(settings.dump_folder))
    if settings.observes_groups:
        from ortopt.runtime.debugging import RunChecks

        observers.append(RunChecks(settings, device))
    return observers
