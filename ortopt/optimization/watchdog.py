"""Stops a transformer that does not come back: one that loops for ever asks no token.

A thread waits for the deadline, looks where the run is, and raises in it: as long as it is in a transformer's own code,
nothing that the framework keeps is half changed. Where it is for long inside of the editor or of onnx-ir, it is stopped
there, and the graph is torn (`DeadlineForced`): the caller begins anew. A call that does not return to Python cannot be
stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Self

from ortopt.cancellation import CancellationToken, DeadlineForced, DeadlinePassed
from ortopt.transformer import PASSES_PACKAGE, GraphTransformer

GRACE = 0.2
"""Seconds after the deadline in which a run may stop by itself."""

PATIENCE = 2.0
"""Seconds for which a safe moment is waited for."""

_PERIOD = 0.02
_DELIVERY = 0.2  # seconds in which an exception arrives, or has been swallowed


class Watchdog:
    """Watches the thread that enters it, until it is left.

    Args:
        token: Whose deadline counts; without one there is nothing to watch.

    Attributes:
        fired: Whether it has raised.
    """

    def __init__(self, token: CancellationToken) -> None:
        self._token = token
        self._over = threading.Event()
        self._watched = threading.get_ident()
        self._thread: threading.Thread | None = None
        self.fired = False

    def __enter__(self) -> Self:
        if self._token.deadline is not None:
            self._thread = threading.Thread(target=self._watch, name="ortopt-watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        while True:
            try:
                self._over.set()
                self._thread.join()
                break
            except DeadlinePassed:  # it arrives only now: what was watched is over, or is on its way out already
                continue
        if self.fired:
            self._withdraw()

    def _watch(self) -> None:
        assert self._token.deadline is not None
        left = self._token.deadline + GRACE - time.monotonic()
        if self._over.wait(min(max(left, 0), threading.TIMEOUT_MAX)):
            return
        end = time.monotonic() + PATIENCE
        while True:
            forced = time.monotonic() > end
            if (forced and _in_run(self._frame())) or _is_safe(self._frame()):
                self._raise(DeadlineForced if forced else DeadlinePassed)
                end = time.monotonic() + PATIENCE
                pause = _DELIVERY
            else:
                pause = _PERIOD
            if self._over.wait(pause):
                return

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._watched)

    def _withdraw(self) -> None:
        """What has not arrived yet is not wanted any more.

        Another takes its place and is waited for: when it is taken back instead (by raising NULL), CPython goes on to
        think that one is pending, asks at each call, and 3.11 never gets into the next function that is traced or
        profiled.
        """
        with contextlib.suppress(DeadlinePassed):
            self._raise(DeadlinePassed)
            while True:  # it comes between two instructions
                time.sleep(0)

    def _raise(self, kind: type[DeadlinePassed]) -> None:
        self.fired = True
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._watched), ctypes.py_object(kind))


def _transformer_of(frame: FrameType) -> GraphTransformer | None:
    """The transformer one of whose methods a frame runs."""
    code = frame.f_code
    own = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return own if isinstance(own, GraphTransformer) else None


def _in_run(frame: FrameType | None) -> bool:
    """Whether a transformer is at work."""
    while frame is not None:
        if _transformer_of(frame) is not None:
            return True
        frame = frame.f_back
    return False


def _is_safe(frame: FrameType | None) -> bool:
    """Whether a transformer is at work, and nothing of the framework's inside of it; or one that works on a clone."""
    inside = False
    while frame is not None:
        transformer = _transformer_of(frame)
        if transformer is not None and transformer.bypasses_editor:
            return True
        module = str(frame.f_globals.get("__name__", ""))
        framework = module.split(".", maxsplit=1)[0] in {"ortopt", "onnx_ir"} and not module.startswith(PASSES_PACKAGE)
        if transformer is not None and not framework and not inside:
            return True
        inside |= framework
        frame = frame.f_back
    return False


__all__ = ["Watchdog"]
