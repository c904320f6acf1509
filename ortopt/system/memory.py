"""Memory: how much the machine has, and how much this process and its children may use.

The limit is that of private writable memory (Linux's RLIMIT_DATA). Memory that is mapped from files, as weights are,
does not count: the system can take it back at any time. A system without such a limit enforces nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ortopt.errors import UsageError
from ortopt.option_kinds import UNLIMITED, parse_size, whole_number

SHARE: Final = 0.75
"""The share of the machine's memory that a run may use by default."""

LEAST: Final = 512 << 20
"""Bytes without which not even an empty model can be optimized and verified."""

_CGROUPS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

_bound: list[int] = []


def machine() -> int | None:
    """The bytes of memory of the machine, or of the container if that has less; None if unknown."""
    totals = []
    with contextlib.suppress(ValueError, OSError, AttributeError):
        totals.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # "max" is no limit
            totals.append(int(Path(path).read_text(encoding="ascii")))
    return min(totals, default=None)


def default_limit() -> int | None:
    """The bytes that a run may use by default; None where nothing is known of the machine."""
    total = machine()
    return None if total is None else max(int(total * SHARE), LEAST)


def parse_limit(name: str, value: int | str) -> int | None:
    """A limit in bytes; None for no limit.

    Args:
        name: The option's name, for messages.
        value: A number of bytes, or a text such as ``2GB`` or ``unlimited``.

    Raises:
        UsageError: It is none, or too small for anything.
    """
    if isinstance(value, str) and value.strip().lower() == UNLIMITED:
        return None
    nbytes = min(parse_size(value) if isinstance(value, str) else whole_number(name, value), sys.maxsize)
    if nbytes < LEAST:
        raise UsageError(f"{name} must be at least {LEAST >> 20} MiB, not {value}")
    return nbytes


@contextlib.contextmanager
def bounded(nbytes: int | None) -> Iterator[None]:
    """Limit this process, and those that it starts, to a number of bytes; above it, MemoryError is raised.

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
    """The limit of this process in bytes, or None."""
    return _bound[-1] if _bound else None


def remaining() -> int | None:
    """The bytes that a child may use beside those of this process; None is no limit."""
    bound = limit()
    return None if bound is None else max(bound - of_process().get("VmData", 0), LEAST)


def of_process() -> dict[str, int]:
    """Bytes of this process by Linux's names, such as ``VmHWM``; empty where the system does not tell."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    rows = (line.partition(":") for line in text.splitlines() if line.endswith(" kB"))
    return {name: int(value.split()[0]) << 10 for name, _, value in rows}


def _soft_limit(nbytes: int) -> int | None:
    """Set the limit; the limit before, or None where it cannot be set."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = nbytes if resource.RLIM_INFINITY in (hard, nbytes) else min(nbytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    except (ImportError, OSError, ValueError):  # Windows; a system that refuses
        return None
    return soft
