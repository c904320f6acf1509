"""Hooks into a run from outside, after TVM's PassInstrument. A hook that no observer overrides costs nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ortopt.framework.fusions import Decision
from ortopt.framework.workspace import NO_GROWTH, Growth
from ortopt.transformer import GraphTransformer


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One run of one transformer on one graph.

    Attributes:
        level: 1 to 4.
        step: From 1.
        transformer: Its name.
        graph: The graph's label.
        modified: Whether it changed anything.
        seconds: Its duration.
        nodes_before: The graph's nodes before.
        nodes_after: The graph's nodes after. The rules of one batch share a sweep, and these two figures.
        rewrites: Number of rewrites that it made.
        visits: Number of nodes that a rule was offered; 0 for other transformers.
        growth: What its rewrites have added.
    """

    level: int
    step: int
    transformer: str
    graph: str
    modified: bool
    seconds: float
    nodes_before: int
    nodes_after: int
    rewrites: int = 0
    visits: int = 0
    growth: Growth = NO_GROWTH


class RetryRequested(Exception):  # noqa: N818 -- a request, no error
    """Raised by `Observer.inspect` to have a run taken back and repeated, with closer inspection."""


class InvalidGraph(Exception):  # noqa: N818 -- a state of the graph, not an error of the observer
    """Raised by `Observer.inspect` where a transformer has left an invalid graph.

    Args:
        reason: What is invalid.
        transformer: Name of the transformer that did it; None where only one has run, or it is not known.
    """

    def __init__(self, reason: str, transformer: str | None = None) -> None:
        super().__init__(reason)
        self.transformer = transformer


class Observer:
    """Observes a run; every hook may be overridden, and does nothing by default.

    Attributes:
        listens_to_refusals: Whether `refused` is called; reasons are built only for observers that listen.
        decides: Whether it influences the run, by `should_run`, `offer` or `inspect`: it is then called again, and must
            give the same answers, when a run is replayed to find what went wrong in it. A class that overrides one of
            these decides unless it sets this to False.
    """

    listens_to_refusals = False
    decides = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "decides" not in cls.__dict__ and cls.__dict__.keys() & {"should_run", "offer", "inspect"}:
            cls.decides = True

    def loaded(self, model: ir.Model) -> None:
        """The original is about to be prepared, for the first run or for another one after a repair; as it was read."""

    def begin(self) -> None:
        """A run begins: the first, or another one after a repair."""

    def should_run(self, transformer: GraphTransformer, graph: ir.Graph) -> bool:
        """Whether a transformer is to run on a graph; false leaves it out."""
        return True

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """A transformer is about to run on a graph."""

    def after(self, entry: HistoryEntry, graph: ir.Graph) -> None:
        """A transformer has run on a graph."""

    def inspect(self, model: ir.Model, changed: bool) -> None:
        """Check what a transformer, or a sweep of rules, has done to a graph, before it is accepted.

        Args:
            model: The model; for a transformer that edits onnx-ir directly, the clone that it worked on.
            changed: Whether something changed.

        Raises:
            InvalidGraph: To have it taken back and the transformer left out, as if it had raised.
            RetryRequested: To have it taken back and repeated.
        """

    def offer(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        """Whether a rewrite is to be made; its number is the same in every run with the same model and options."""
        return True

    def rewrote(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int) -> None:
        """A rewrite has been made, and stays; `nodes` are those that are new, or have changed, none of them gone."""

    def refused(self, transformer: GraphTransformer, node: ir.Node, reason: str) -> None:
        """A candidate has been refused: it stays; `reason` is an `ortopt.graph.refusal.Reason`, which has a code."""

    def weighed(self, transformer: GraphTransformer, node: ir.Node, decision: Decision) -> None:
        """What a fused form costs has been asked for, for the nodes around one; called where `refused` is."""

    def failed(self, transformer: GraphTransformer, graph: ir.Graph, reason: str) -> None:
        """A transformer raised; its changes have been taken back, and the run continues without it."""


class Observers:
    """Several observers as one.

    Args:
        observers: The observers, in the order in which they are called.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.all = tuple(observers)
        self.listens_to_refusals = any(observer.listens_to_refusals for observer in self.all)
        self._deciders = [o for o in self.all if type(o).offer is not Observer.offer]
        self._notified = [o for o in self.all if type(o).rewrote is not Observer.rewrote]
        self._inspectors = [o for o in self.all if type(o).inspect is not Observer.inspect]

    def loaded(self, model: ir.Model) -> None:
        """Call every observer."""
        for observer in self.all:
            observer.loaded(model)

    def begin(self) -> None:
        """Call every observer."""
        for observer in self.all:
            observer.begin()

    def should_run(self, transformer: GraphTransformer, graph: ir.Graph) -> bool:
        """Whether every observer lets a transformer run."""
        return all(observer.should_run(transformer, graph) for observer in self.all)

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """Call every observer."""
        for observer in self.all:
            observer.before(transformer, level, step, graph)

    def after(self, entry: HistoryEntry, graph: ir.Graph) -> None:
        """Call every observer."""
        for observer in self.all:
            observer.after(entry, graph)

    def offer(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        """Whether every observer accepts a rewrite; all are asked, so that each sees every number."""
        accepted = True
        for observer in self._deciders:
            accepted &= observer.offer(transformer, nodes, number, why)
        return accepted

    def inspect(self, model: ir.Model, changed: bool) -> None:
        """Call every observer that inspects."""
        for observer in self._inspectors:
            observer.inspect(model, changed)

    def rewrote(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int) -> None:
        """Call every observer that overrides it."""
        for observer in self._notified:
            observer.rewrote(transformer, nodes, number)

    def refused(self, transformer: GraphTransformer, node: ir.Node, reason: str) -> None:
        """Call every observer that listens to refusals."""
        for observer in self.all:
            if observer.listens_to_refusals:
                observer.refused(transformer, node, reason)

    def weighed(self, transformer: GraphTransformer, node: ir.Node, decision: Decision) -> None:
        """Call every observer that listens to refusals."""
        for observer in self.all:
            if observer.listens_to_refusals:
                observer.weighed(transformer, node, decision)

    def failed(self, transformer: GraphTransformer, graph: ir.Graph, reason: str) -> None:
        """Call every observer."""
        for observer in self.all:
            observer.failed(transformer, graph, reason)


__all__ = ["HistoryEntry", "InvalidGraph", "Observer", "Observers", "RetryRequested"]
