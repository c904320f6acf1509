"""Asynchronous calls of a session of several groups, in threads of its own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ortopt.runtime.execution.threads import processors
from ortopt.runtime.onnxruntime_interface.model_signature import without_code


class AsyncCalls:
    """Threads that make calls: as many at a time as there are processors, started with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def submit(
        self, call: Callable[[], list[Any]], callback: Callable[[list[Any], Any, str], None], user_data: Any
    ) -> None:
        """Make a call in a thread.

        Args:
            call: The call; it returns results.
            callback: Called with the results, the caller's data, and the error as text (empty where there is none).
            user_data: The caller's data.
        """

        def work() -> None:
            try:
                results, error = call(), ""
            except Exception as failure:
                results, error = [], without_code(failure)
            try:
                callback(results, user_data, error)
            except BaseException as failure:
                sys.excepthook(type(failure), failure, failure.__traceback__)

        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(processors(), "ortopt-run-async")
            executor = self._executor
        executor.submit(work)

    def close(self, *, wait: bool = False) -> None:
        """Take no calls any more; those that were made go on.

        Args:
            wait: Whether this returns when they are done.
        """
        if self._executor is not None:
            self._executor.shutdown(wait=wait)
