"""Threads: several sessions share what one session was allowed.

Each session of ONNX Runtime has a pool of its own, and a pool of n threads adds n - 1 to the caller's. With k groups
that run one after the other, k pools of n threads would be n times k threads, spinning against each other. So the
caller's n counts for all: n - 1 pool threads are divided among the groups by the work that they have.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def divide_threads(allowed: int, work: Sequence[float]) -> list[int]:
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
