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
from ortopt.analysis.providers import CPU, CUDA, normalize, usable
from ortopt.errors import InvalidModelError, OutputError, UsageError
from ortopt.partition.groups import PROVIDER_KEY
from ortopt.partition.partitioning import group
from ortopt.partition.settings import PartitionOptions
from ortopt.runtime import session_options
from ortopt.runtime.cache import Cache
from ortopt.runtime.grouped_session import GroupedSession
from ortopt.runtime.groups import HOST, Workshop
from ortopt.runtime.planner import Planner
from ortopt.runtime.sessions import SessionMaker
from ortopt.runtime.settings import RunType, Settings
from ortopt.runtime.statistics import Counters
from ortopt.runtime.tracing import Timeline
from ortopt.runtime.weights import FOLDER_KEY
from ortopt.semantics import GROUP_DOMAIN
from ortopt.serialization.load import load
from ortopt.serialization.scan import mentions_groups
from ortopt.terminal_text import one_line, quoted

if TYPE_CHECKING:
    from os import PathLike

    from ortopt.runtime.cuda_device import CudaDevice
    from ortopt.runtime.specialization import Policy

Providers = Sequence[str | tuple[str, Mapping[str, Any]]]
Chosen = Mapping[str, Mapping[str, Any]]
"""Options by provider, in order."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller asked for, providers apart: what is needed to open the model, and to open it again.

    Attributes:
        source: The model: a path, bytes, an ``onnx.ModelProto`` or an ``ir.Model``.
        options: ``onnxruntime.SessionOptions``, or None.
        settings: How groups are run.
        disabled_optimizers: Names of ONNX Runtime's optimizers that are left out.
        host_ops: Users' own ops.
        specialize: When groups are specialised, None for never.
        cache_entries: How many specialised executables there are at most.
        cache_bytes: How many bytes they have together at most.
        global_pool: Whether all sessions use the process's thread pool.
        counters: The statistics.
        timeline: Where compiles and runs are recorded, if anybody wants to know.
    """

    source: Any
    options: Any
    settings: Settings
    disabled_optimizers: tuple[str, ...]
    host_ops: tuple[type, ...]
    specialize: Policy | None
    cache_entries: int
    cache_bytes: int
    global_pool: bool
    counters: Counters
    timeline: Timeline | None


def open_session(request: Request, chosen: Chosen | None, *, falls_back: bool) -> Any:
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
    return _Opening(request, chosen, falls_back=falls_back).session()


