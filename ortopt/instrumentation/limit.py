"""`RewriteLimit`: an observer that stops after a number of rewrites."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortopt.observers import Observer
from ortopt.transformer import GraphTransformer


class RewriteLimit(Observer):
    """Lets a run make a number of rewrites and no more, as LLVM's opt-bisect-limit does.

    Args:
        limit: Number of the last rewrite that is made; None is no limit.
        without: Numbers of rewrites that are left out.
    """

    def __init__(self, limit: int | None = None, without: frozenset[int] = frozenset()) -> None:
        self.limit = limit
        self.without = without

    def offer(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        """Whether the number is within the limit."""
        return (self.limit is None or number <= self.limit) and number not in self.without
