"""Sessions of ONNX Runtime as ortopt makes them: quiet, without optimization unless asked for, on one thread pool."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ortopt.analysis.providers import CPU, check_installation, require_usable
from ortopt.errors import OutputError, UsageError
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime

BIG_GRAPH: Final = 2_000
"""From this many nodes on, ORT's memory planner (quadratic) is turned off."""

_FATAL: Final = 4  # ONNX Runtime's number of that severity

_process_pool: list[tuple[int, int]] = []


def shares_threads() -> bool:
    """Whether every session of this process must use ONNX Runtime's global thread pool: it has been set up."""
    return bool(_process_pool)


def thread_attributes() -> tuple[str, ...]:
    """What ``onnxruntime.SessionOptions`` say of a shared thread pool: nothing before ONNX Runtime 1.23."""
    import onnxruntime

    names = ("use_per_session_threads",)
    return tuple(name for name in names if hasattr(onnxruntime.SessionOptions, name))


def _choose_pool(options: onnxruntime.SessionOptions) -> None:
    """Let a session have the threads that the process shares, if it does."""
    for name in thread_attributes():
        setattr(options, name, not shares_threads())


def use_one_thread(options: onnxruntime.SessionOptions) -> None:
    """Let a session have no threads of its own; where the process shares a pool, that pool, without a warning."""
    _choose_pool(options)
    if not shares_threads():
        options.intra_op_num_threads = 1


def share_threads(intra: int, inter: int) -> None:
    """Set up ONNX Runtime's global thread pool; from then on every session of the process must use it.

    Args:
        intra: Threads within an op, 0 for as many as there are cores.
        inter: Threads across ops.

    Raises:
        UsageError: It was set up with other sizes: it cannot be resized. Or this ONNX Runtime has none.
    """
    import onnxruntime

    if not thread_attributes():
        raise UsageError(f"one thread pool for all sessions needs ONNX Runtime 1.23, not {onnxruntime.__version__}")
    if not _process_pool:
        onnxruntime.set_global_thread_pool_sizes(intra, inter)
        _process_pool.append((intra, inter))
    elif _process_pool[0] != (intra, inter):
        raise UsageError(
            f"the global thread pool has {_process_pool[0][0]} intra-op and {_process_pool[0][1]} inter-op threads"
            f" already; it cannot be resized to {intra} and {inter}"
        )


def use_shared_threads(options: onnxruntime.SessionOptions, threads: int) -> None:
    """Let a session run in the threads of the others: those of one would spin while another one is timed.

    Args:
        options: The session's options.
        threads: Intra-op threads; 0 is ONNX Runtime's default.
    """
    if not thread_attributes():
        options.add_session_config_entry("session.force_spinning_stop", "1")
        return
    share_threads(threads, 1)
    _choose_pool(options)
    options.intra_op_num_threads = 0


def quiet_options(threads: int = 0) -> tuple[Any, Any]:
    """``onnxruntime.SessionOptions`` and ``RunOptions`` under which ONNX Runtime logs nothing: its errors are raised.

    Args:
        threads: Intra-op threads; 0 leaves ONNX Runtime's default.
    """
    import onnxruntime

    session_options, run_options = onnxruntime.SessionOptions(), onnxruntime.RunOptions()
    for options in (session_options, run_options):
        options.log_severity_level = _FATAL
    _choose_pool(session_options)
    session_options.intra_op_num_threads = 0 if shares_threads() else threads
    onnxruntime.set_default_logger_severity(_FATAL)
    return session_options, run_options


def register_libraries(options: onnxruntime.SessionOptions, libraries: Iterable[str]) -> None:
    """Make the ops of shared libraries known to the sessions that are made with some options.

    Args:
        options: The options.
        libraries: Paths of the libraries.
    """
    for library in libraries:
        options.register_custom_ops_library(library)


def session(
    model: bytes | os.PathLike[str] | str | ir.Model,
    *,
    optimize: bool = False,
    providers: Sequence[str] = (CPU,),
    threads: int | None = None,
) -> onnxruntime.InferenceSession:
    """A session of ONNX Runtime that prints nothing on stderr.

    Args:
        model: A path, a serialized model, or a model of less than 2 GB.
        optimize: Whether ORT optimizes the graph itself; otherwise it runs as it is.
        providers: Full names, in order of preference; the CPU provider is always the last resort.
        threads: Threads within an op; None leaves it to ORT.

    Raises:
        UsageError: A provider does not work on this machine.
    """
    check_installation()
    require_usable(providers)
    import onnx_ir as ir
    import onnxruntime

    from ortopt.serialization.scan import count_nodes

    if isinstance(model, ir.Model):
        nodes = sum(1 for _ in model.graph.all_nodes())
        model = bytes(ir.to_proto(model).SerializeToString())
    else:
        nodes = count_nodes(model)
    options = onnxruntime.SessionOptions()
    _choose_pool(options)
    options.log_severity_level = _FATAL
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    if nodes > BIG_GRAPH:
        options.enable_mem_reuse = False
        options.enable_mem_pattern = False
    if threads is not None:
        options.intra_op_num_threads = threads
    names = list(dict.fromkeys((*providers, CPU)))
    return onnxruntime.InferenceSession(model if isinstance(model, bytes) else os.fspath(model), options, names)


def convert(source: Path, target: Path, libraries: Iterable[str] = ()) -> None:
    """Write a model in ONNX Runtime's format, without optimizing it: its nodes stay those of the model.

    Args:
        source: An ONNX file.
        target: The file.
        libraries: Shared libraries of ops that the model needs.

    Raises:
        OutputError: ONNX Runtime cannot load the model.
        MissingRuntimeError: There is none.
    """
    check_installation()
    import onnxruntime

    options, _ = quiet_options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(target)
    options.add_session_config_entry("session.save_model_format", "ORT")
    try:
        register_libraries(options, libraries)
        onnxruntime.InferenceSession(str(source), options, [CPU])
    except Exception as error:  # whatever ONNX Runtime raises: there are a dozen classes
        reason = one_line(error)
        raise OutputError(f"ONNX Runtime cannot write this model in its own format: {reason}") from error
