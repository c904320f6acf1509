"""Hashes of a few bytes without OpenSSL, which takes longer to load than they to compute."""

from __future__ import annotations

from importlib import import_module

_BUILT_IN = ("_sha2", "_sha256")  # CPython's own, from 3.12 and before


def sha256(content: bytes) -> str:
    """The SHA-256 of a few bytes, in hex.

    Args:
        content: The bytes; of many megabytes, `hashlib` is faster.
    """
    for name in _BUILT_IN:
        try:
            digest: str = import_module(name).sha256(content).hexdigest()
        except (ImportError, AttributeError):  # an interpreter without it
            continue
        return digest
    import hashlib

    return hashlib.sha256(content).hexdigest()


__all__ = ["sha256"]
