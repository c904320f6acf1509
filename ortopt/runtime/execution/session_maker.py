"""Sessions of ONNX Runtime for groups: the caller's options, less what only one session can have."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ortopt.analysis.providers import CPU, CUDA, usable
from ortopt.errors import InvalidModelError
from ortopt.evaluation.sessions import thread_attributes
from ortopt.runtime import denormals
from ortopt.runtime.denormals import kept_flags
from ortopt.runtime.execution import session_options
from ortopt.runtime.execution.arena import ENTRY, Arena
from ortopt.runtime.execution.weights import Placed
from ortopt.runtime.instruments import Profiles
from ortopt.runtime.onnxruntime_internals import NativeSession, uninitialized_session

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.cuda.device import CudaDevice

ProviderOptions = Mapping[str, Mapping[str, Any]]
"""Options by provider, in order of preference."""

_lock = threading.Lock()

_SPINNING: Final = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")


class ProviderLeftOut(RuntimeError):  # noqa: N818 -- what ONNX Runtime itself takes for no error
    """ONNX Runtime has made a session without one of the providers that it was to have."""


class SessionMaker:
    """Makes the sessions of one caller's model.

    Args:
        options: The caller's ``onnxruntime.SessionOptions``, or None for the defaults.
        provider_options: Options by provider.
        disabled_optimizers: Names of ONNX Runtime's optimizers that are left out.
        global_pool: Whether all sessions use the process's thread pool.
        copies: Copies of the options, if there are any.

    Attributes:
        options: The caller's options.
        provider_options: Options by provider, in order.
        device: The CUDA device of its CUDA sessions, if there are any.
        denormals_as_zero: Whether denormals are zero in the sessions' threads.
        has_initializers: Whether the caller's options have initializers, which the model has by now.
        profiles: ONNX Runtime's profiles of the sessions.
    """

    def __init__(
        self,
        options: onnxruntime.SessionOptions | None,
        provider_options: ProviderOptions,
        disabled_optimizers: Sequence[str] = (),
        *,
        global_pool: bool = False,
        copies: session_options.Copies | None = None,
    ) -> None:
        import onnxruntime

        self.options = onnxruntime.SessionOptions() if options is None else options
        self._given = options
        self._copies = copies
        self.provider_options = provider_options
        self._disabled = set(disabled_optimizers)
        self._global_pool = global_pool
        self.device: CudaDevice | None = None
        self.denormals_as_zero = False
        self.has_initializers = False
        self.profiles = Profiles(self.options)
        self._arena = Arena(self.options)
        self._afterwards: dict[str, Callable[[NativeSession], object]] = {}
        self._made: weakref.WeakSet[NativeSession] = weakref.WeakSet()

    def of_all(self, what: str, change: Callable[[NativeSession], object]) -> None:
        """Change all sessions that there are, and those that will be made.

        Args:
            what: What is changed: a later change of the same replaces it.
            change: Called with ONNX Runtime's C++ session.
        """
        self._afterwards[what] = change
        for session in list(self._made):
            change(session)

    def make(
        self,
        placed: Placed,
        providers: Sequence[str],
        *,
        label: str,
        threads: int | None,
        optimize: bool,
        foreign: bool = False,
        provider_options: ProviderOptions | None = None,
    ) -> NativeSession:
        """A session, as ONNX Runtime's C++ object. Raises what ONNX Runtime raises.

        Args:
            placed: The model.
            providers: Execution providers, in order.
            label: A name for what belongs to this session alone (its profile).
            threads: Its intra-op threads, without spinning; None leaves the caller's setting.
            optimize: Whether ONNX Runtime may optimize.
            foreign: Whether the model has ops that only a library in the caller's options can bring.
            provider_options: Options by provider besides the caller's.
        """
        if CUDA in providers:
            usable(CUDA)  # loads the libraries that the provider looks for
        for file in placed.kept:
            if not file.is_at(file.path):
                raise InvalidModelError(f"{file.path!r} has changed since the model was loaded")
        captures = "enable_cuda_graph" in (provider_options or {}).get(CUDA, {})
        entries = self._entries(placed, providers, threads, foreign=foreign, captures=captures)
        device = self.device if CUDA in providers else None
        kept = kept_flags() if self.denormals_as_zero else contextlib.nullcontext()
        using = self._own(entries, label, threads, optimize=optimize, foreign=foreign)
        with kept, using as options, self._making(providers, entries):
            session = uninitialized_session(options, placed.model)
            if device is not None:
                device.outlives(session)
            self._initialize(session, providers, provider_options or {})
            if options.enable_profiling:
                self.profiles.add(label, session)
        if ENTRY in entries:
            self._arena.joined(session)
        self._made.add(session)
        for change in list(self._afterwards.values()):
            change(session)
        return session

    def _entries(
        self, placed: Placed, providers: Sequence[str], threads: int | None, *, foreign: bool, captures: bool = False
    ) -> dict[str, str]:
        """The configuration entries of a session besides the caller's."""
        entries: dict[str, str] = {}
        has_pool = not self._global_pool and not (foreign and threads == 1)  # else it would only warn
        if threads is not None and has_pool:
            entries.update(dict.fromkeys(_SPINNING, "0"))
        if self.denormals_as_zero:
            entries[denormals.ENTRY] = "1"
        entries.update(placed.entries)
        # A library of custom ops means the caller's own object, in which ONNX Runtime warns of each entry changed back.
        if tuple(providers) == (CPU,) and not foreign:
            entries.update(self._arena.entries())
        # Who has an arena of their own on the CPU may have one on the device, too.
        if CUDA in providers and self.device is not None and not (foreign or captures) and self._arena.entries():
            entries.update(self._arena.entries() if self.device.shares_memory() else {})
        return entries

    def _making(self, providers: Sequence[str], entries: Mapping[str, str]) -> contextlib.AbstractContextManager[None]:
        """Around the making of a session with these entries."""
        if CUDA in providers and self.device is not None and ENTRY in entries:
            return self.device.making_shared()
        return making_on(providers)

    def _initialize(self, session: NativeSession, providers: Sequence[str], more: ProviderOptions) -> None:
        """Make a session's kernels.

        Args:
            session: The session.
            providers: Execution providers, in order.
            more: Options by provider besides the caller's.

        Raises:
            ProviderLeftOut: ONNX Runtime leaves a provider out. Or what ONNX Runtime raises.
        """
        shared = {} if self.device is None else {CUDA: self.device.session_options()}
        merged = [
            {**self.provider_options.get(name, {}), **shared.get(name, {}), **more.get(name, {})} for name in providers
        ]
        options = [{str(key): str(text) for key, text in settings.items()} for settings in merged]
        session.initialize_session(list(providers), options, self._disabled)
        missing = [provider for provider in providers if provider not in session.get_providers()]
        if missing:  # ONNX Runtime says so on stderr, if at all, and goes on with the others
            raise ProviderLeftOut(f"ONNX Runtime made no {missing[0]}: its own words are on stderr")

    def _copy(self) -> onnxruntime.SessionOptions:
        """Options like the caller's."""
        import onnxruntime

        if self._given is None:
            return onnxruntime.SessionOptions()
        if self.has_initializers or session_options.has_affinities(self._given):  # these count one session's threads
            return _known(self._given)
        if self._copies is None:
            self._copies = session_options.Copies(self._given)
        return self._copies.make()

    @contextlib.contextmanager
    def _own(
        self, entries: Mapping[str, str], label: str, threads: int | None, *, optimize: bool, foreign: bool
    ) -> Iterator[onnxruntime.SessionOptions]:
        """Options for one session.

        They are a copy of the caller's. What a copy lacks is a library of custom ops: where the model needs one, the
        caller's own object is used and changed back, at the price of ONNX Runtime's warnings about it.
        """
        import onnxruntime

        with _lock if foreign else contextlib.nullcontext():
            options = self.options if foreign else self._copy()
            saved = {name: getattr(options, name) for name in (*_CHANGED, *thread_attributes())}
            before = {key: session_options.entry(options, key) for key in entries}
            try:
                if threads is not None:
                    options.intra_op_num_threads = 0 if self._global_pool else threads
                    options.optimized_model_filepath = ""
                    options.profile_file_prefix = f"{options.profile_file_prefix}-{label}"
                if not optimize:
                    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
                if not self.profiles.goes_on:
                    options.enable_profiling = False
                if self._global_pool:
                    for name in thread_attributes():
                        setattr(options, name, False)
                for key, value in entries.items():
                    if before[key] != value:
                        options.add_session_config_entry(key, value)
                yield options
            finally:
                if foreign:
                    for name, value in saved.items():
                        setattr(options, name, value)
                    for key, old in before.items():
                        if old != entries[key]:
                            options.add_session_config_entry(key, _DEFAULTS.get(key, "") if old is None else old)


