"""`Explanation`: an observer that collects what transformers rewrote and refused, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortopt.framework.fusions import Decision
from ortopt.graph.refusal import Code, Reason, reason_of
from ortopt.observers import Observer
from ortopt.terminal_text import node_name
from ortopt.transformer import GraphTransformer


@dataclass(frozen=True, slots=True)
class RefusedCandidate:
    """A candidate that a transformer left as it was.

    Attributes:
        transformer: Name of the transformer.
        node: The node's name, or its first result's where it has none.
        op: The node's op.
        reason: Reason of the refusal.
    """

    transformer: str
    node: str
    op: str
    reason: Reason

    @property
    def code(self) -> Code:
        """What kind of reason it is."""
        return self.reason.code


@dataclass(frozen=True, slots=True)
class OfferedRewrite:
    """A rewrite that a transformer offered.

    Attributes:
        number: Its number in the run.
        transformer: Name of the transformer.
        nodes: The nodes that are removed or changed, as (name or first result's name, op).
        why: Its purpose.
    """

    number: int
    transformer: str
    nodes: tuple[tuple[str, str], ...]
    why: str


@dataclass(frozen=True, slots=True)
class WeighedForm:
    """A fused form that the table of costs was asked for.

    Attributes:
        transformer: Name of the transformer.
        decision: What was decided, and by what.
    """

    transformer: str
    decision: Decision


class Explanation(Observer):
    """Collects what transformers refused and what they rewrote.

    Args:
        transformers: Names of the transformers that are recorded; all if empty.
    """

    listens_to_refusals = True
    decides = False

    def __init__(self, transformers: Iterable[str] = ()) -> None:
        self._names = frozenset(transformers)
        self._refusals: dict[tuple[str, ir.Node], RefusedCandidate] = {}
        self._latest: tuple[str, Sequence[ir.Node]] | None = None
        self._forms: dict[tuple[str, ir.Node], WeighedForm] = {}
        self._asked: list[tuple[tuple[str, ir.Node], WeighedForm]] = []
        self.rewrites: list[OfferedRewrite] = []

    def begin(self) -> None:
        """Forget an earlier run."""
        self._refusals.clear()
        self._latest = None
        self._forms.clear()
        self._asked.clear()
        self.rewrites.clear()

    @property
    def refusals(self) -> list[RefusedCandidate]:
        """The candidates that were not rewritten later; for one that was refused twice, the last reason."""
        return list(self._refusals.values())

    @property
    def forms(self) -> list[WeighedForm]:
        """The fused forms that the table was asked for: those that came, and those that were left out for good."""
        return list(self._forms.values())

    def refusals_of(self, node: ir.Node) -> list[RefusedCandidate]:
        """What was refused at a node, by each transformer the last reason.

        Args:
            node: The node that the refusals were reported for.
        """
        return [refusal for (_, about), refusal in self._refusals.items() if about is node]

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """The latest rewrite is complete: no refusal can take it back."""
        self._latest = None

    def offer(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        """Record a rewrite."""
        if not self._names or transformer.name in self._names:
            names = tuple((node_name(node), node.op_type) for node in nodes)
            self.rewrites.append(OfferedRewrite(number, transformer.name, names, why or transformer.formula))
            self._latest = (transformer.name, nodes)
            for node in nodes:
                self._refusals.pop((transformer.name, node), None)
                self._forms.pop((transformer.name, node), None)
        self._asked.clear()
        return True

    def weighed(self, transformer: GraphTransformer, node: ir.Node, decision: Decision) -> None:
        """Record what was decided: what is taken, once its rewrite is made."""
        if self._names and transformer.name not in self._names:
            return
        form = WeighedForm(transformer.name, decision)
        if decision.taken:
            self._asked.append(((transformer.name, node), form))
        else:
            self._forms[transformer.name, node] = form

    def rewrote(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int) -> None:
        """A rewrite has been made: the forms in it are taken."""
        self._forms.update(self._asked)
        self._asked.clear()

    def refused(self, transformer: GraphTransformer, node: ir.Node, reason: str) -> None:
        """Record a refusal; one that follows the offer of a rewrite of the same node takes that rewrite back."""
        if self._names and transformer.name not in self._names:
            return
        if self._latest is not None and self._latest[0] == transformer.name and node in self._latest[1]:
            self.rewrites.pop()
            self._latest = None
        key, told = (transformer.name, node), reason_of(reason)
        if key not in self._refusals or told.replaces(self._refusals[key].reason):
            self._refusals[key] = RefusedCandidate(transformer.name, node_name(node), node.op_type, told)