class _Opening:
    """One opening of a model."""

    def __init__(self, request: Request, chosen: Chosen | None, *, falls_back: bool) -> None:
        self._request = request
        self._settings = request.settings
        self._counters = request.counters
        self._chosen = chosen
        self._falls_back = falls_back
        self._found: tuple[str, ...] | None = None  # which of the caller's providers work here

    def session(self) -> Any:
        """The session."""
        request, settings = self._request, self._settings
        simple = (
            not request.host_ops
            and settings.run_type in (RunType.ORT, RunType.REFERENCE)
            and not (settings.dump_graph or settings.dump_groups or settings.watches_groups)
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
            on_host = any(one.wanted_provider == HOST for one in session.workshop.groups)
            if not on_host:
                raise refused
        return session

    def _whole(self, chosen: Chosen | None) -> tuple[Any, Exception | None]:
        """One session of ONNX Runtime of the whole model, or what it said if it would not.

        Neither where the model is too large for it.
        """
        import onnxruntime

        source, options = self._request.source, self._request.options
        providers = None if chosen is None else self._working(chosen)
        given = source
        if isinstance(source, str | os.PathLike):
            if not os.path.exists(source):  # noqa: PTH110 -- ONNX Runtime's own error for it follows
                return None, load_error(source)
        elif not isinstance(source, bytes):
            from ortopt.serialization.save import to_bytes

            try:
                given = to_bytes(self._loaded())
            except OutputError:  # too large for one message; its groups need not be
                return None, None
        if self._settings.run_type is RunType.REFERENCE:
            level = None if options is None else options.graph_optimization_level
            options = onnxruntime.SessionOptions() if options is None else options
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL

        def made(names: Sequence[str] | None) -> Any:
            return onnxruntime.InferenceSession(
                given,
                options,
                None if names is None else [(name, dict((chosen or {})[name])) for name in names],
                disabled_optimizers=set(self._request.disabled_optimizers),
                enable_fallback=0,
            )

        try:
            with _span(self._request.timeline, "compile", "whole model"):
                whole = self._made(made, providers)
        except Exception as error:  # whatever ONNX Runtime raises: there are a dozen classes
            return None, error
        finally:
            if self._settings.run_type is RunType.REFERENCE and level is not None:
                options.graph_optimization_level = level
        self._counters.add("compiles")
        self._check_whole(whole, self._found or ())
        return whole, None

    def _made(self, made: Callable[[Sequence[str] | None], Any], providers: Sequence[str] | None) -> Any:
        """A session on the caller's providers; without the first ones, where that helps.

        ONNX Runtime leaves some providers out that do not work here, and raises what they say for others.
        """
        try:
            return made(providers)
        except Exception as error:
            for i in range(1, len(providers or ()) if self._falls_back else 0):
                rest = (providers or ())[i:]
                with contextlib.suppress(Exception):
                    found = made(rest)
                    self._leave_out({name: one_line(error) for name in (providers or ())[:i]}, tuple(rest))
                    return found
            raise

    def _check_whole(self, whole: Any, wanted: Sequence[str]) -> None:
        """Say which providers ONNX Runtime left out in making a session, as it only does on stderr.

        Raises:
            UsageError: The caller wanted no fallback, or named no other.
        """
        missing = [name for name in wanted if name not in whole.get_providers()]
        if not missing:
            return
        said = f"ONNX Runtime made no {', '.join(missing)}: its own words are on stderr"
        if len(missing) == len(wanted) or not self._falls_back:
            raise UsageError(said)
        self._counters.add("fallbacks")
        warnings.warn(f"{said}; falling back to {', '.join(whole.get_providers())}", RuntimeWarning, stacklevel=6)

    def _plan(self, *, simple: bool) -> Any:
        """The session of a model's groups; that of ONNX Runtime if there is only one."""
        request, chosen = self._request, self._chosen
        options, host_ops = request.options, request.host_ops
        copies = None if options is None else session_options.Copies(options)
        if copies is not None and session_options.brings_files(copies):
            return self._with_files(simple=simple)
        model = self._loaded()
        if chosen is None:
            made_for = [one.metadata_props.get(PROVIDER_KEY) for one in model.functions.values()]
            named = dict.fromkeys(name for name in made_for if name is not None)
            working = tuple(dict.fromkeys((*(name for name in named if usable(name)[0]), CPU)))
        else:
            working = self._working(chosen)
        if simple and _is_one_group(model):
            whole, _ = self._whole(chosen or {name: {} for name in working})
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
        if not mentions_groups(model) and self._settings.run_type is not RunType.HOST:
            names = [(op.op_domain, op.__name__) for op in host_ops]  # type: ignore[attr-defined]
            deny = tuple(f"{domain}::{name}" if domain else name for domain, name in names)
            group(model, PartitionOptions(providers=working or (CPU,), deny=deny))
        else:  # the shapes that a file declares are claims, those of a group's arguments are enforced
            shapes.infer_model(model)
        provider_options = {name: dict((chosen or {}).get(name, {})) for name in dict.fromkeys((*working, CPU))}
        device, told = self._device(provider_options)
        maker = SessionMaker(
            options, provider_options, request.disabled_optimizers, global_pool=request.global_pool, copies=copies
        )
        maker.has_initializers = has_initializers
        maker.device = device
        maker.captures = request.specialize is not None and request.specialize.cuda_graphs
        cache: Cache[Any] = Cache(
            request.cache_entries, request.cache_bytes, functools.partial(_count_eviction, self._counters)
        )
        workshop = Workshop(
            self._settings,
            maker,
            working if working else (CPU,),
            self._counters,
            cache,
            host_ops,
            request.timeline,
            request.specialize,
            device,
            self._falls_back,
        )
        for message in told:
            workshop.tell(message)
        plan = Planner(model, workshop).plan()
        if session_options.has_affinities(maker.options) and any(one.threads for one in workshop.groups):
            warnings.warn("threads are not pinned to processors: they are dealt out", RuntimeWarning, stacklevel=5)
        if maker.options.optimized_model_filepath and any(one.threads for one in workshop.groups):
            warnings.warn(
                "optimized_model_filepath is left out: each group is optimized apart (ORTOPT_DUMP_GROUPS=1 writes it)",
                RuntimeWarning,
                stacklevel=5,
            )
        if has_initializers and any(one.recipe.foreign and one.wanted_provider != HOST for one in workshop.groups):
            raise UsageError("initializers and a library of custom ops in the session options: one group can have both")
        if self._settings.dump_graph:
            from ortopt.runtime.debugging import dump_graph

            dump_graph(model, plan, self._settings.dump_folder)
        return GroupedSession(model, plan, workshop)

    def _loaded(self) -> ir.Model:
        """The model; its files of external data are where ONNX Runtime looks for them."""
        source, options = self._request.source, self._request.options
        folder = (None if options is None else session_options.entry(options, FOLDER_KEY)) or None
        if folder is None and isinstance(source, bytes | onnx.ModelProto):
            folder = os.curdir
        return load(source, folder=folder, checked=False)

    def _with_files(self, *, simple: bool) -> Any:
        """One session of a grouped model, where the options bring contents of files: they cannot be told apart.

        Raises:
            UsageError: It has to be several.
        """
        whole, refused = self._whole(self._chosen or {CPU: {}}) if simple else (None, None)
        said = "the session options bring contents of files (add_external_initializers_from_files_in_memory)"
        if whole is None:
            raise UsageError(f"{said}: groups cannot have them. Put the files beside the model") from refused
        warnings.warn(f"{said}: the model is one session", RuntimeWarning, stacklevel=6)
        return whole

    def _device(self, provider_options: dict[str, dict[str, Any]]) -> tuple[CudaDevice | None, list[str]]:
        """What the groups on CUDA share, if there can be any; and what is otherwise than asked for, in words."""
        given = self._request.options
        if CUDA not in provider_options or self._settings.run_type is RunType.HOST:
            return None, []
        from ortopt.runtime.cuda_device import open_device

        options = provider_options[CUDA]
        graphs = options.pop("enable_cuda_graph", "0")
        device, said = open_device(
            options,
            self._counters,
            self._request.timeline,
            watched=self._settings.watches_groups,
            one_arena=given is not None and session_options.entry(given, "session.use_env_allocators") == "1",
        )
        told = [f"the groups on {CUDA} share no stream: {said}"] if said else []
        if str(graphs).lower() in {"1", "true"}:
            told.append(
                "enable_cuda_graph is left out, as values between groups do not stay in one place: ask for"
                " specialize_after=1, cuda_graphs=True"
            )
        return device, told

    def _working(self, chosen: Chosen) -> tuple[str, ...]:
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


def named(providers: Providers | None, provider_options: Sequence[Mapping[str, Any]] | None) -> Chosen | None:
    """Options by provider, in order; None where the caller named none.

    Raises:
        UsageError: A name is unknown.
        ValueError: The two do not fit; ONNX Runtime's messages.
    """
    if provider_options is not None and not isinstance(provider_options, Sequence):
        raise ValueError("'provider_options' should be a sequence.")
    if not providers:
        return None
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")  # noqa: TRY004 -- ONNX Runtime's class
    if provider_options is not None:
        if len(providers) != len(provider_options):
            raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
        if not all(isinstance(one, str) for one in providers):
            raise ValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
        if not all(isinstance(one, Mapping) for one in provider_options):
            raise ValueError("'provider_options' values must be dicts.")
        providers = list(zip(providers, provider_options, strict=True))  # type: ignore[arg-type]
    chosen: dict[str, Mapping[str, Any]] = {}
    for one in providers:
        name, options = (one, {}) if isinstance(one, str) else one if _is_pair(one) else (None, None)
        if name is None or options is None:
            raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
        chosen.setdefault(normalize(name), {str(key): str(value) for key, value in options.items()})
    return chosen


def _is_pair(one: Any) -> bool:
    return isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], Mapping)


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
def _span(timeline: Timeline | None, category: str, name: str) -> Iterator[None]:
    with contextlib.nullcontext() if timeline is None else timeline.span(category, name):
        yield


def _check_types(model: ir.Model) -> None:
    """Refuse what ONNX Runtime's Python API can neither take apart nor make."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if isinstance(value.type, ir.SparseTensorType):
            raise UsageError(f"{quoted(value.name)} is a sparse tensor: those cannot pass between groups")


def _count_eviction(counters: Counters, _: object) -> None:
    counters.add("evictions")


__all__ = ["Providers", "Request", "load_error", "named", "open_session"]
