"""`InferenceSession`: ONNX Runtime's session for models of which each part may run somewhere else."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, SupportsIndex

import onnx_ir as ir

from ortopt.analysis.providers import CPU, check_installation
from ortopt.errors import UsageError
from ortopt.runtime.decoding.decode_loop import DEFAULT_CAPACITY, CachedSession, DecodeLoop
from ortopt.runtime.denormals import check_denormals
from ortopt.runtime.execution.group_runner import GroupRunner
from ortopt.runtime.instruments import Counters, Statistics, Timeline
from ortopt.runtime.onnxruntime_interface.delegated_methods import DelegatedMethods
from ortopt.runtime.onnxruntime_interface.grouped_session import AsyncCalls, GroupedSession
from ortopt.runtime.onnxruntime_internals import provider_failure, refusals
from ortopt.runtime.run_settings import DEFAULT_BYTES, read_settings
from ortopt.runtime.session_arguments import (
    Providers,
    check_counts,
    check_host_ops,
    check_session_options,
    check_source,
    check_thread_pool,
    named_providers,
    read_onnxruntime_arguments,
    specialization_policy,
    use_global_pool,
    wanted_pairs,
)
from ortopt.runtime.session_factory import SessionRequest, open_session
from ortopt.runtime.values.containers import adopt_dlpack_tensors
from ortopt.serialization.load import held
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    from os import PathLike

    import onnx
    import onnxruntime

    from ortopt.runtime.onnxruntime_internals import NativeDevice, NativeVector
    from ortopt.runtime.specialization.export import Exported
    from ortopt.serialization.load import HoldsModel

_live: weakref.WeakSet[InferenceSession] = weakref.WeakSet()

_CLOSED: Final = "this session is closed"
_FORKED: Final = (
    "this session was made before the process was forked: its threads are in the parent. Make a session in each"
    " process, or start processes with spawn"
)


class InferenceSession(DelegatedMethods):
    """A drop-in for ``onnxruntime.InferenceSession`` that executes fusion groups.

    Each group (a local function of domain ``ortopt.group``, as ``ortopt optimize -O4`` makes them) runs in an ONNX
    Runtime session of its own on its provider, compiled when it is first needed; nodes between groups share sessions;
    what no provider supports runs in ``onnx.reference``, with Python ops of the caller's. A model without groups that
    ONNX Runtime can load as a whole is one session of ONNX Runtime. Any number of threads may call a session. It does
    not survive a fork.

    Args:
        path_or_bytes: A path, the bytes of a model, an ``onnx.ModelProto``, an ``ir.Model``, or what holds one, as a
            result of `optimize` and ``torch.onnx.ONNXProgram`` do.
        sess_options: ``onnxruntime.SessionOptions``. With several groups the intra-op threads are divided among them;
            ``ORT_PARALLEL`` runs groups that do not depend on each other at the same time, on the inter-op threads.
            (Off by default, as in ONNX Runtime: a group already uses all cores.)
        providers: Execution providers in order of preference: ONNX Runtime's names or ``"cpu"``, ``"cuda"``, alone or
            with options; or one text, ``"cuda,cpu"``. One that does not work here is an error, unless others follow
            it: then it is left out, with a warning. None takes those that the groups were made for, and the CPU.
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
        cache_entries: How many specialised executables there are at most, all groups together; None for 64, or one for
            each group if there are more. Where all are in use, further ones are not made.
        cache_bytes: How many bytes they have together at most, weights included: those in memory, those in files
            where kernels may pack them (tables that are only looked up in stay in the file), on a device all.
        shared_cache: Whether each past of a decoder shares a buffer with its present, for `decode_loop`: True for all
            pairs that the graph proves, or the presents' names by those of their pasts. On the CPU. Then `decode_loop`
            is the only way to run.
        denormals_as_zero: Whether kernels take denormal numbers for zero, which is many times as fast where there are
            any: in the session's threads, and in the calling thread during a call. Linux on x86-64.
        cache_folder: Where optimized group models are kept from one process to the next; None keeps none.
        trace: Whether every compile, run and copy is recorded for `write_trace`.
        rtol: For ``"debug"``; None asks ``ORTOPT_RELATIVE_TOLERANCE``.
        atol: For ``"debug"``; None asks ``ORTOPT_ABSOLUTE_TOLERANCE``.
        dump_folder: Where ``ORTOPT_DUMP_GRAPH``, ``ORTOPT_DUMP_GROUPS``, ``ORTOPT_DUMP_INPUTS_OUTPUTS`` and
            ``"debug"`` write; None is ``ortopt-dump``.
        **kwargs: What ONNX Runtime's session takes besides: ``disabled_optimizers``, ``enable_fallback``.

    Raises:
        UsageError: An argument or an environment variable makes no sense, or a provider does not work here.
        MissingRuntimeError: No ONNX Runtime is installed, or one that is too old.
        InvalidModelError: The model is broken.
        onnxruntime.capi.onnxruntime_pybind11_state.Fail: And its kin: ONNX Runtime refuses the model.
    """

    def __init__(
        self,
        path_or_bytes: str | PathLike[str] | bytes | onnx.ModelProto | ir.Model | HoldsModel,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Providers | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        run_type: Literal["ort", "reference", "host", "debug"] | None = None,
        host_ops: Sequence[type] = (),
        thread_pool: Literal["session", "global"] = "session",
        specialize_after: int | None = None,
        specialize_constants: bool = False,
        cuda_graphs: bool = False,
        cache_entries: int | None = None,
        cache_bytes: int = DEFAULT_BYTES,
        cache_folder: str | PathLike[str] | None = None,
        shared_cache: bool | Mapping[str, str] = False,
        denormals_as_zero: bool = False,
        trace: bool = False,
        rtol: float | None = None,
        atol: float | None = None,
        dump_folder: str | PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        check_installation()
        path_or_bytes = held(path_or_bytes)
        check_source(path_or_bytes)
        settings = read_settings(run_type, rtol, atol, dump_folder)
        disabled, self._enable_fallback = read_onnxruntime_arguments(kwargs)
        check_host_ops(host_ops)
        check_counts(specialize_after, cache_entries, cache_bytes)
        check_thread_pool(thread_pool)
        check_session_options(sess_options)
        chosen = named_providers(providers, provider_options)
        if denormals_as_zero:
            check_denormals(thread_pool)
        if thread_pool == "global":
            use_global_pool(sess_options)
        self._counters = Counters()
        self._timeline = Timeline() if trace else None
        self._request = SessionRequest(
            path_or_bytes,
            sess_options,
            settings,
            disabled,
            tuple(host_ops),
            specialization_policy(specialize_after, specialize_constants, cuda_graphs, cache_folder),
            cache_entries,
            cache_bytes,
            thread_pool == "global",
            self._counters,
            self._timeline,
            denormals_as_zero,
            wanted_pairs(shared_cache),
        )
        self._unusable: str | None = None
        self._lock = threading.Lock()
        self._gave_up = False  # a provider, after it failed in a run
        self._callers = AsyncCalls()
        # ONNX Runtime's session, or one of several groups: each call reads this once, and ends on what it found.
        self._session: onnxruntime.InferenceSession | GroupedSession = open_session(
            self._request, chosen, falls_back=self._enable_fallback
        )
        _live.add(self)

    # Running

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None = None,
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
        return self._run(self._alive(), output_names, adopt_dlpack_tensors(input_feed), run_options)

    def _run(
        self,
        session: onnxruntime.InferenceSession | GroupedSession,
        output_names: Sequence[str] | None,
        feed: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
    ) -> list[Any]:
        try:
            if self._timeline is None:
                results = session.run(output_names, feed, run_options)
            else:
                with self._timeline.span("call", "run"):
                    results = session.run(output_names, feed, run_options)
        except provider_failure() as error:
            results = self._after_failure(error).run(output_names, feed, run_options)
        self._counters.called()
        return results

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, onnxruntime.OrtValue],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> list[onnxruntime.OrtValue]:
        """As `run`, from and to ``onnxruntime.OrtValue``: nothing is copied."""
        session = self._alive()
        try:
            results = session.run_with_ort_values(output_names, input_dict_ort_values, run_options)
        except provider_failure() as error:
            fallback = self._after_failure(error)
            results = fallback.run_with_ort_values(output_names, input_dict_ort_values, run_options)
        self._counters.called()
        return results

    def run_with_ortvaluevector(
        self,
        run_options: onnxruntime.RunOptions,
        feed_names: Sequence[str],
        feeds: NativeVector,
        fetch_names: Sequence[str],
        fetches: NativeVector,
        fetch_devices: Sequence[NativeDevice],
    ) -> None:
        """As `run_with_ort_values`, from and to ONNX Runtime's vectors of values.

        Args:
            run_options: ``onnxruntime.RunOptions``.
            feed_names: The names of inputs.
            feeds: An ``OrtValueVector`` of their values.
            fetch_names: The names of outputs.
            fetches: An ``OrtValueVector``: an empty one is filled, values in it are written to.
            fetch_devices: Where each output is wanted.

        Raises:
            onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument: There are not as many values as names, or one
                does not fit.
        """
        self._alive().run_with_ortvaluevector(run_options, feed_names, feeds, fetch_names, fetches, fetch_devices)
        self._counters.called()

    def io_binding(self) -> Any:
        """Memory for inputs and outputs, to be bound and given to `run_with_iobinding`."""
        return self._alive().io_binding()

    def run_with_iobinding(self, iobinding: Any, run_options: onnxruntime.RunOptions | None = None) -> None:
        """Run the model from and to bound memory.

        Raises:
            ValueError: The binding is another session's.
            RuntimeError: An input is not bound, or what is bound does not fit the model.
        """
        self._alive().run_with_iobinding(iobinding, run_options)
        self._counters.called()

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: onnxruntime.RunOptions | None = None,
    ) -> None:
        """As `run`, in another thread, which calls ``callback(results, user_data, error)`` when it is done.

        With several groups as many calls as there are processors run at a time, and those that have been made are done
        before the process ends.
        """
        session = self._alive()
        if not callable(callback):
            raise TypeError(f"callback must be callable, not {type(callback).__name__}")
        feed = adopt_dlpack_tensors(input_feed)
        if isinstance(session, GroupedSession):
            names = output_names if output_names is None or isinstance(output_names, str) else list(output_names)
            with contextlib.suppress(*refusals()):  # the callback gets the error
                session.check(names, feed)
            self._callers.submit(lambda: self._run(session, names, feed, run_options), callback, user_data)
            return

        def counted(results: list[Any], data: Any, error: str) -> None:
            if not error:
                self._counters.called()
            callback(results, data, error)

        session.run_async(output_names, feed, counted, user_data, run_options)

    def decode_loop(self, capacity: int = DEFAULT_CAPACITY) -> DecodeLoop:
        """A decode loop: calls of a decoder, one after the other, on a cache that is never copied.

        Args:
            capacity: How many positions there is room for at first; what does not fit doubles it, which is a copy.

        Raises:
            UsageError: The session was made without ``shared_cache``.
        """
        session = self._alive()
        if not isinstance(session, CachedSession):
            raise UsageError("this session has no cache: make it with shared_cache=True")
        return DecodeLoop(session, capacity, self._counters)

    # What runs the model

    @property
    def _model_path(self) -> str | None:
        """The model's file, None without one; private to ONNX Runtime's session, and read of it by Optimum."""
        source = self._request.source
        return os.fspath(source) if isinstance(source, str | os.PathLike) else None

    def _alive(self) -> onnxruntime.InferenceSession | GroupedSession:
        """What runs the model, unless it must not be asked any more."""
        if self._unusable is not None:
            raise UsageError(self._unusable)
        return self._session

    def disable_fallback(self) -> None:
        """From now on a provider that cannot compile a group, or fails in a run, is an error."""
        self._let_fall_back(False)

    def enable_fallback(self) -> None:
        """From now on other providers take over, the CPU or the host; that is how a session is made."""
        self._let_fall_back(True)

    def _let_fall_back(self, allowed: bool) -> None:
        self._enable_fallback = allowed
        if isinstance(self._session, GroupedSession):
            self._session.context.falls_back = allowed

    def set_providers(
        self, providers: Providers | None = None, provider_options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Open the model again, on other execution providers; calls that are running end on the old ones.

        Where that fails, the session stays as it was. The statistics go on.

        Raises:
            UsageError: As for the constructor.
        """
        old = self._alive()
        self._session = open_session(
            self._request, named_providers(providers, provider_options), falls_back=self._enable_fallback
        )
        if isinstance(old, GroupedSession):
            old.retire()

    def _after_failure(self, error: Exception) -> onnxruntime.InferenceSession | GroupedSession:
        """Go over to the CPU after a provider failed in a run, once; raises the error if that is not wanted.

        Returns:
            What runs the model now.
        """
        with self._lock:
            if not self._gave_up:  # in another thread's call
                if not self._enable_fallback:
                    raise error
                self._gave_up = True
                self._counters.add("fallbacks")
                warnings.warn(f"a run failed: {one_line(error)}; falling back to {CPU}", RuntimeWarning, stacklevel=4)
                self.set_providers([CPU])
                self.disable_fallback()
        return self._alive()

    @property
    def statistics(self) -> Statistics:
        """What this session has counted so far."""
        return self._counters.snapshot()

    @property
    def groups(self) -> tuple[GroupRunner, ...]:
        """What is executed apart, in the order in which it was planned; empty where the model is one session."""
        return tuple(self._session.context.groups) if isinstance(self._session, GroupedSession) else ()

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
            external_data: Where large weights go, as `ortopt.serialization.save.save` has it.

        Returns:
            The file, the versions in it, and what could not be said there.

        Raises:
            UsageError: The session does not specialise, or nothing has been specialised yet.
            OutputError: The file cannot be written.
        """
        session = self._alive()
        if not isinstance(session, GroupedSession) or session.model is None:
            raise UsageError("this session does not specialise: make it with specialize_after=")
        from ortopt.runtime.specialization.export import export

        return export(session.model, session.context.groups, path, external_data)

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
        session = self.__dict__.get("_session")
        if session is None or isinstance(session, GroupedSession) or name.startswith("_"):
            raise AttributeError(f"a session of several groups has no {name!r}")
        return getattr(session, name)

    # The end

    def close(self) -> None:
        """Give everything back; calls that are running end as if nothing had happened, later ones are errors."""
        if self._unusable is None:
            self._unusable = _CLOSED
        self._callers.close()
        old, self._session = self._session, _Closed()
        if isinstance(old, GroupedSession):
            old.close()

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


def _forked() -> None:
    for session in tuple(_live):
        session._unusable = _FORKED


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
