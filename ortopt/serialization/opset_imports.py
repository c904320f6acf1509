"""Which version of each opset a file means, as ONNX Runtime reads it, and what files have from which IR version on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ortopt.errors import InvalidModelError
from ortopt.semantics.domains import BLOCKED, MICROSOFT, ML, TRAINING
from ortopt.terminal_text import quoted

CONSTANT_INITIALIZERS_FROM_IR: Final = 4
"""Initializers that are no graph inputs, and so constants; before, every initializer had to be one."""

FUNCTION_TYPES_FROM_IR: Final = 10
"""Types of values in functions; before, exporters wrote them into the main graph."""

METADATA_FROM_IR: Final = 10
"""Metadata of nodes."""

DEVICES_FROM_IR: Final = 11
"""Device configurations."""


NEWEST_OF_ONNX_RUNTIME: Final = {
    "": 26,
    ML: 5,
    TRAINING: 1,
    MICROSOFT: 1,
    "com.microsoft.experimental": 1,
    BLOCKED: 1,
}
"""The version of a domain that a model means if it imports others and not this one: the newest that the runtime has."""

_OPSETS_FROM_IR: Final = 3


def canonical(domain: str) -> str:
    """The domain as onnx-ir spells it: that of the standard ops is empty."""
    return "" if domain == "ai.onnx" else domain


def imported(entries: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The imports of a model.

    A domain may be imported twice, ``ai.onnx`` under its two names most of all: the last entry holds.

    Args:
        entries: Domain and version, as the file has them.
    """
    return {canonical(domain): version for domain, version in entries}


def imported_by_function(entries: Iterable[tuple[str, int]], model: Mapping[str, int]) -> dict[str, int]:
    """The imports of a function.

    Where a domain is imported twice, it is the model's version, with which ONNX Runtime reads all functions; else the
    last one.

    Args:
        entries: Domain and version, as the file has them.
        model: The imports of the model.
    """
    imports: dict[str, int] = {}
    for spelled, version in entries:
        domain = canonical(spelled)
        if domain not in imports or imports[domain] != model.get(domain):
            imports[domain] = version
    return imports


def complete(imports: dict[str, int], domains: Iterable[str], ir_version: int) -> None:
    """Add what ONNX Runtime takes for granted of domains that are used and not imported.

    Args:
        imports: The imports of the model, changed.
        domains: The domains that the model uses.
        ir_version: Files without any import are as old as opset 1 before IR version 3, and broken from there on.

    Raises:
        InvalidModelError: A version is imported that no opset can have.
    """
    used = sorted(set(domains))
    for domain in used:
        version = imports.get(domain)
        if version is not None and version < 1:
            raise InvalidModelError(f"it imports version {version} of the opset {quoted(domain or 'ai.onnx')}")
    if not imports and ir_version < _OPSETS_FROM_IR:
        imports[""] = 1
    some = bool(imports)
    for domain in used:
        if domain in NEWEST_OF_ONNX_RUNTIME and (some or domain == MICROSOFT):
            imports.setdefault(domain, NEWEST_OF_ONNX_RUNTIME[domain])
