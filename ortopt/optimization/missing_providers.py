"""Results for providers that are not here: what of them can run here all the same, and what cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortopt.analysis.providers import CPU
from ortopt.framework import placement
from ortopt.graph import scope
from ortopt.graph.provenance import PASS_KEY


@dataclass(frozen=True, slots=True)
class NotShown:
    """What transformers put into a result and nothing here can run.

    Attributes:
        ops: Node count by op.
        transformers: The transformers that made the nodes.
        without: Whether the model that they leave as it is agrees with the original.
    """

    ops: Mapping[str, int]
    transformers: tuple[str, ...]
    without: bool = False

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return sum(self.ops.values())

    def __str__(self) -> str:
        """One line, for people."""
        ops = ", ".join(f"{count} {op}" for op, count in self.ops.items())
        shown = f"; without {', '.join(self.transformers)} it is verified" if self.without else ""
        have = "node has" if self.nodes == 1 else "nodes have"
        return f"{self.nodes} {have} no kernel here ({ops}){shown}"


def not_shown(model: ir.Model, providers: Sequence[str]) -> NotShown | None:
    """What of a result nothing here can run; None where all of it runs.

    What is the original's is not counted: it did not run before, either.

    Args:
        model: The result.
        providers: Full names of the providers that work here.
    """
    ops: Counter[str] = Counter()
    makers: dict[str, None] = {}
    here = tuple(dict.fromkeys((*providers, CPU)))
    for graph in scope.graphs(model):
        for node in graph:
            maker = node.meta.get(PASS_KEY)
            if maker is None or node.op_identifier() in model.functions:
                continue
            if placement.provider_of(node, here) is None:
                ops[f"{node.domain}::{node.op_type}" if node.domain else node.op_type] += 1
                makers[maker] = None
    return NotShown(dict(sorted(ops.items())), tuple(sorted(makers))) if ops else None
