"""The arguments of `InferenceSession`, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ortopt.analysis.providers import normalize
from ortopt.errors import UsageError
from ortopt.evaluation.sessions import share_threads
from ortopt.option_kinds import commas
from ortopt.terminal_text import one_line

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.execution.session_maker import ProviderOptions
    from ortopt.runtime.specialization.specializing import SpecializationPolicy


Providers = str | Sequence[str | tuple[str, Mapping[str, Any]]]
"""Execution providers that a caller names, alone or with options, in order of preference; a text as the flag's."""


def check_source(source: object) -> None:
    """Refuse what no model can be loaded from.

    Raises:
        TypeError: It is neither a path, bytes nor a model.
    """
    if isinstance(source, str | os.PathLike | bytes | ir.Model):
        return
    import onnx

    if not isinstance(source, onnx.ModelProto):
        raise TypeError(f"Unable to load from type '{type(source)}'")


def read_onnxruntime_arguments(arguments: dict[str, Any]) -> tuple[tuple[str, ...], bool]:
    """What only ONNX Runtime's session documents: the optimizers that are left out, and whether providers fall back.

    Raises:
        UsageError: An argument is unknown.
    """
    disabled = tuple(arguments.pop("disabled_optimizers", None) or ())
    falls_back = bool(int(arguments.pop("enable_fallback", 1)))
    arguments.pop("read_config_from_model", None)
    if arguments:
        raise UsageError(f"InferenceSession takes no {', '.join(sorted(arguments))}")
    return disabled, falls_back


def check_host_ops(ops: Sequence[type]) -> None:
    """Refuse ops that onnx's reference implementation cannot run.

    Raises:
        UsageError: One is no subclass of ``OpRun``.
    """
    if not ops:
        return
    from onnx.reference.op_run import OpRun

    for op in ops:
        if not (isinstance(op, type) and issubclass(op, OpRun)):
            raise UsageError(f"host_ops takes subclasses of onnx.reference.op_run.OpRun, not {one_line(op)}")


def check_counts(specialize_after: int | None, cache_entries: int | None, cache_bytes: int) -> None:
    """Refuse counts below 1.

    Raises:
        UsageError: One is.
    """
    if specialize_after is not None and specialize_after < 1:
        raise UsageError(f"specialize_after must be at least 1, not {specialize_after}")
    if (cache_entries is not None and cache_entries < 1) or cache_bytes < 1:
        raise UsageError("cache_entries and cache_bytes must be at least 1")


def check_session_options(options: object) -> None:
    """Refuse what are no options of a session.

    Raises:
        TypeError: They are neither None nor ``onnxruntime.SessionOptions``.
    """
    if options is None:
        return
    import onnxruntime

    if not isinstance(options, onnxruntime.SessionOptions):
        raise TypeError(f"sess_options must be onnxruntime.SessionOptions, not {type(options).__name__}")


def check_thread_pool(name: str) -> None:
    """Refuse a pool that there is not.

    Raises:
        UsageError: It is neither ``"session"`` nor ``"global"``.
    """
    if name not in ("session", "global"):
        raise UsageError(f"thread_pool must be session or global, not {name!r}")


def use_global_pool(options: onnxruntime.SessionOptions | None) -> None:
    """Let all sessions of the process share one pool, with the threads of the options that are first used."""
    if options is None:
        share_threads(0, 0)
    else:
        share_threads(options.intra_op_num_threads, options.inter_op_num_threads)


def wanted_pairs(shared_cache: bool | Mapping[str, str]) -> Mapping[str, str] | None:
    """The presents by their pasts' names; empty for all that there are, None for none.

    Raises:
        UsageError: The caller named none.
    """
    if isinstance(shared_cache, bool):
        return {} if shared_cache else None
    if not shared_cache:
        raise UsageError("shared_cache names no past: say True for all")
    return dict(shared_cache)


def specialization_policy(
    after: int | None,
    constants: bool,
    cuda_graphs: bool,
    folder: str | os.PathLike[str] | None,
) -> SpecializationPolicy | None:
    """When groups are specialised, None for never."""
    if after is None:
        return None
    from ortopt.runtime.specialization.specializing import SpecializationPolicy

    return SpecializationPolicy(after, constants, cuda_graphs, folder)


def named_providers(
    providers: Providers | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> ProviderOptions | None:
    """Options by provider, in order, of ONNX Runtime's two ways to say it; None where the caller named none.

    Raises:
        UsageError: A name is unknown.
        ValueError: The two do not fit; ONNX Runtime's messages.
    """
    if provider_options is not None and not isinstance(provider_options, Sequence):
        raise ValueError("'provider_options' should be a sequence.")
    if isinstance(providers, str):
        providers = commas((providers,))
    if not providers:
        return None
    if not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")  # noqa: TRY004 -- ONNX Runtime's class
    if provider_options is not None:
        if len(providers) != len(provider_options):
            raise ValueError("'providers' and 'provider_options' should be the same length if both are given.")
        if not all(isinstance(provider, str) for provider in providers):
            raise ValueError("Only string values for 'providers' are supported if 'provider_options' is given.")
        if not all(isinstance(options, Mapping) for options in provider_options):
            raise ValueError("'provider_options' values must be dicts.")
        providers = list(zip(providers, provider_options, strict=True))  # type: ignore[arg-type]
    chosen: dict[str, Mapping[str, Any]] = {}
    for provider in providers:
        if not isinstance(provider, str) and not _is_pair(provider):
            raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
        name, options = (provider, {}) if isinstance(provider, str) else provider
        chosen.setdefault(normalize(name), {str(key): str(value) for key, value in options.items()})
    return chosen


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], Mapping)