def making_on(providers: Iterable[str]) -> contextlib.AbstractContextManager[None]:
    """Around the making of a session: one on CUDA waits for a capture to end, and a capture for it.

    Args:
        providers: The session's execution providers.
    """
    if CUDA not in providers:
        return contextlib.nullcontext()
    from ortopt.runtime.cuda.capture_gate import GATE

    return GATE


def _known(original: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    """Options like others, initializers apart: what ONNX Runtime tells of them, and the entries that ortopt knows."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    for name in (*_ATTRIBUTES, *thread_attributes()):
        value = getattr(original, name)
        if value != getattr(options, name):
            setattr(options, name, value)
    for key, text in session_options.named(_ENTRIES, original).items():
        options.add_session_config_entry(key, text)
    return options


_CHANGED: Final = (
    "intra_op_num_threads",
    "graph_optimization_level",
    "optimized_model_filepath",
    "profile_file_prefix",
    "enable_profiling",
)
_ATTRIBUTES: Final = (
    *_CHANGED,
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "execution_mode",
    "execution_order",
    "inter_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "logid",
    "use_deterministic_compute",
)
# fmt: off
_ENTRIES: Final = (
    *(f"mlas.{name}" for name in (
        "disable_kleidiai", "kleidiai.conv_igemm_max_work", "nchwc_depthwise_sliding", "qnbit.force_fp32",
        "nchwc_pointwise_conv_max_input_channel_batch", "use_lut_gemm",
    )),
    "ep.cuda.fpa_intb_gemm",
    "ep.cuda.fpa_intb_profile_m",
    "ep.cuda.gqa_workspace_max_total_sequence_length",
    *(f"optimization.{name}" for name in (
        "constant_folding_max_output_size_in_bytes", "disable_specified_optimizers", "enable_cast_chain_elimination",
        "enable_gelu_approximation", "minimal_build_optimizations",
    )),
    *(f"session.{name}" for name in (
        "allow_released_opsets_only", "debug_layout_transformation", "disable_aot_function_inlining",
        "disable_cpu_ep_fallback", "disable_double_qdq_remover", "disable_prepacking", "disable_qdq_constant_folding",
        "disable_quant_qdq", "dynamic_block_base", "enable_dq_matmulnbits_fusion", "enable_quant_qdq_cleanup",
        "force_spinning_stop", "function_expansion_byte_limit", "function_expansion_node_limit", "gqa_value_layout",
        "graph_optimizations_loop_level", "inter_op.allow_spinning",
        "inter_op.spin_backoff_max", "inter_op.spin_duration_us", "intra_op.allow_spinning",
        "intra_op.spin_backoff_max", "intra_op.spin_duration_us", "prepack.enable_parallel",
        "qdq_matmulnbits_accuracy_level", "qdq_matmulnbits_block_size", "qdqisint8allowed",
        "max_shape_override", "strict_workspace_verification",
        "record_ep_graph_assignment_info", "set_denormal_as_zero", "strict_shape_type_inference",
        "use_device_allocator_for_initializers", "use_env_allocators", "x64quantprecision",
    )),
)
# fmt: on
_DEFAULTS: Final = {**dict.fromkeys(_SPINNING, "1"), denormals.ENTRY: "0"}
