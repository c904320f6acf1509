"""Who watches a run, from outside: hooks after TVM's PassInstrument. None of them costs anything when off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ortopt.former_names import present_name, warn_former_name
from ortopt.transformer import GraphTransformer


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One run of one transformer on one graph.

    Attributes:
        level: 1 to 4.
        step: From 1.
        transformer: Its name.
        graph: The graph, for people.
        modified: Whether it changed anything.
        seconds: How long it took.
        nodes_before: The graph's nodes before.
        nodes_after: The graph's nodes after. The rules of one slot share a sweep: they share these two figures.
        rewrites: How many rewrites it made.
        visits: How many nodes a rule was offered; 0 for other transformers.
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


class RetryRequested(Exception):  # noqa: N818 -- not an error: a wish
    """What `Observer.inspect` raises to have a run taken back and done again, under closer watch."""


class InvalidGraph(Exception):  # noqa: N818 -- what is wrong with a graph, not with the one who says it
    """What `Observer.inspect` finds wrong.

    Args:
        reason: What.
        transformer: The name of the one who did it; None where only one has run, or nobody knows.
    """

    def __init__(self, reason: str, transformer: str | None = None) -> None:
        super().__init__(reason)
        self.transformer = transformer


class Observer:
    """Watches a run; every hook may be overridden, and does nothing by itself.

    Attributes:
        listens_to_refusals: Whether `refused` is to be called; reasons are built only if somebody listens.
        decides: Whether it shapes the run, by `should_run`, `offer` or `inspect`: it is then called again, and must
            answer alike, when a run is replayed to find out what went wrong in it. A class that overrides one of these
            decides, unless it says otherwise.
    """

    listens_to_refusals = False
    decides = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "decides" not in cls.__dict__ and cls.__dict__.keys() & {"should_run", "offer", "inspect"}:
            cls.decides = True

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
        """What a transformer, or a sweep of rules, has done to a graph, before it is taken for good.

        Args:
            model: The model: of a transformer that edits onnx-ir directly, the clone that it worked on.
            changed: Whether it said that it changed something.

        Raises:
            Defect: To have it taken back, and the transformer left out, as though it had raised.
            Again: To have it taken back and done again.
        """

    def offer(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        """Whether a rewrite is to be made; its number is the same in every run with the same model and options."""
        return True

    def rewrote(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int) -> None:
        """A rewrite has been made, and stays; `nodes` are those that are new, or have changed, none of them gone."""

    def refused(self, transformer: GraphTransformer, node: ir.Node, reason: str) -> None:
        """A candidate has been left as it is."""

    def failed(self, transformer: GraphTransformer, graph: ir.Graph, reason: str) -> None:
        """A transformer raised; what it did has been taken back, and the run goes on without it."""


class Observers:
    """Several observers as one.

    Args:
        observers: Who watches, in order.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.all = tuple(observers)
        self.listens_to_refusals = any(observer.listens_to_refusals for observer in self.all)
        self._deciders = [o for o in self.all if type(o).offer is not Observer.offer]
        self._announced_to = [o for o in self.all if type(o).rewrote is not Observer.rewrote]
        self._inspectors = [o for o in self.all if type(o).inspect is not Observer.inspect]

    def begin(self) -> None:
        """Tell everybody."""
        for observer in self.all:
            observer.begin()

    def should_run(self, transformer: GraphTransformer, graph: ir.Graph) -> bool:
        """Whether nobody is against a transformer's run."""
        return all(observer.should_run(transformer, graph) for observer in self.all)

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """Tell everybody."""
        for observer in self.all:
            observer.before(transformer, level, step, graph)

    def after(self, entry: HistoryEntry, graph: ir.Graph) -> None:
        """Tell everybody."""
        for observer in self.all:
            observer.after(entry, graph)

    def offer(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        """Ask everybody; all are asked, so that each sees every number."""
        accepted = True
        for observer in self._deciders:
            accepted &= observer.offer(transformer, nodes, number, why)
        return accepted

    def inspect(self, model: ir.Model, changed: bool) -> None:
        """Let everybody look who does."""
        for observer in self._inspectors:
            observer.inspect(model, changed)

    def rewrote(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int) -> None:
        """Tell everybody who listens."""
        for observer in self._announced_to:
            observer.rewrote(transformer, nodes, number)

    def refused(self, transformer: GraphTransformer, node: ir.Node, reason: str) -> None:
        """Tell those who listen."""
        for observer in self.all:
            if observer.listens_to_refusals:
                observer.refused(transformer, node, reason)

    def failed(self, transformer: GraphTransformer, graph: ir.Graph, reason: str) -> None:
        """Tell everybody."""
        for observer in self.all:
            observer.failed(transformer, graph, reason)


class RewriteLimit(Observer):
    """Stops after a number of rewrites, as LLVM's opt-bisect-limit does.

    Args:
        limit: The last rewrite that is made.
        without: Numbers of rewrites that are left out.
    """

    def __init__(self, limit: int | None = None, without: frozenset[int] = frozenset()) -> None:
        self.limit = limit
        self.without = without

    def offer(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        """Whether the number is within the limit."""
        return (self.limit is None or number <= self.limit) and number not in self.without


@dataclass(frozen=True, slots=True)
class RefusedCandidate:
    """A candidate that a transformer left as it was.

    Attributes:
        transformer: Whose candidate.
        node: The node's name, or its first result's where it has none.
        op: The node's op.
        reason: Why.
    """

    transformer: str
    node: str
    op: str
    reason: str


@dataclass(frozen=True, slots=True)
class OfferedRewrite:
    """A rewrite that a transformer offered.

    Attributes:
        number: Its number in the run.
        transformer: Whose rewrite.
        nodes: The nodes that go or change, as (name or first result's name, op).
        why: What for.
    """

    number: int
    transformer: str
    nodes: tuple[tuple[str, str], ...]
    why: str


class Explanation(Observer):
    """Collects what transformers refused and what they rewrote.

    Args:
        transformers: The names to listen to; all if empty.
    """

    listens_to_refusals = True
    decides = False

    def __init__(self, transformers: Iterable[str] = ()) -> None:
        names = frozenset(transformers)
        for name in sorted(names):
            warn_former_name(name)
        self._names = names | set(map(present_name, names))
        self._refusals: dict[tuple[str, ir.Node], RefusedCandidate] = {}
        self._latest: tuple[str, Sequence[ir.Node]] | None = None
        self.rewrites: list[OfferedRewrite] = []

    def begin(self) -> None:
        """Forget what another run did."""
        self._refusals.clear()
        self._latest = None
        self.rewrites.clear()

    @property
    def refusals(self) -> list[RefusedCandidate]:
        """The candidates that were not rewritten later; of one that was refused twice, the last reason."""
        return list(self._refusals.values())

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """What was offered has been done."""
        self._latest = None

    def offer(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        """Write down a rewrite."""
        if not self._names or transformer.name in self._names:
            names = tuple((node_name(node), node.op_type) for node in nodes)
            self.rewrites.append(OfferedRewrite(number, transformer.name, names, why or transformer.formula))
            self._latest = (transformer.name, nodes)
            for node in nodes:
                self._refusals.pop((transformer.name, node), None)
        return True

    def refused(self, transformer: GraphTransformer, node: ir.Node, reason: str) -> None:
        """Write down a refusal; one that follows the node's own offer takes that back."""
        if self._names and transformer.name not in self._names:
            return
        if self._latest is not None and self._latest[0] == transformer.name and node in self._latest[1]:
            self.rewrites.pop()
            self._latest = None
        self._refusals[transformer.name, node] = RefusedCandidate(
            transformer.name, node_name(node), node.op_type, reason
        )


def node_name(node: ir.Node) -> str:
    """A node's name for people: where it has none, its first result's."""
    return node.name or (node.outputs[0].name or "" if node.outputs else "")
