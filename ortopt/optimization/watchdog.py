"""Interrupts a transformer that does not return by the deadline: one that loops forever checks no token.

A second thread waits for the deadline, looks at the frames of the run, and raises an exception in its thread while it
is in a transformer's own code: there nothing of the framework's is half changed. Where it stays inside the editor or
onnx-ir for long, it is interrupted there, and the graph is corrupted (`DeadlineForced`): the caller replays the run. A
call that does not return to Python cannot be interrupted. Since all of this reaches into a thread of the process,
`Options.enforce_timeout` asks for it.
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
from ortopt.system.threads import BackgroundThread, Signal
from ortopt.transformer import PASSES_PACKAGE, GraphTransformer

GRACE = 0.2
"""Seconds after the deadline in which a run may end by itself."""

PATIENCE = 2.0
"""Seconds in which a safe moment is awaited."""

_PERIOD = 0.02
_DELIVERY = 0.2  # seconds in which an exception arrives, or has been swallowed


class Watchdog:
    """Interrupts the thread that enters it, if that has not left it by the deadline.

    Args:
        token: A token; without a deadline nothing happens.

    Attributes:
        fired: Whether it has interrupted the thread.
    """

    def __init__(self, token: CancellationToken) -> None:
        self._token = token
        self._over = Signal()
        self._target = threading.get_ident()
        self._thread: BackgroundThread | None = None
        self.fired = False

    def __enter__(self) -> Self:
        if self._token.deadline is not None:
            self._thread = BackgroundThread(self._wait, "ortopt-watchdog")
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
            except DeadlinePassed:  # it arrives only now: the run has ended, or is ending already
                continue
        if self.fired:
            self._withdraw()

    def _wait(self) -> None:
        assert self._token.deadline is not None
        left = self._token.deadline + GRACE - time.monotonic()
        if self._over.wait(left):
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
        return sys._current_frames().get(self._target)

    def _withdraw(self) -> None:
        """Get rid of an exception that has not arrived yet.

        Another one replaces it and is awaited: if it were withdrawn instead (by raising NULL), CPython would still
        assume a pending one and check at each call, and 3.11 never enters the next function that is traced or profiled.
        """
        with contextlib.suppress(DeadlinePassed):
            self._raise(DeadlinePassed)
            while True:  # it comes between two instructions
                time.sleep(0)

    def _raise(self, kind: type[DeadlinePassed]) -> None:
        self.fired = True
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._target), ctypes.py_object(kind))


def _transformer_of(frame: FrameType) -> GraphTransformer | None:
    """The transformer whose method a frame runs, if any."""
    code = frame.f_code
    own = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return own if isinstance(own, GraphTransformer) else None


def _in_run(frame: FrameType | None) -> bool:
    """Whether a transformer runs."""
    while frame is not None:
        if _transformer_of(frame) is not None:
            return True
        frame = frame.f_back
    return False


def _is_safe(frame: FrameType | None) -> bool:
    """Whether a transformer runs that has not called the framework, or one that works on a clone."""
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
