"""Denormal numbers as zero in ONNX Runtime's kernels, and nowhere else.

ONNX Runtime's own entry reaches the threads of a session's pool, and the thread that makes the first session of a
process, for good; another thread that calls computes its part with denormals. So the entry is set for the pool, the
thread that makes a session keeps its flags, and the thread that calls has them set while it calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from ortopt.errors import UsageError

ENTRY: Final = "session.set_denormal_as_zero"
"""ONNX Runtime's configuration entry."""

_SIZE: Final = 64  # more than any fenv_t
_MXCSR: Final = 28  # its offset in the fenv_t of glibc and musl on x86-64
_FLUSH: Final = 1 << 15 | 1 << 6  # results that are denormal, and operands


class _Environment:
    """The floating-point environment of the thread that asks."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._get, self._set = library.fegetenv, library.fesetenv

    def now(self) -> Any:
        """The environment, to be set again."""
        saved = ctypes.create_string_buffer(_SIZE)
        self._get(saved)
        return saved

    def set(self, environment: Any) -> None:
        """Set an environment."""
        self._set(environment)

    @contextlib.contextmanager
    def flushed(self) -> Iterator[None]:
        """Denormals are zero in this thread as long as the context lasts."""
        saved = self.now()
        changed = bytearray(saved.raw)
        flags = int.from_bytes(changed[_MXCSR : _MXCSR + 4], "little") | _FLUSH
        changed[_MXCSR : _MXCSR + 4] = flags.to_bytes(4, "little")
        self._set(ctypes.create_string_buffer(bytes(changed), _SIZE))
        try:
            yield
        finally:
            self._set(saved)


@functools.cache
def _environment() -> _Environment | None:
    """The way to the flags of a thread, None where ortopt knows none that works."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return None
    import numpy as np

    environment = _Environment()
    small = np.full(4, np.finfo(np.float32).tiny, np.float32)
    with environment.flushed():
        flushed = not np.any(small * np.float32(0.5))
    return environment if flushed and np.all(small * np.float32(0.5)) else None


def check_denormals(pool: str) -> None:
    """Refuse denormals as zero where they cannot be had.

    Args:
        pool: Whose threads a session uses: ``"session"`` or ``"global"``.

    Raises:
        UsageError: They cannot.
    """
    if pool == "global":
        raise UsageError("denormals_as_zero: ONNX Runtime's global thread pool cannot be told; use a session's own")
    if _environment() is None:
        raise UsageError("denormals_as_zero is there on Linux on x86-64 only")


@contextlib.contextmanager
def flushed() -> Iterator[None]:
    """Denormals are zero in this thread as long as the context lasts; `check_denormals` has been asked."""
    environment = _environment()
    assert environment is not None
    with environment.flushed():
        yield


def flush_for_good() -> None:
    """Let denormals be zero in this thread from now on: one that only runs models."""
    flushed().__enter__()


@contextlib.contextmanager
def kept_flags() -> Iterator[None]:
    """What the thread's flags were, they are again at the end; ONNX Runtime may set them where it makes a session."""
    environment = _environment()
    saved = None if environment is None else environment.now()
    try:
        yield
    finally:
        if environment is not None:
            environment.set(saved)


class FlushingSession:
    """A session of ONNX Runtime in whose calls denormals are zero in the calling thread, too."""

    def __init__(self, session: Any) -> None:
        self._whole = session

    def run(self, *arguments: Any) -> Any:
        """As ONNX Runtime's; so are the others."""
        return self._call(self._whole.run, arguments)

    def run_with_ort_values(self, *arguments: Any) -> Any:
        """From and to values."""
        return self._call(self._whole.run_with_ort_values, arguments)

    def run_with_ortvaluevector(self, *arguments: Any) -> None:
        """From and to vectors of values."""
        self._call(self._whole.run_with_ortvaluevector, arguments)

    def run_with_iobinding(self, *arguments: Any) -> None:
        """From and to bound memory."""
        self._call(self._whole.run_with_iobinding, arguments)

    def _call(self, run: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        with flushed():
            return run(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)
