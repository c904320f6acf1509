"""The processor of this machine, in words: what a table of costs was measured on."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Final

_CPU_INFO: Final = Path("/proc/cpuinfo")
_FAMILIES: Final = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("avx", "AVX"), ("sve", "SVE"), ("asimd", "NEON"))
"""Instructions that kernels are written for, the widest first, as Linux names them and as people do."""


def processor(info: Path = _CPU_INFO) -> str:
    """The processor's name and the family of its vector instructions, e.g. ``AMD EPYC (AVX-512)``.

    Args:
        info: What Linux says of processors; elsewhere there is no such file.
    """
    try:
        text = info.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    rows = dict(reversed([_parts(line) for line in text.splitlines() if ":" in line]))
    flags = frozenset(rows.get("flags", rows.get("Features", "")).split())
    family = next((name for flag, name in _FAMILIES if flag in flags), "")
    name = rows.get("model name") or platform.machine()
    return f"{name} ({family})" if family else name


def _parts(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()


__all__ = ["processor"]
