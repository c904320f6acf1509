"""How many channels ONNX Runtime's convolutions on the CPU compute at once: forms that fill blocks depend on it."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.graph import scope
from ortopt.system.processor import channel_block

BLOCKS = (8, 16)
"""On x86 processors without AVX-512, and with it."""


def blocks_that_count(node: ir.Node) -> tuple[int, ...]:
    """The sizes of blocks with which a form must pay: those of all processors, or with --native that of this one.

    Args:
        node: A node of a graph, which says what the run allows.
    """
    own = channel_block() if scope.of(scope.graph_of(node)).options.native else None
    return BLOCKS if own is None else (own,)


__all__ = ["BLOCKS", "blocks_that_count"]
