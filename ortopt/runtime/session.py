"""`InferenceSession`: ONNX Runtime's session for models of which each part may run somewhere else."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn, Self, SupportsIndex

import numpy as np
import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.analysis.providers import CPU, CUDA, normalize, usable
from ortopt.errors import InvalidModelError, OutputError, UsageError
from ortopt.evaluate import share_threads
from ortopt.graph.load import load
from ortopt.graph.text import one_line, quoted
from ortopt.partition.groups import PROVIDER_KEY
from ortopt.partition.partitioning import group
from ortopt.partition.settings import PartitionOptions
from ortopt.runtime import session_options
from ortopt.runtime.cache import Cache
from ortopt.runtime.containers import wrapped
from ortopt.runtime.further_methods import FurtherMethods
from ortopt.runtime.groups import HOST, Group, Workshop
from ortopt.runtime.interface import Interface
from ortopt.runtime.iobinding import IOBinding
from ortopt.runtime.plan import ParallelPlan, Plan
from ortopt.runtime.planner import Planner
from ortopt.runtime.sessions import SessionMaker
from ortopt.runtime.settings import DEFAULT_BYTES, DEFAULT_ENTRIES, RunType, read_settings
from ortopt.runtime.statistics import Counters, Statistics
from ortopt.runtime.threads import processors
from ortopt.runtime.tracing import Timeline
from ortopt.runtime.values import alone, binding, device, is_plain, own, taken, to_numpy, to_ort
from ortopt.runtime.wire_scan import mentions_groups
from ortopt.semantics import GROUP_DOMAIN

if TYPE_CHECKING:
    from os import PathLike

    import onnx

    from ortopt.runtime.cuda_device import CudaDevice
    from ortopt.runtime.specialization import Policy
    from ortopt.runtime.specialized_export import Exported

_live: weakref.WeakSet[InferenceSession] = weakref.WeakSet()

Providers = Sequence[str | tuple[str, Mapping[str, Any]]]

_CLOSED: Final = "this session is closed"
_FORKED: Final = (
    "this session was made before the process was forked: its threads are in the parent. Make a session in each"
    " process, or start processes with spawn"
)


class InferenceSession(FurtherMethods):
    """A drop-in for ``onnxruntime.InferenceSession`` that executes fusion groups.

    Each group (a local function of domain ``ortopt.group``, as ``ortopt optimize -O4`` makes them) runs in an ONNX
    Runtime session of its own on its provider, compiled when it is first needed; nodes between groups share sessions;
    what no provider supports runs in ``onnx.reference``, with Python ops of the caller's. A model without groups that
    ONNX Runtime can load as a whole is one session of ONNX Runtime. Any number of threads may call a session. It does
    not survive a fork.

    Args:
        path_or_bytes: A path, the bytes of a model, an ``onnx.ModelProto`` or an ``ir.Model``.
        sess_options: ``onnxruntime.SessionOptions``. With several groups the intra-op threads are dealt out among them;
            ``ORT_PARALLEL`` runs groups that do not depend on each other at the same time, on the inter-op threads.
            (Off by default, as in ONNX Runtime: a group already uses all cores.)
        providers: Execution providers in order of preference: ONNX Runtime's names or ``"cpu"``, ``"cuda"``, alone or
            with options. One that does not work here is an error, unless others follow it: then it is left out, with
            a warning. None takes those that the groups were made for, and the CPU.
        provider_options: Options for each of the providers.
        run_type: ``"ort"``, ``"reference"`` (ONNX Runtime without optimization), ``"host"`` (``onnx.reference``) or
            ``"debug"`` (each group is run by the first two and compared); None asks ``ORTOPT_RUN_TYPE``.
        host_ops: Subclasses of ``onnx.reference.op_run.OpRun``: the ops of their domain and name run on the host.
        thread_pool: ``"session"``, or ``"global"`` for ONNX Runtime's pool of the process; after that every session
            of the process must use it, also those of others, and it cannot be resized.
        specialize_after: How often a group must have seen an argument specification before it gets an executable of
            its own for it, with fixed sizes folded in; None for never. One takes memory and seconds to make.
        specialize_constants: Whether small integer and boolean arguments that never changed until then are folded in
            too, under a guard.
        cuda_graphs: Whether specialised groups on CUDA are captured as CUDA graphs.
        cache_entries: How many specialised executables there are at most, all groups together.
        cache_bytes: How many bytes they have together at most; weights that ONNX Runtime packs are counted.
        cache_folder: Where optimized group models are kept from one process to the next; None keeps none.
        trace: Whether every compile, run and copy is recorded for `write_trace`.
        rtol: For ``"debug"``; None asks ``ORTOPT_RELATIVE_TOLERANCE``.
        atol: For ``"debug"``; None asks ``ORTOPT_ABSOLUTE_TOLERANCE``.
        dump_folder: Where ``ORTOPT_DUMP_GRAPH``, ``ORTOPT_DUMP_GROUPS``, ``ORTOPT_DUMP_INPUTS_OUTPUTS`` and
            ``"debug"`` write; None is ``ortopt-dump``.
        **kwargs: What ONNX Runtime's session takes besides: ``disabled_optimizers``, ``enable_fallback``.

    Raises:
        UsageError: An argument or an environment variable makes no sense, or a provider does not work here.
        InvalidModelError: The model is broken.
        onnxruntime.capi.onnxruntime_pybind11_state.Fail: And its kin: ONNX Runtime refuses the model.
    """

    def __init__(
        self,
        path_or_bytes: str | PathLike[str] | bytes | onnx.ModelProto | ir.Model,
        sess_options: Any = None,
        providers: Providers | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        run_type: Literal["ort", "reference", "host", "debug"] | None = None,
        host_ops: Sequence[type] = (),
        thread_pool: Literal["session", "global"] = "session",
        specialize_after: int | None = None,
        specialize_constants: bool = False,
        cuda_graphs: bool = False,
        cache_entries: int = DEFAULT_ENTRIES,
        cache_bytes: int = DEFAULT_BYTES,
        cache_folder: str | PathLike[str] | None = None,
        trace: bool = False,
        rtol: float | None = None,
        atol: float | None = None,
        dump_folder: str | PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        if not _is_source(path_or_bytes):
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        self._settings = read_settings(run_type, rtol, atol, dump_folder)
        self._unusable: str | None = None
        self._counters = Counters()
        self._timeline = Timeline() if trace else None
        self._disabled = tuple(kwargs.pop("disabled_optimizers", None) or ())
        self._enable_fallback = bool(int(kwargs.pop("enable_fallback", 1)))
        kwargs.pop("read_config_from_model", None)
        if kwargs:
            raise UsageError(f"InferenceSession takes no {', '.join(sorted(kwargs))}")
        _check_host_ops(host_ops)
        _check_counts(specialize_after, cache_entries, cache_bytes)
        if thread_pool not in ("session", "global"):
            raise UsageError(f"thread_pool must be session or global, not {thread_pool!r}")
        binding()
        chosen = _named(providers, provider_options)
        if thread_pool == "global":
            intra, inter = (
                (sess_options.intra_op_num_threads, sess_options.inter_op_num_threads) if sess_options else (0, 0)
            )
            share_threads(intra, inter)
        specialize = None
        if specialize_after is not None:
            from ortopt.runtime.specialization import Policy

            specialize = Policy(specialize_after, specialize_constants, cuda_graphs, cache_folder)
        self._request = _Request(
            path_or_bytes,
            sess_options,
            tuple(host_ops),
            specialize,
            cache_entries,
            cache_bytes,
            thread_pool == "global",
        )
        self._giving_up = threading.Lock()
        self._gave_up = False  # a provider, after it failed in a run
        self._open(chosen)
        _live.add(self)

    # Opening

    def _open(self, chosen: Mapping[str, Mapping[str, Any]] | None) -> None:
        """Make what runs the model, on the providers that the caller named."""
        self._whole: Any = None
        self._model: ir.Model | None = None  # as it was grouped, if somebody may ask for it
        self._found: tuple[str, ...] | None = None  # which of the caller's providers work here
        self._executor: ThreadPoolExecutor | None = None
        self._device: CudaDevice | None = None
        self._runner: _Runner | None = None
        request = self._request
        simple = (
            not request.host_ops
            and self._settings.run_type in (RunType.ORT, RunType.REFERENCE)
            and not (self._settings.dump_graph or self._settings.dump_groups or self._settings.watches_groups)
            and request.specialize is None
            and not request.global_pool
        )
        refused: Exception | None = None
        if simple and not mentions_groups(request.source):
            refused = self._open_whole(request.source, request.options, chosen)
        if self._whole is not None:
            return
        try:
            self._open_plan(chosen, simple=simple)
        except (UsageError, InvalidModelError) as error:
            if refused is None:
                raise
            raise refused from error
        on_host = self._whole is None and any(one.wanted_provider == HOST for one in self.groups)
        if refused is not None and self._whole is None and not on_host:
            raise refused

    def _open_whole(
        self, source: Any, options: Any, chosen: Mapping[str, Mapping[str, Any]] | None
    ) -> Exception | None:
        """Make one session of ONNX Runtime of the whole model; what it said if it would not."""
        import onnxruntime

        providers = None if chosen is None else self._working(chosen)
        given = source
        if isinstance(source, str | os.PathLike):
            if not os.path.exists(source):  # noqa: PTH110 -- ONNX Runtime's own error for it follows
                return load_error(source)
        elif not isinstance(source, bytes):
            from ortopt.graph.save import to_bytes

            try:
                given = to_bytes(load(source))
            except OutputError:  # too large for one message; its groups need not be
                return None
        if self._settings.run_type is RunType.REFERENCE:
            level = None if options is None else options.graph_optimization_level
            options = onnxruntime.SessionOptions() if options is None else options
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            with _span(self._timeline, "compile", "whole model"):
                self._whole = onnxruntime.InferenceSession(
                    given,
                    options,
                    None if providers is None else [(name, dict(chosen[name])) for name in providers],  # type: ignore[index]
                    disabled_optimizers=set(self._disabled),
                    enable_fallback=0,
                )
        except Exception as error:  # whatever ONNX Runtime raises: there are a dozen classes
            return error
        finally:
            if self._settings.run_type is RunType.REFERENCE and level is not None:
                options.graph_optimization_level = level
        self._counters.add("compiles")
        self._check_whole(providers or ())
        return None

    def _check_whole(self, wanted: Sequence[str]) -> None:
        """Say which providers ONNX Runtime left out in making a session, as it only does on stderr.

        Raises:
            UsageError: The caller wanted no fallback, or named no other.
        """
        missing = [name for name in wanted if name not in self._whole.get_providers()]
        if not missing:
            return
        said = f"ONNX Runtime made no {', '.join(missing)}: its own words are on stderr"
        if len(missing) == len(wanted) or not self._enable_fallback:
            self._whole = None
            raise UsageError(said)
        self._counters.add("fallbacks")
        warnings.warn(f"{said}; falling back to {', '.join(self._whole.get_providers())}", RuntimeWarning, stacklevel=5)

    def _open_plan(self, chosen: Mapping[str, Mapping[str, Any]] | None, *, simple: bool) -> None:
        request = self._request
        source, options, host_ops = request.source, request.options, request.host_ops
        model = load(source)
        if chosen is None:
            made_for = [one.metadata_props.get(PROVIDER_KEY) for one in model.functions.values()]
            named = dict.fromkeys(name for name in made_for if name is not None)
            working = tuple(dict.fromkeys((*(name for name in named if usable(name)[0]), CPU)))
        else:
            working = self._working(chosen)
        if (
            simple
            and _is_one_group(model)
            and self._open_whole(source, options, chosen or {name: {} for name in working}) is None
            and self._whole is not None
        ):
            return
        _check_types(model)
        copies = None if options is None else session_options.Copies(options)
        has_initializers = copies is not None and session_options.apply(options, copies, model)
        if has_initializers:
            warnings.warn(
                "the session options have initializers: of their configuration entries only those that ortopt knows"
                " reach the groups",
                RuntimeWarning,
                stacklevel=3,
            )
        if not mentions_groups(model) and self._settings.run_type is not RunType.HOST:
            names = [(op.op_domain, op.__name__) for op in host_ops]  # type: ignore[attr-defined]
            deny = tuple(f"{domain}::{name}" if domain else name for domain, name in names)
            group(model, PartitionOptions(providers=working or (CPU,), deny=deny))
        elif any(value is not None and value.type is None for node in model.graph for value in node.inputs):
            shapes.infer_model(model)
        self._providers = tuple(dict.fromkeys((*working, CPU)))
        self._provider_options = {name: dict((chosen or {}).get(name, {})) for name in self._providers}
        told = self._open_device(options)
        self._maker = SessionMaker(
            options, self._provider_options, self._disabled, global_pool=request.global_pool, copies=copies
        )
        self._maker.has_initializers = has_initializers
        self._maker.device = self._device
        self._maker.captures = request.specialize is not None and request.specialize.cuda_graphs
        self._cache: Cache[Any] = Cache(
            request.cache_entries, request.cache_bytes, functools.partial(_count_eviction, self._counters)
        )
        self._workshop = Workshop(
            self._settings,
            self._maker,
            working if working else (CPU,),
            self._counters,
            self._cache,
            host_ops,
            self._timeline,
            request.specialize,
            self._device,
            self._enable_fallback,
        )
        for message in told:
            self._workshop.tell(message)
        plan = Planner(model, self._workshop).plan()
        if session_options.has_affinities(self._maker.options) and any(one.threads for one in self.groups):
            warnings.warn("threads are not pinned to processors: they are dealt out", RuntimeWarning, stacklevel=3)
        if has_initializers and self._maker.needs_original:
            raise UsageError("initializers and a library of custom ops in the session options: one group can have both")
        if self._settings.dump_graph:
            from ortopt.runtime.debugging import dump_graph

            dump_graph(model, plan, self._settings.dump_folder)
        self._model = model if request.specialize is not None else None
        self._interface = Interface(model)
        self._take(model, plan)

    def _open_device(self, given: Any) -> list[str]:
        """Get what the groups on CUDA share, if there can be any; what is otherwise than asked for, in words."""
        if CUDA not in self._provider_options or self._settings.run_type is RunType.HOST:
            return []
        from ortopt.runtime.cuda_device import open_device

        options = self._provider_options[CUDA]
        graphs = options.pop("enable_cuda_graph", "0")
        self._device, said = open_device(
            options,
            self._counters,
            self._timeline,
            watched=self._settings.watches_groups,
            one_arena=given is not None and session_options.entry(given, "session.use_env_allocators") == "1",
        )
        told = [f"the groups on {CUDA} share no stream: {said}"] if said else []
        if str(graphs).lower() in {"1", "true"}:
            told.append(
                "enable_cuda_graph is left out, as values between groups do not stay in one place: ask for"
                " specialize_after=1, cuda_graphs=True"
            )
        return told

    def _take(self, model: ir.Model, plan: Plan) -> None:
        """Prepare what every call needs."""
        import onnxruntime

        self._plan = plan
        self._borrow, self._cpu = binding().OrtValue.ortvalue_from_numpy, device("cpu")
        self._names = [value.name or "" for value in model.graph.inputs]
        self._defaults = [plan.template[slot] for slot in plan.inputs]
        self._formals = [_Formal(value) for value in model.graph.inputs]
        self._output_names = [value.name or "" for value in model.graph.outputs]
        self._positions = {name: i for i, name in enumerate(self._output_names)}
        fresh = {slot for step in plan.steps if step.fresh for slot in step.outputs}
        seen: set[int] = set()
        self._shared = []  # whether an output shares memory with an input, a constant or another output
        for slot in plan.outputs:
            self._shared.append(slot not in fresh or slot in seen)
            seen.add(slot)
        run = plan.run
        options = self._maker.options
        if options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL:
            workers = options.inter_op_num_threads or processors()
            self._executor = ThreadPoolExecutor(workers, "ortopt-group")
            parallel = ParallelPlan(plan, self._executor)
            if not parallel.is_chain:
                run = parallel.run
        own = self._device
        self._runner = _Runner(run, onnxruntime.RunOptions() if own is None else own.default_options, own)

    def _working(self, chosen: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
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
        said = "; ".join(f"{name} does not work here: {reason}" for name, reason in reasons.items())
        if not working or not self._enable_fallback:
            raise UsageError(f"{said} (name another provider after it to fall back to)")
        self._counters.add("fallbacks")
        warnings.warn(f"{said}; falling back to {', '.join(working)}", RuntimeWarning, stacklevel=4)
        self._found = working
        return working

    # Running

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Run the model.

        Args:
            output_names: The outputs that are wanted; none or None is all.
            input_feed: Arrays (or lists, dicts, ``onnxruntime.OrtValue``, tensors of libraries that speak DLPack) by
                the inputs' names.
            run_options: ``onnxruntime.RunOptions``.

        Returns:
            A numpy array, a list or a dict for each output.

        Raises:
            ValueError: An input is missing.
            onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument: A name, dtype, rank or size is wrong.
        """
        if self._unusable is not None:
            raise UsageError(self._unusable)
        try:
            if self._timeline is None:
                return self._run(output_names, input_feed, run_options)
            with self._timeline.span("call", "run"):
                return self._run(output_names, input_feed, run_options)
        except binding().EPFail as error:
            self._after_failure(error)
        return self._run(output_names, input_feed, run_options)

    def _run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any) -> list[Any]:
        if self._whole is not None:
            found: list[Any] = self._whole.run(output_names, taken(input_feed), run_options)
            self._counters.called()
            return found
        if output_names:
            self._interface.check_outputs(output_names)
            positions = [self._positions[name] for name in output_names]
        else:
            positions = list(range(len(self._output_names)))
        input_feed = taken(input_feed)
        values, kept = self._arguments(input_feed)
        results, device = self._execute(values, run_options)
        del kept  # the arrays that the arguments lie in: until here
        shared = self._shared
        seen: set[int] = set()
        outputs = []
        for i in positions:
            array = to_numpy(_at_host(results[i], device, self._output_names[i]))
            outputs.append(own(array) if shared[i] or i in seen else array)
            seen.add(i)
        return outputs

    def _execute(self, values: Sequence[Any], run_options: Any) -> tuple[list[Any], CudaDevice | None]:
        """The values of all outputs, and the device on which some of them may be."""
        runner = self._runner
        if runner is None:
            raise UsageError(_CLOSED)
        options = runner.options if run_options is None else run_options
        if runner.device is None:
            results = runner.run(values, (), options)
        else:
            try:
                results = runner.run(values, (), options)
            finally:
                runner.device.synchronize()
        self._counters.called()
        return results, runner.device

    def _arguments(self, feed: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
        """The plan's values for what a caller gave, and what must be kept as long as they are used."""
        values: list[Any] = []
        kept: list[Any] = []
        given = 0
        feed = _present(feed)
        checked = False
        borrow, cpu = self._borrow, self._cpu
        for name, formal, default in zip(self._names, self._formals, self._defaults, strict=True):
            value = feed.get(name, _MISSING)
            if value is _MISSING:
                if default is None and not formal.optional:
                    self._check(feed)
                values.append(default)
                continue
            given += 1
            if type(value) is np.ndarray and formal.accepts(value):
                if not value.flags.c_contiguous:
                    value = np.ascontiguousarray(value)
                    kept.append(value)
                values.append(borrow(value, cpu))
                continue
            inner = getattr(value, "_ortvalue", None)
            if inner is not None and formal.fits(inner):
                values.append(inner)
                kept.append(value)
                continue
            if not checked:
                self._check(feed)
                checked = True
            converted, keep = formal.converted(value)
            values.append(converted)
            kept.append(keep)
        if given != len(feed):
            self._check(feed)
        return values, kept

    def _check(self, feed: Mapping[str, Any]) -> None:
        """Refuse inputs as ONNX Runtime refuses them; the session that is asked knows no device."""
        device = self._device
        if device is not None:
            feed = {name: device.stand_in(value) for name, value in feed.items()}
        self._interface.check_inputs(feed)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """As `run`, from and to ``onnxruntime.OrtValue``: nothing is copied."""
        if self._unusable is not None:
            raise UsageError(self._unusable)
        try:
            return self._run_with_ort_values(output_names, input_dict_ort_values, run_options)
        except binding().EPFail as error:
            self._after_failure(error)
        return self._run_with_ort_values(output_names, input_dict_ort_values, run_options)

    def _run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any
    ) -> list[Any]:
        import onnxruntime

        if self._whole is not None:
            outputs: list[Any] = self._whole.run_with_ort_values(output_names, input_dict_ort_values, run_options)
            self._counters.called()
            return outputs
        names = list(output_names) if output_names else self._output_names
        self._interface.check_outputs(names)
        types = [one.type for one in self._interface.outputs]  # they go when the session is closed meanwhile
        values, _ = self._arguments(input_dict_ort_values)
        results, device = self._execute(values, run_options)
        found = []
        for name in names:
            i = self._positions[name]
            value = _at_host(results[i], device, name)
            value = alone(value) if self._shared[i] else value
            found.append(onnxruntime.OrtValue(wrapped(value, types[i])))
        return found

    def io_binding(self) -> Any:
        """Memory for inputs and outputs, to be bound and given to `run_with_iobinding`."""
        if self._unusable is not None:
            raise UsageError(self._unusable)
        return IOBinding(self) if self._whole is None else self._whole.io_binding()

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """Run the model from and to bound memory.

        Raises:
            ValueError: The binding is another session's, or an input is not bound.
            RuntimeError: What is bound does not fit the model.
        """
        if self._unusable is not None:
            raise UsageError(self._unusable)
        if self._whole is not None:
            self._whole.run_with_iobinding(iobinding, run_options)
            self._counters.called()
            return
        if not isinstance(iobinding, IOBinding) or iobinding._session is not self:
            raise ValueError("IOBinding must be used with the session that created it.")
        if not iobinding.outputs:
            raise RuntimeError("Error in execution: At least one output should be requested.")
        declared = self._interface.outputs
        for name in iobinding.outputs:
            if name not in self._positions:
                raise RuntimeError(f"Error in execution: Invalid output name: {name}")
        try:
            values, _ = self._arguments(iobinding.inputs)
        except binding().InvalidArgument as error:  # so ONNX Runtime says it, of what is bound
            raise RuntimeError(f"Error in execution: {str(error).partition('INVALID_ARGUMENT : ')[2]}") from error
        results, device = self._execute(values, run_options)
        found = {}
        for one, value, shared in zip(declared, results, self._shared, strict=True):
            if one.name in iobinding.outputs:
                mine = alone(_at_host(value, device, one.name)) if shared else value
                found[one.name] = wrapped(mine, one.type)
        iobinding.finish(found, device)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """As `run`, in another thread, which calls ``callback(results, user_data, error)`` when it is done."""
        if self._unusable is not None:
            raise UsageError(self._unusable)
        if self._whole is not None:
            self._whole.run_async(output_names, input_feed, callback, user_data, run_options)
            return

        self._interface.check_names(input_feed)

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as failure:
                results, error = [], str(failure)
            callback(results, user_data, error)

        threading.Thread(target=work, name="ortopt-run-async", daemon=True).start()

    # What there is to know

    def get_inputs(self) -> list[Any]:
        """``onnxruntime.NodeArg`` of each input."""
        return self._interface.inputs if self._whole is None else self._whole.get_inputs()

    def get_outputs(self) -> list[Any]:
        """``onnxruntime.NodeArg`` of each output."""
        return self._interface.outputs if self._whole is None else self._whole.get_outputs()

    def get_overridable_initializers(self) -> list[Any]:
        """``onnxruntime.NodeArg`` of each input that has a default."""
        return self._interface.overridable if self._whole is None else self._whole.get_overridable_initializers()

    def get_modelmeta(self) -> Any:
        """``onnxruntime.ModelMetadata``."""
        return self._interface.metadata if self._whole is None else self._whole.get_modelmeta()

    def get_providers(self) -> list[str]:
        """The execution providers that groups may run on, in order."""
        return list(self._providers) if self._whole is None else self._whole.get_providers()

    def get_provider_options(self) -> dict[str, dict[str, Any]]:
        """The options of each."""
        if self._whole is not None:
            found: dict[str, dict[str, Any]] = self._whole.get_provider_options()
            return found
        return {name: dict(options) for name, options in self._provider_options.items()}

    def get_session_options(self) -> Any:
        """``onnxruntime.SessionOptions``, as they were given."""
        return self._maker.options if self._whole is None else self._whole.get_session_options()

    def disable_fallback(self) -> None:
        """From now on a provider that cannot compile a group, or fails in a run, is an error."""
        self._let_fall_back(False)

    def enable_fallback(self) -> None:
        """From now on other providers take over, the CPU or the host; that is how a session is made."""
        self._let_fall_back(True)

    def _let_fall_back(self, allowed: bool) -> None:
        self._enable_fallback = allowed
        if self._whole is None:
            self._workshop.falls_back = allowed

    def set_providers(
        self, providers: Providers | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Open the model again, on other execution providers; calls that are running end on the old ones.

        Where that fails, the session stays as it was. The statistics go on.

        Raises:
            UsageError: As for the constructor.
        """
        if self._unusable is not None:
            raise UsageError(self._unusable)
        fresh = object.__new__(type(self))
        for name in ("_settings", "_unusable", "_counters", "_timeline", "_disabled", "_enable_fallback", "_request"):
            setattr(fresh, name, getattr(self, name))
        fresh._open(_named(providers, provider_options))
        old = self._executor
        self.__dict__.update(fresh.__dict__)
        if old is not None:
            old.shutdown(wait=False)

    def _after_failure(self, error: Exception) -> None:
        """Go over to the CPU after a provider failed in a run, once; raises the error if that is not wanted."""
        with self._giving_up:
            if self._gave_up:
                return  # in another thread's call
            if not self._enable_fallback:
                raise error
            self._gave_up = True
            self._counters.add("fallbacks")
            warnings.warn(f"a run failed: {one_line(error)}; falling back to {CPU}", RuntimeWarning, stacklevel=4)
            self.set_providers([CPU])
            self.disable_fallback()

    def end_profiling(self) -> str:
        """End ONNX Runtime's profile; its file. With several groups it has all their events, each with its group."""
        return str(self._alive().end_profiling()) if self._whole else self._workshop.maker.profiles.end()

    @property
    def statistics(self) -> Statistics:
        """What this session has counted so far."""
        return self._counters.snapshot()

    @property
    def groups(self) -> tuple[Group, ...]:
        """What is executed apart, in the order in which it was planned; empty where the model is one session."""
        return () if self._whole is not None else tuple(self._workshop.groups)

    def export_specialized(
        self,
        path: str | PathLike[str],
        *,
        external_data: Literal["auto", "inline", "copy", "reuse"] = "auto",
    ) -> Exported:
        """Write what this session has been specialised for, for any runtime: a grouped ONNX model with guards.

        In it an If stands for each group that has an executable of its own for some sizes, or contents: it compares
        the arguments, and calls the version that ortopt has optimized for them, or the group as it was. The version
        that was used last is asked first.

        Args:
            path: The file.
            external_data: Where large weights go, as `ortopt.graph.save.save` has it.

        Returns:
            The file, the versions in it, and what could not be said there.

        Raises:
            UsageError: The session does not specialise, or nothing has been specialised yet.
            OutputError: The file cannot be written.
        """
        if self._unusable is not None:
            raise UsageError(self._unusable)
        if self._model is None:
            raise UsageError("this session does not specialise: make it with specialize_after=")
        from ortopt.runtime.specialized_export import export

        return export(self._model, self.groups, path, external_data)

    def write_trace(self, path: str | PathLike[str]) -> None:
        """Write a timeline of every compile, run and copy so far, in Chrome's trace format.

        Raises:
            UsageError: The session was made without ``trace=True``.
        """
        self._recorded().write(path)

    def trace(self) -> dict[str, Any]:
        """The timeline that `write_trace` writes, as data that json can write.

        Raises:
            UsageError: The session was made without ``trace=True``.
        """
        return self._recorded().as_dict()

    def _recorded(self) -> Timeline:
        if self._timeline is None:
            raise UsageError("nothing was recorded: make the session with trace=True")
        return self._timeline

    def __getattr__(self, name: str) -> Any:
        """What else ONNX Runtime's session has, where the model is one session."""
        whole = self.__dict__.get("_whole")
        if whole is None or name.startswith("_"):
            raise AttributeError(f"a session of several groups has no {name!r}")
        return getattr(whole, name)

    # The end

    def close(self) -> None:
        """Give everything back; calls that are running end as if nothing had happened, later ones are errors."""
        if self._unusable is None:
            self._unusable = _CLOSED
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        if self._whole is None and self._runner is not None:
            self._cache.clear()
            self._workshop.groups.clear()
            self._workshop.maker.profiles.forget()
            del self._plan, self._interface
            self._device = None
            self._model = None
        self._whole = _Closed()
        self._runner = None

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """A session cannot be copied or sent to another process.

        Raises:
            TypeError: Always.
        """
        raise TypeError("an InferenceSession can be neither pickled nor copied: make one of the model in each process")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Closed:
    """In the place of a session that is gone."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError(_CLOSED)


def _count_eviction(counters: Counters, _: object) -> None:
    counters.add("evictions")


class _Request(NamedTuple):
    """What a caller asked for, providers apart: what is needed to open the model again."""

    source: Any
    options: Any
    host_ops: tuple[type, ...]
    specialize: Policy | None
    cache_entries: int
    cache_bytes: int
    global_pool: bool


class _Runner(NamedTuple):
    """What runs a plan: read once by each call, so that it ends on the providers on which it began.

    Attributes:
        run: Called with the arguments, nothing, and run options.
        options: The run options where the caller gives none.
        device: The CUDA device, if there is one.
    """

    run: Callable[[Sequence[Any], Sequence[Any], Any], list[Any]]
    options: Any
    device: CudaDevice | None


_MISSING: Final = object()


class _Formal:
    """An input of the model, and what may be given for it without asking ONNX Runtime."""

    __slots__ = ("_dims", "_dtype", "_kind", "_numpy", "_rank", "optional")

    def __init__(self, value: ir.Value) -> None:
        self.optional = isinstance(value.type, ir.OptionalType)
        self._dtype = value.dtype if isinstance(value.type, ir.TensorType) else None
        plain = self._dtype is not None and is_plain(f"tensor({self._dtype.name.lower()})")
        self._kind = self._dtype.value if plain and self._dtype is not None else None
        numpy = self._dtype.numpy() if plain and self._dtype is not None else None
        self._numpy = numpy if numpy is not None and numpy.isbuiltin == 1 and self._dtype.bitwidth >= 8 else None  # type: ignore[union-attr]
        self._rank = None if value.shape is None else len(value.shape)
        self._dims = [(i, dim) for i, dim in enumerate(value.shape or ()) if isinstance(dim, int)]

    def accepts(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether an array is certainly what the model takes."""
        if array.dtype is not self._numpy and (array.dtype != self._numpy or self._numpy is None):
            return False
        if self._rank is not None and array.ndim != self._rank:
            return False
        shape = array.shape
        return all(shape[i] == size for i, size in self._dims)

    def fits(self, value: Any) -> bool:
        """Whether an OrtValue, ONNX Runtime's C++ object, is certainly what the model takes."""
        if self._kind is None or not value.is_tensor() or value.element_type() != self._kind:
            return False
        shape = value.shape()
        return (self._rank is None or len(shape) == self._rank) and all(shape[i] == size for i, size in self._dims)

    def converted(self, value: Any) -> tuple[Any, Any]:
        """What a plan holds for something that ONNX Runtime accepts, and what must be kept as long as it is used."""
        inner = getattr(value, "_ortvalue", None)
        if inner is not None:
            return inner, value
        if self._numpy is not None and not isinstance(value, np.ndarray):
            value = np.asarray(value, self._numpy)
        return (to_ort(np.array(value)), None) if isinstance(value, np.ndarray) else (value, value)


def _present(feed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the OrtValues that hold nothing: ONNX Runtime leaves them out too, or crashes."""
    absent = [
        name
        for name, value in feed.items()
        if type(value) is not np.ndarray and hasattr(value, "has_value") and not value.has_value()
    ]
    return {name: value for name, value in feed.items() if name not in absent} if absent else feed


def _at_host(value: Any, device: CudaDevice | None, output: str) -> Any:
    """A result in the host's memory."""
    return value if device is None else device.download(value, f"output {output}")


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


def _named(
    providers: Providers | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> dict[str, Mapping[str, Any]] | None:
    """Options by provider, in order; None where the caller named none.

    Raises:
        UsageError: A name is unknown.
        ValueError: The two do not fit; ONNX Runtime's messages.
    """
    if not providers:
        return None
    if isinstance(providers, str):
        raise ValueError("'providers' should be a sequence.")  # noqa: TRY004 -- ONNX Runtime's class
    if provider_options is not None and len(providers) != len(provider_options):
        raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
    chosen: dict[str, Mapping[str, Any]] = {}
    for i, one in enumerate(providers):
        name, options = one if isinstance(one, tuple) else (one, {})
        if not isinstance(name, str) or not isinstance(options, Mapping):
            raise ValueError("'providers' values must be either strings or (string, dict) tuples.")  # noqa: TRY004
        if provider_options is not None:
            if isinstance(one, tuple):
                raise ValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
            options = provider_options[i]
        chosen.setdefault(normalize(name), options)
    return chosen


def _check_host_ops(ops: Sequence[type]) -> None:
    if not ops:
        return
    from onnx.reference.op_run import OpRun

    for op in ops:
        if not (isinstance(op, type) and issubclass(op, OpRun)):
            raise UsageError(f"host_ops takes subclasses of onnx.reference.op_run.OpRun, not {one_line(op)}")


def _is_source(source: Any) -> bool:
    """Whether a model can be loaded from something."""
    if isinstance(source, str | os.PathLike | bytes | ir.Model):
        return True
    import onnx

    return isinstance(source, onnx.ModelProto)


def _check_types(model: ir.Model) -> None:
    """Refuse what ONNX Runtime's Python API can neither take apart nor make."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if isinstance(value.type, ir.SparseTensorType):
            raise UsageError(f"{quoted(value.name)} is a sparse tensor: those cannot pass between groups")


def _check_counts(specialize_after: int | None, cache_entries: int, cache_bytes: int) -> None:
    if specialize_after is not None and specialize_after < 1:
        raise UsageError(f"specialize_after must be at least 1, not {specialize_after}")
    if cache_entries < 1 or cache_bytes < 1:
        raise UsageError("cache_entries and cache_bytes must be at least 1")


def _forked() -> None:
    for session in tuple(_live):
        session._unusable = _FORKED


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

__all__ = ["InferenceSession"]
