"""`Lineage`: an observer that records what became of each node of the original, and where each new one comes from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortopt.graph import scope
from ortopt.graph.refusal import Reason, reason_of
from ortopt.instrumentation.graph_snapshot import GraphSnapshot, SnapshotTaker, op_of
from ortopt.observers import HistoryEntry, Observer
from ortopt.terminal_text import node_name
from ortopt.transformer import GraphTransformer


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node that was in the model at some time; its id is its position in `Lineage.nodes`.

    Attributes:
        op: Its op, as ``Add`` or ``com.microsoft::Gelu``.
        name: Its name, or its first result's.
        graph: The label of its graph.
    """

    op: str
    name: str
    graph: str


@dataclass(frozen=True, slots=True)
class RecordedRewrite:
    """A rewrite that was made.

    Attributes:
        number: Its number in the run.
        transformer: Name of the transformer.
        level: 1 to 4.
        step: From 1.
        graph: The graph's label.
        why: Its purpose.
        before: Ids of the nodes that were removed or changed.
        after: Ids of the nodes that are new or have changed.
        swept: Ids of the nodes that nothing needed any more afterwards.
    """

    number: int
    transformer: str
    level: int
    step: int
    graph: str
    why: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    swept: tuple[int, ...]


@dataclass(slots=True)
class _Offer:
    why: str
    nodes: tuple[ir.Node, ...]
    ids: tuple[int, ...] = field(default=())


