"""What is known of this machine's processor: for forms that are fast on processors like it only."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
X86 = frozenset({"x86_64", "amd64"})


@functools.cache
def channel_block() -> int | None:
    """How many channels ONNX Runtime's convolutions compute at once here: 16 with AVX-512, else 8; None: not known.

    Only Linux says which instructions there are.
    """
    if platform.machine().lower() not in X86 or not CPUINFO.is_file():
        return None
    flags = next((line for line in CPUINFO.read_text("utf-8").splitlines() if line.startswith("flags")), "")
    names = frozenset(flags.partition(":")[2].split())
    return 16 if "avx512f" in names else 8 if "avx2" in names else None


__all__ = ["channel_block"]
