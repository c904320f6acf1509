"""What this processor can do, as far as the operating system tells: for forms that are fast on processors like it."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")

X86: Final = frozenset({"AMD64", "i386", "i686", "x86_64"})

_EXACT: Final = frozenset({"avx512_vnni", "avx_vnni"})


@functools.cache
def features() -> frozenset[str]:
    """The instruction sets of this processor by Linux's names; empty where nobody tells."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return frozenset(flags.split())


def usable() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_x86() -> bool:
    """Whether this is an x86 processor."""
    return platform.machine() in X86


def saturates_products() -> bool:
    """Whether sums of two products of unsigned and signed bytes saturate at 16 bits: with AVX2 and without VNNI."""
    known = features()
    return is_x86() and "avx2" in known and not known & _EXACT


def channel_block() -> int | None:
    """How many channels ONNX Runtime's convolutions compute at once here: 16 with AVX-512, else 8; None: not known."""
    known = features() if is_x86() else frozenset()
    return 16 if "avx512f" in known else 8 if "avx2" in known else None