class Lineage(Observer):
    """Records the original, every rewrite with the nodes that went and came, and every refusal.

    `ortopt.reporting.page.pages.page_of` makes its page from one that has observed the run.

    Attributes:
        original: The original; None before it is loaded.
        nodes: Every node that was in the model at some time, by id.
        rewrites: The rewrites that stay, in order.
        history: Runs of transformers that stay, in order.
    """

    listens_to_refusals = True
    decides = False

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self.original: GraphSnapshot | None = None
        self.nodes: list[KnownNode] = []
        self.rewrites: list[RecordedRewrite] = []
        self._ids: dict[ir.Node, int] = {}
        self._numbers: dict[KnownNode, int] = {}
        self._operands: dict[int, set[ir.Node]] = {}
        self._swept: set[int] = set()
        self._offers: dict[int, _Offer] = {}
        self._refusals: dict[tuple[str, int], Reason] = {}
        self._where = 0, 0, ""
        self._batch_began = 0
        self._batch_is_open = False
        self._original_names: SnapshotTaker | None = None

    # -- what the run calls -----------------------------------------------------------------------------------------

    def loaded(self, model: ir.Model) -> None:
        """Take a snapshot of the original; what an earlier run has left is forgotten."""
        self._forget()
        self._original_names = SnapshotTaker(model, self._register)
        self.original = self._original_names.snapshot

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """Remember where what follows takes place."""
        if self._original_names is not None:  # inference has seen the original meanwhile
            self._original_names.learn()
            self._original_names = None
        if not self._batch_is_open:
            self._batch_began, self._batch_is_open = len(self.rewrites), True
        self._where = level, step, scope.label(graph)

    def after(self, entry: HistoryEntry, graph: ir.Graph) -> None:
        """Keep what has been recorded."""
        self._batch_is_open = False
        self._offers.clear()

    def failed(self, transformer: GraphTransformer, graph: ir.Graph, reason: str) -> None:
        """Forget what has been taken back."""
        for rewrite in self.rewrites[self._batch_began :]:
            self._swept.difference_update((*rewrite.before, *rewrite.swept))
        del self.rewrites[self._batch_began :]
        self._batch_is_open = False
        self._offers.clear()

    def offer(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        """Remember what is offered."""
        ids = tuple(self._known(node) for node in nodes)
        for node, number_of_node in zip(nodes, ids, strict=True):
            self._note_operands(node, number_of_node)
        self._offers[number] = _Offer(why or transformer.formula, tuple(nodes), ids)
        return True

    def rewrote(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int) -> None:
        """Record a rewrite."""
        offer = self._offers.pop(number, None) or _Offer("", ())
        kept = (self._ids[node] for node in offer.nodes if node.graph is not None)  # it reads something else now
        after = tuple(dict.fromkeys((*(self._known(node, is_new=True) for node in nodes), *kept)))
        for node in nodes:
            self._note_operands(node, self._ids[node])
            self._note_users(node)
        for key in [(transformer.name, one) for one in offer.ids]:
            self._refusals.pop(key, None)
        level, step, graph = self._where
        self.rewrites.append(
            RecordedRewrite(
                number, transformer.name, level, step, graph, offer.why, offer.ids, after, self._sweep(offer.nodes)
            )
        )

    def refused(self, transformer: GraphTransformer, node: ir.Node, reason: str) -> None:
        """Record a refusal; of several at one node, the last reason of each transformer stays."""
        key, told = (transformer.name, self._known(node)), reason_of(reason)
        if key not in self._refusals or told.replaces(self._refusals[key]):
            self._refusals[key] = told

    # -- nodes ------------------------------------------------------------------------------------------------------

    def _known(self, node: ir.Node, *, is_new: bool = False) -> int:
        """The id of a node; one that nobody knows, and that is not new, is a copy of one of the same name."""
        known = self._ids.get(node)
        if known is not None:
            return known
        label = scope.label(node.graph) if isinstance(node.graph, ir.Graph) else self._where[2]
        known = None if is_new else self._numbers.get(KnownNode(op_of(node), node_name(node), label))
        if known is None:
            return self._register(node, label)
        self._ids[node] = known
        self._note_operands(node, known)
        return known

    def _register(self, node: ir.Node, label: str) -> int:
        number = self._ids[node] = len(self.nodes)
        known = KnownNode(op_of(node), node_name(node), label)
        self.nodes.append(known)
        self._numbers[known] = number
        self._note_operands(node, number)
        return number

    def _note_operands(self, node: ir.Node, number: int) -> None:
        producers = (value.producer() for value in node.inputs if value is not None)
        self._operands.setdefault(number, set()).update(one for one in producers if one is not None)

    def _note_users(self, node: ir.Node) -> None:
        """What reads a new node keeps it alive from now on."""
        for value in node.outputs:
            for use in value.uses():
                if use.node in self._ids:
                    self._operands[self._ids[use.node]].add(node)

    def _sweep(self, offered: Iterable[ir.Node]) -> tuple[int, ...]:
        """The nodes that have gone because only what went, or reads something else now, needed them."""
        pending = list(offered)
        self._swept.update(self._ids[node] for node in pending if node.graph is None)
        gone: list[int] = []
        while pending:
            for node in self._operands[self._ids[pending.pop()]]:
                number = self._ids.get(node)
                if number is None or node.graph is not None or number in self._swept:
                    continue
                self._swept.add(number)
                gone.append(number)
                pending.append(node)
        return tuple(sorted(gone))

    # -- what is asked afterwards -----------------------------------------------------------------------------------

    def snapshot(self, model: ir.Model) -> GraphSnapshot:
        """The result; nodes that a copy has replaced, in another graph perhaps, are found again by their names.

        Args:
            model: The result.
        """
        taken: set[int] = set()
        named = {(known.op, known.name): number for number, known in enumerate(self.nodes) if known.name}

        def number_of(node: ir.Node, label: str) -> int:
            known = self._ids.get(node)
            if known is None:
                op, name = op_of(node), node_name(node)
                known = self._numbers.get(KnownNode(op, name, label), named.get((op, name)))
            if known is None or known in taken:
                known = self._register(node, label)
            taken.add(known)
            return known

        taker = SnapshotTaker(model, number_of)
        taker.learn()
        return taker.snapshot

    def refusals(self, numbers: Iterable[int]) -> list[tuple[str, int, Reason]]:
        """What was refused at some nodes: transformer, id, reason.

        Args:
            numbers: Ids of the nodes.
        """
        wanted = frozenset(numbers)
        return [(name, number, reason) for (name, number), reason in self._refusals.items() if number in wanted]
