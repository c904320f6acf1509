"""The execution providers that a caller names, with their options: ONNX Runtime's two ways to say it as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ortopt.analysis.providers import normalize

Providers = Sequence[str | tuple[str, Mapping[str, Any]]]
"""Names, alone or with options, in order of preference."""

ProviderOptions = Mapping[str, Mapping[str, Any]]
"""Options by provider, in order of preference."""


def named_providers(
    providers: Providers | None, provider_options: Sequence[Mapping[str, Any]] | None
) -> ProviderOptions | None:
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
