"""What a replay of a run observes: where it stops, which rewrites it leaves out, and which one it made last."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir
from msgspec import Struct

from ortopt.errors import OptimizationCancelled
from ortopt.graph import scope
from ortopt.observers import Observer
from ortopt.terminal_text import node_name
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


RewriteKey = tuple[object, ...]
"""Identifies a rewrite whatever its number: the transformer, the graph, and the nodes or the step."""


class NumberedRewrite(Struct, frozen=True):
    """A rewrite that a run has made.

    Attributes:
        number: Its number, from 1.
        transformer: Name of the transformer.
        level: The level, 1 to 4.
        step: The step, from 1.
        graph: The graph's label.
        nodes: The nodes that were removed or changed, as (name or first result's name, op).
        why: Its purpose.
    """

    number: int
    transformer: str
    level: int
    step: int
    graph: str
    nodes: tuple[tuple[str, str], ...]
    why: str

    @property
    def key(self) -> RewriteKey:
        """Identifies it in a run that numbers rewrites differently."""
        where = self.nodes or (self.level, self.step)
        return self.transformer, self.graph, where


class StopPointReached(OptimizationCancelled):
    """A replay has reached the point at which it is to stop."""


class Replay(Observer):
    """Stops a run at a point, leaves rewrites out, and records the last one that was made.

    Args:
        limit: Number of the last rewrite that is made; None is no limit.
        runs: Number of times that a transformer, or a sweep of rules, may run to its end; None is no limit.
        without: Keys of rewrites that are left out.

    Attributes:
        last: The last rewrite that was made.
    """

    def __init__(self, limit: int | None = None, runs: int | None = None, without: Collection[RewriteKey] = ()) -> None:
        self._limit = limit
        self._runs = runs
        self._without = frozenset(without)
        self._where: dict[str, tuple[int, int, str]] = {}
        self.last: NumberedRewrite | None = None

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """Record where a transformer runs, if it may run."""
        if self._runs is not None and self._runs <= 0:
            raise StopPointReached
        self._where[transformer.name] = (level, step, scope.label(graph))

    def inspect(self, model: ir.Model, changed: bool) -> None:
        """Count the runs."""
        if self._runs is not None:
            self._runs -= 1

    def offer(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        """Whether a rewrite is within the limit, and not left out."""
        if self._limit is not None and number > self._limit:
            raise StopPointReached
        names = tuple((node_name(node), node.op_type) for node in nodes)
        level, step, graph = self._where.get(transformer.name, (transformer.levels[0].value, 1, "main"))
        rewrite = NumberedRewrite(number, transformer.name, level, step, graph, names, why or transformer.formula)
        if rewrite.key in self._without:
            return False
        self.last = rewrite
        return True


class CompletedRuns(Observer):
    """Counts how many times a transformer, or a sweep of rules, has run to its end.

    Attributes:
        count: How many times.
    """

    decides = False

    def __init__(self) -> None:
        self.count = 0

    def inspect(self, model: ir.Model, changed: bool) -> None:
        """Count a run."""
        self.count += 1
