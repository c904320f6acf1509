"""How much memory this process and its children may take.

The limit is that on private writable memory (Linux's RLIMIT_DATA): what is mapped from files, as weights are, does not
count, for it costs nothing that cannot be given back. Where a system has no such limit, nothing holds.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SHARE: Final = 0.75
"""The share of the machine's memory that a run may take if nobody says otherwise."""

LEAST: Final = 512 << 20
"""With less than this many bytes not even an empty model can be optimized and verified."""

_CGROUPS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

_bound: list[int] = []


def machine() -> int | None:
    """The bytes of memory of the machine, or of the container if that has less; None where nothing tells."""
    found = []
    with contextlib.suppress(ValueError, OSError, AttributeError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            found.append(int(Path(path).read_text(encoding="ascii")))
    return min(found, default=None)


def default_limit() -> int | None:
    """What a run may take if nobody says otherwise; None where nothing is known of the machine."""
    total = machine()
    return None if total is None else max(int(total * SHARE), LEAST)


@contextlib.contextmanager
def bounded(nbytes: int | None) -> Iterator[None]:
    """Hold this process, and those that it starts, to so many bytes; more is a MemoryError.

    Args:
        nbytes: None is no limit.
    """
    before = None if nbytes is None else _soft_limit(nbytes)
    if nbytes is None or before is None:
        yield
        return
    _bound.append(nbytes)
    try:
        yield
    finally:
        _bound.pop()
        _soft_limit(before)


def limit() -> int | None:
    """The bytes that this process is held to, or None."""
    return _bound[-1] if _bound else None


def remaining() -> int | None:
    """What a child may take beside what this process has; None is no limit."""
    bound = limit()
    return None if bound is None else max(bound - _taken(), LEAST)


def _taken() -> int:
    """Bytes of private writable memory of this process; 0 where nothing tells."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0


def _soft_limit(nbytes: int) -> int | None:
    """Set the limit; what it was, or None where that cannot be."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = nbytes if resource.RLIM_INFINITY in (hard, nbytes) else min(nbytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    except (ImportError, OSError, ValueError):  # Windows; a system that refuses
        return None
    return soft
