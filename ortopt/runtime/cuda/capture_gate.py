"""Who may use CUDA while a CUDA graph is captured: only the thread that captures.

ONNX Runtime captures in CUDA's global mode (``cudaStreamCaptureModeGlobal``). While such a capture is under way, CUDA
refuses every other thread of the process what allocates memory, waits, or copies on the default stream, and the refused
call breaks the capture. So everything of this kind that ortopt does goes through the gate, and a capture closes it: it
waits until all uses have ended, and those that come meanwhile wait for it.

What others do with CUDA in the same process (a plain session that runs, torch) does not go through it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class CaptureGate:
    """Any number of uses at a time (``with gate``), or one thread alone; a use may be inside of another one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._uses = 0
        self._is_closed = False
        self._depth = threading.local()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While a graph is captured. What this thread uses meanwhile passes; no use of it may have begun before."""
        if self._inside():
            raise RuntimeError("who uses the device cannot wait until nobody does")
        with self._changed:
            self._changed.wait_for(lambda: not self._is_closed)
            self._is_closed = True
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._uses == 0)
            self._depth.value = 1
            yield
        finally:
            self._depth.value = 0
            with self._changed:
                self._is_closed = False
                self._changed.notify_all()

    def _inside(self) -> int:
        return getattr(self._depth, "value", 0)

    def __enter__(self) -> None:
        depth = self._inside()
        if depth == 0:
            with self._changed:
                while self._is_closed:
                    self._changed.wait()
                self._uses += 1
        self._depth.value = depth + 1

    def __exit__(self, *_: object) -> None:
        self._depth.value = depth = self._inside() - 1
        if depth == 0:
            with self._changed:
                self._uses -= 1
                if self._uses == 0:
                    self._changed.notify_all()


class Turn:
    """A use of a device by one thread after the other: what belongs together stays together on its stream.

    Args:
        gate: The gate.
    """

    __slots__ = ("_gate", "_lock")

    def __init__(self, gate: CaptureGate) -> None:
        self._gate = gate
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._gate.__enter__()
        try:
            self._lock.acquire()
        except BaseException:  # an interrupt
            self._gate.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._gate.__exit__()


GATE = CaptureGate()
"""The gate of the process."""
