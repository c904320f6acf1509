"""How many channels ONNX Runtime's convolutions on the CPU compute at once: forms that fill blocks depend on it."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph import scope
from ortopt.options import March
from ortopt.system import processor

BLOCKS = (8, 16)
"""On x86 processors without AVX-512, and with it."""


def channel_block() -> int | None:
    """How many channels are computed at once on this processor; None where nobody knows."""
    known = processor.features() if processor.is_x86() else frozenset()
    return 16 if "avx512f" in known else 8 if "avx2" in known else None


def blocks_that_count(node: ir.Node) -> tuple[int, ...]:
    """The sizes of blocks with which a form must pay: those of all processors, or with --march native that of this one.

    Args:
        node: A node of a graph, which says what the run allows.
    """
    own = channel_block() if scope.of(scope.graph_of(node)).options.march is March.NATIVE else None
    return BLOCKS if own is None else (own,)


__all__ = ["BLOCKS", "blocks_that_count", "channel_block"]
