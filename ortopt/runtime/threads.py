"""Threads: several sessions share what one session was allowed.

Each session of ONNX Runtime has a pool of its own, and a pool of n threads adds n - 1 to the caller's. With k groups
that run one after the other, k pools of n threads would be n times k threads, spinning against each other. So the
caller's n counts for all: n - 1 pool threads are dealt to the groups by the work that they have.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

from ortopt.errors import UsageError

_global_sizes: tuple[int, int] | None = None
_lock = threading.Lock()


def deal(allowed: int, work: Sequence[float]) -> list[int]:
    """The intra-op threads of each group.

    Args:
        allowed: The caller's setting; 0 is as many as there are processors.
        work: What each group has to do, in any unit.

    Returns:
        A number of at least 1 for each group, the calling thread included; the pools have ``allowed - 1`` together.
    """
    total = allowed or processors()
    shares = [1] * len(work)
    if not work:
        return shares
    for _ in range(total - 1):
        # The group whose work for each of its threads is greatest gets the next one.
        neediest = max(range(len(work)), key=lambda i: (work[i] / shares[i], -i))
        shares[neediest] += 1
    return shares


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def use_global_pool(intra: int, inter: int) -> None:
    """Set up ONNX Runtime's pool of the process; from then on every session of the process must use it.

    Raises:
        UsageError: It was set up with other sizes: it cannot be resized.
    """
    global _global_sizes  # noqa: PLW0603 -- it is the process's, there is only one
    import onnxruntime

    with _lock:
        if _global_sizes is not None and _global_sizes != (intra, inter):
            raise UsageError(
                f"the global thread pool has {_global_sizes[0]} intra-op and {_global_sizes[1]} inter-op threads"
                f" already; it cannot be resized to {intra} and {inter}"
            )
        if _global_sizes is None:
            onnxruntime.set_global_thread_pool_sizes(intra, inter)
            _global_sizes = (intra, inter)
