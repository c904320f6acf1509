"""Rewrite rules: a match that asks, a rewrite that builds, and the driver that runs many of them in one sweep."""

from __future__ import annotations

import abc
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import onnx_ir as ir
from msgspec import Struct

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.context import Context
from ortopt.errors import OptimizationCancelled, RegistrationError
from ortopt.framework.fusions import Slower
from ortopt.graph import scope
from ortopt.graph.edit import Conflict, Editor
from ortopt.graph.index import OpIndex
from ortopt.graph.match import Refusal, first_match, with_claims
from ortopt.graph.refusal import Code, Reason
from ortopt.onnx_ir_internals import first_use, use_count
from ortopt.options import Numerics, TransformerLevel
from ortopt.transformer import GraphTransformer, is_tuple_of

NEWEST_OPSET = 1_000

MAX_REWRITES = 10_000
"""How many rewrites one run of the driver may make on a graph, and `MAX_REWRITES_A_NODE` more for each of its nodes."""

MAX_REWRITES_A_NODE = 20

VISITS_BETWEEN_CHECKS = 8
"""How many nodes are offered to rules between two checks of the token."""


Replacement = ir.Node | ir.Value | Mapping[ir.Value, ir.Value]


@runtime_checkable
class MatchResult(Protocol):
    """The result of a match: at least the nodes that are removed, the root among them.

    Where the rewrite also replaces results of other nodes than the root, an attribute ``replaced`` holds these values:
    they may be used elsewhere. Where values in between that stay, or are replaced, are not equal to what they were, and
    the rewrite makes up for that further down, an attribute ``changed`` holds these.
    """

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes that the rewrite replaces."""


class Match(Struct, frozen=True):
    """The match of a rule that needs no `RewriteRule.rewrite`.

    Attributes:
        nodes: The nodes that are replaced, the root among them.
        build: Builds what replaces them.
        replaced: Results of other nodes than the root that the rewrite replaces too.
        changed: Values that are not equal to what they were: see `MatchResult`.
    """

    nodes: tuple[ir.Node, ...]
    build: Callable[[], Replacement]
    replaced: tuple[ir.Value, ...] = ()
    changed: tuple[ir.Value, ...] = ()

    @classmethod
    def ending_in(cls, y: ir.Value, nodes: Iterable[ir.Node], build: Callable[[], ir.Node]) -> Match:
        """The match of nodes whose result may stand below the root.

        Args:
            y: The result.
            nodes: The nodes that are replaced, the root among them.
            build: Builds the node whose first output replaces the result.
        """
        return cls(tuple(nodes), lambda: {y: build().outputs[0]}, (y,))


class Forwarded(Struct, frozen=True):
    """The match of a rule that needs the nodes and one value, e.g. the one that replaces the root's result."""

    nodes: tuple[ir.Node, ...]
    value: ir.Value


FoundT = TypeVar("FoundT", bound=MatchResult)


class RewriteRule(GraphTransformer, Generic[FoundT]):
    """A pattern and its replacement, tried at every node of its root ops.

    The framework visits the nodes, tries both orders of operands (see `ortopt.graph.match`), checks that no value
    between the matched nodes is used elsewhere or is a graph output, carries names, types, shapes and metadata over,
    checks that new nodes have kernels, removes dead nodes, and records the reasons of refusals.

    Attributes:
        roots: The ops at which the rule is tried: ``Add``, or ``com.microsoft::Gelu``.
        opsets: The first and last version of the root's domain for which the rule holds.
        lookback: How many nodes above the root the match looks at: a change there tries the root again.
        looks_downstream: Whether it also looks below the root, or at other users of its operands: any change tries the
            root again, in the next step.
    """

    roots: ClassVar[tuple[str, ...]] = ()
    opsets: ClassVar[tuple[int, int]] = (1, NEWEST_OPSET)
    lookback: ClassVar[int] = 2
    looks_downstream: ClassVar[bool] = False
    offers_rewrites = True

    @abc.abstractmethod
    def match(self, root: ir.Node) -> FoundT:
        """Find the pattern that ends in a node; it asks, and changes nothing.

        Args:
            root: A node of one of the root ops.

        Returns:
            The match: the nodes that are removed, and what the rewrite needs.

        Raises:
            Refusal: If there is no match, or it must stay, with the reason.
        """

    def rewrite(self, found: FoundT) -> Replacement:
        """Build what replaces the pattern; it constructs, and asks nothing. A `Match` brings what builds it.

        Args:
            found: What `match` found.

        Returns:
            A new node whose outputs replace those of the root, one by one; or a value (an existing one, or a new
            `constant`) that replaces the root's first output; or a mapping of old values to new ones.
        """
        if not isinstance(found, Match):
            raise NotImplementedError(f"{type(self).__name__} has no rewrite, and its match no build")
        return found.build()

    def numerics_of(self, found: FoundT) -> Numerics:
        """What replacing a match may do to numbers, where that is more than `numerics` for some matches.

        Args:
            found: What `match` found.

        Returns:
            `numerics`, or `Numerics.FINITE`: then it is not replaced with ``-O1``, nor with ``--no-finite-math``.
        """
        return self.numerics

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Run this rule alone to its fixed point on a graph."""
        return RuleDriver([self]).run(graph, {self: context}).modified


class Elimination(RewriteRule[Forwarded]):
    """A rule whose matches are replaced by a value that is there: the match says by which."""

    def rewrite(self, found: Forwarded) -> ir.Value:
        """Let the users of the root read that value."""
        return found.value


def check_rule(rule: RewriteRule[Any]) -> None:
    """Refuse a rule whose declarations make no sense.

    Raises:
        RegistrationError: If one makes none.
    """
    where = f"{type(rule).__module__}.{type(rule).__qualname__}"
    if not rule.roots or not is_tuple_of(rule.roots, str):
        raise RegistrationError(f"{where}: roots must be a tuple that names at least one op")
    if len(rule.opsets) != 2 or rule.opsets[0] > rule.opsets[1]:
        raise RegistrationError(f"{where}: opsets must be (first, last)")


class RuleFailure(Exception):  # noqa: N818 -- carries a rule's exception to the manager
    """A rule raised.

    Args:
        rule: The rule.
        cause: Its exception.
    """

    def __init__(self, rule: RewriteRule[Any], cause: Exception) -> None:
        super().__init__(f"{rule.name}: {cause}")
        self.rule = rule
        self.cause = cause


class RuleStatistics(Struct):
    """What one rule did in one run of the driver.

    Attributes:
        visits: Number of nodes that it was offered.
        rewrites: Number of its rewrites.
        seconds: Time in its match and rewrite.
    """

    visits: int = 0
    rewrites: int = 0
    seconds: float = 0.0


class DriverResult(Struct, frozen=True):
    """What one run of the driver did.

    Attributes:
        modified: Whether anything changed.
        statistics: By rule name.
        bounded: Whether it ended at the limit of rewrites: rules that rewrite one another's results never end.
    """

    modified: bool
    statistics: dict[str, RuleStatistics]
    bounded: bool = False


class _Entry(Struct, frozen=True):
    rule: RewriteRule[Any]
    first: int
    last: int
    domain: str


class _Live:
    """The rules that hold in a graph's opsets.

    Args:
        by_root: Their entries by root op.
    """

    def __init__(self, by_root: Mapping[str, Sequence[_Entry]]) -> None:
        self._by_root = by_root
        self._offered: dict[tuple[str, int], Sequence[RewriteRule[Any]]] = {}
        self._ops: tuple[OpIndex, int] | None = None

    def rules(self, root: str, distance: int, index: OpIndex | None) -> Sequence[RewriteRule[Any]]:
        """The rules to offer a node to.

        Args:
            root: Its op.
            distance: How many nodes above it something has changed: rules look so far, or also below and beside it.
            index: The nodes of the model, which must have one of the ops that a rule needs; None is all rules.
        """
        ops = None if index is None else (index, index.ops_changed)
        if ops != self._ops:
            self._ops = ops
            self._offered.clear()
        known = self._offered.get((root, distance))
        if known is None:
            known = self._offered[root, distance] = tuple(
                entry.rule
                for entry in self._by_root.get(root, ())
                if (entry.rule.lookback >= distance or entry.rule.looks_downstream)
                and (index is None or not entry.rule.needs or index.has_any_anywhere(entry.rule.needs))
            )
        return known


class RuleDriver:
    """Runs rules over a graph: in topological order first, then wherever something changed, until nothing does.

    Args:
        rules: In order of precedence at a node.
    """

    def __init__(self, rules: Sequence[RewriteRule[Any]]) -> None:
        self.rules = tuple(rules)
        self.roots: dict[str, list[_Entry]] = {}
        self._lookback: dict[str, int] = {}
        for rule in self.rules:
            for root in rule.roots:
                domain = root.partition("::")[0] if "::" in root else ""
                self.roots.setdefault(root, []).append(_Entry(rule, rule.opsets[0], rule.opsets[1], domain))
                self._lookback[root] = max(self._lookback.get(root, 0), rule.lookback)
        self._downstream_roots = tuple(
            dict.fromkeys(root for rule in self.rules if rule.looks_downstream for root in rule.roots)
        )
        self._furthest = max(self._lookback.values(), default=0)
        self._elsewhere = self._furthest + 1  # the distance of nodes that only rules that look downstream ask about
        self._live_tables: dict[frozenset[tuple[str, int]], _Live] = {}

    def seeds(
        self,
        graph: ir.Graph,
        index: OpIndex,
        near: Mapping[ir.Node, int] | None,
        token: CancellationToken = NEVER,
    ) -> dict[ir.Node, int]:
        """The nodes to start from, with their distances from what has changed.

        Args:
            graph: The graph.
            index: The nodes of the model.
            near: Nodes within reach of what changed since the rules last ran on it to the end; None is all of them.
            token: Cancellation token.

        Returns:
            All nodes of root ops in order, or those that are near and the roots of rules that look downstream.
        """
        if near is None:
            table = self.roots
            return {
                node: 0
                for node in token.checked(graph)
                if (f"{node.domain}::{node.op_type}" if node.domain else node.op_type) in table
            }
        distances = {node: distance for node, distance in near.items() if node.graph is graph}
        for root in self._downstream_roots:
            for node in index.nodes(graph, root):
                distances.setdefault(node, self._elsewhere)
        return distances

    def run(
        self,
        graph: ir.Graph,
        contexts: Mapping[RewriteRule[Any], Context],
        near: Mapping[ir.Node, int] | None = None,
        statistics: dict[str, RuleStatistics] | None = None,
    ) -> DriverResult:
        """Run the rules on one graph to their fixed point.

        Args:
            graph: The graph.
            contexts: The context of each rule.
            near: See `seeds`.
            statistics: What each rule did, by name, is counted here: also by a run that is stopped.

        Returns:
            Whether anything changed, and what each rule did.

        Raises:
            OptimizationCancelled: If the run has been asked to stop; every completed rewrite stands.
        """
        statistics = {rule.name: RuleStatistics() for rule in self.rules} if statistics is None else statistics
        live = self._live(graph)
        context = next(iter(contexts.values()))
        cancellation = context.cancellation
        index = None if context.listens_to_refusals else context.edit.index
        distances = self.seeds(graph, context.edit.index, near, cancellation)
        queue = deque(distances)
        modified = False
        countdown = VISITS_BETWEEN_CHECKS
        left = MAX_REWRITES + MAX_REWRITES_A_NODE * len(graph)
        while queue and left:
            countdown -= 1
            if not countdown:
                cancellation.check()
                countdown = VISITS_BETWEEN_CHECKS
            node = queue.popleft()
            distance = distances.pop(node)
            if node.graph is not graph:
                continue
            name = node.op_type
            rules = live.rules(f"{node.domain}::{name}" if node.domain else name, distance, index)
            changed = self._visit(rules, node, contexts, statistics) if rules else None
            if changed is None:
                continue
            left -= 1
            modified = True
            for other, distance in changed.items():
                known = distances.get(other)
                if known is None and other.graph is graph:
                    distances[other] = distance
                    queue.append(other)
                elif known is not None and distance < known:
                    distances[other] = distance
        return DriverResult(modified, statistics, bounded=bool(queue))

    def _live(self, graph: ir.Graph) -> _Live:
        """The rules for a graph's opsets."""
        imports = scope.of(graph).opset_imports
        key = frozenset(imports.items())
        known = self._live_tables.get(key)
        if known is None:
            by_root = {
                root: [entry for entry in entries if entry.first <= imports.get(entry.domain, 1) <= entry.last]
                for root, entries in self.roots.items()
            }
            known = self._live_tables[key] = _Live(by_root)
        return known

    def _visit(
        self,
        rules: Sequence[RewriteRule[Any]],
        node: ir.Node,
        contexts: Mapping[RewriteRule[Any], Context],
        statistics: Mapping[str, RuleStatistics],
    ) -> dict[ir.Node, int] | None:
        """Offer a node to rules, in order; the nodes to visit again once one has rewritten it, else None."""
        for rule in rules:
            started = time.perf_counter()
            try:
                changed = self._try(rule, node, contexts[rule])
            except (OptimizationCancelled, RuleFailure):
                raise
            except Exception as error:
                raise RuleFailure(rule, error) from error
            figures = statistics[rule.name]
            figures.visits += 1
            figures.seconds += time.perf_counter() - started
            if changed is not None:
                figures.rewrites += 1
                return changed
        return None

    def _try(self, rule: RewriteRule[Any], root: ir.Node, context: Context) -> dict[ir.Node, int] | None:
        """Offer a node to a rule; the nodes to visit again if it was rewritten, else None."""
        try:
            found = first_match(rule.match, root)
            if not hasattr(found, "nodes"):
                raise TypeError(f"match returned a {type(found).__name__}, which has no nodes")
            self._check_private(found.nodes, root, getattr(found, "replaced", ()))
        except Refusal as refusal:
            if context.listens_to_refusals:
                told = with_claims(refusal, root, rule.match)
                context.refuse(root, told if isinstance(told, Slower) else told.told)
            return None
        nodes, numerics = tuple(found.nodes), rule.numerics_of(found)
        if numerics is Numerics.FINITE and (
            not context.options.finite_math or context.options.level < TransformerLevel.LEVEL2
        ):
            context.refuse(root, Reason("it would be the same for finite numbers only", Code.NUMERICS))
            return None
        context.edit.author = rule.name
        mark = len(context.edit.touched)
        replacements: dict[ir.Value, ir.Value] = {}

        def build() -> Mapping[ir.Value, ir.Value]:
            context.edit.set_changed(getattr(found, "changed", ()))  # before new nodes read what they read
            replacements.update(_built(rule, found, root))
            _check_replaced(nodes, root, replacements)
            return replacements

        if not context.substitute(build, before=root, origin=nodes, nodes=nodes, candidate=root, numerics=numerics):
            return None
        near = context.edit.touched[mark:]
        near += [producer for new in replacements.values() if (producer := new.producer()) is not None]
        return self.downstream(near)

    def _check_private(self, nodes: Sequence[ir.Node], root: ir.Node, replaced: Sequence[ir.Value]) -> None:
        """Refuse if a value between the matched nodes is needed outside of them."""
        if len(nodes) == 1:
            return
        members = set(nodes)
        for node in nodes:
            if node is root:
                continue
            for value in node.outputs:
                if any(value is other for other in replaced):
                    continue
                if value.is_graph_output():
                    raise Refusal(f"{node.op_type}'s result is used elsewhere", value)
                count = use_count(value)
                if count == 0:
                    continue
                use = first_use(value)
                if count == 1 and use is not None and use.node in members:
                    continue
                if any(use.node not in members for use in value.uses()):
                    raise Refusal(f"{node.op_type}'s result is used elsewhere", value)

    def downstream(self, nodes: Iterable[ir.Node], token: CancellationToken = NEVER) -> dict[ir.Node, int]:
        """Nodes that changed and what follows, as far as a rule of such a root looks back, with their distances."""
        lookback = self._lookback
        changed = dict.fromkeys(nodes)
        layer = [node for node in (changed if token is NEVER else token.checked(changed)) if node.graph is not None]
        seen = set(layer)
        reached = dict.fromkeys(layer, 0)
        for distance in range(1, self._furthest + 1):
            following: list[ir.Node] = []
            for at in layer if token is NEVER else token.checked(layer):
                for value in at.outputs:
                    if use_count(value) > MAX_FOLLOWED:
                        continue
                    for use in value.uses():
                        if use.node not in seen:
                            seen.add(use.node)
                            following.append(use.node)
            if not following:
                break
            for user in following:
                if lookback.get(f"{user.domain}::{user.op_type}" if user.domain else user.op_type, 0) >= distance:
                    reached[user] = distance
            layer = following
        return reached


class Changes:
    """The nodes of each graph near what has changed since the rules of a driver last ran on it.

    There may be thousands of graphs: each change is followed once, into all graphs, and not once for each graph.

    Args:
        driver: The driver of the rules.
        edit: The editor, which records changes.
    """

    def __init__(self, driver: RuleDriver, edit: Editor) -> None:
        self._driver = driver
        self.edit = edit
        self._place = len(edit.touched)
        self._swept: dict[ir.Graph, int] = {}  # with the bytes that edits had added by then
        self._near: dict[ir.Graph, dict[ir.Node, int]] = {}

    def near(
        self, graph: ir.Graph, too_large: Iterable[ir.Node], token: CancellationToken
    ) -> dict[ir.Node, int] | None:
        """The nodes of a graph that are within reach of what has changed, with their distances from it.

        Args:
            graph: The graph on which the rules are about to run.
            too_large: Nodes whose rewrite would have let the file grow too much: there may be room for it by now.
            token: Cancellation token.

        Returns:
            None where the rules have never run on it to the end.
        """
        self._spread(None, token)
        near = self._near.pop(graph, {})
        if graph not in self._swept:
            return None
        if self.edit.added_bytes < self._swept[graph]:
            near.update(dict.fromkeys(too_large, 0))
        return near

    def ran(self, graph: ir.Graph, token: CancellationToken) -> None:
        """The rules have run to their end on a graph: what they changed concerns other graphs only."""
        self._swept[graph] = self.edit.added_bytes
        if len(self.edit.index) > 1:
            self._spread(graph, token)
        self._place = len(self.edit.touched)

    def failed(self, graph: ir.Graph) -> None:
        """The rules have not run to their end on a graph."""
        self._swept.pop(graph, None)

    def _spread(self, besides: ir.Graph | None, token: CancellationToken) -> None:
        for node, distance in self._driver.downstream(self.edit.touched[self._place :], token).items():
            if node.graph is not besides and isinstance(node.graph, ir.Graph):
                near = self._near.setdefault(node.graph, {})
                near[node] = min(distance, near.get(node, distance))
        self._place = len(self.edit.touched)


MAX_FOLLOWED = 64
"""Values with more users are not followed to find roots that see a change above them: the next step's sweep does."""


def as_mapping(root: ir.Node, replacement: Replacement) -> Mapping[ir.Value, ir.Value]:
    """What a rule returned, as old value to new value."""
    if isinstance(replacement, ir.Node):
        used = zip(root.outputs, replacement.outputs, strict=False)
        return {old: new for old, new in used if use_count(old) or old.is_graph_output() or old is root.outputs[0]}
    if isinstance(replacement, ir.Value):
        return {root.outputs[0]: replacement}
    if not isinstance(replacement, Mapping):
        raise TypeError(f"rewrite returned a {type(replacement).__name__}: it must be a node, a value or a mapping")
    return replacement


def _built(rule: RewriteRule[FoundT], found: FoundT, root: ir.Node) -> Mapping[ir.Value, ir.Value]:
    """What a rule builds for a match, as old value to new value: it is too late to refuse the match."""
    try:
        return as_mapping(root, rule.rewrite(found))
    except (Conflict, Refusal) as error:
        raise RuleFailure(rule, error) from error


def _check_replaced(nodes: Sequence[ir.Node], root: ir.Node, replacements: Mapping[ir.Value, ir.Value]) -> None:
    """Refuse a replacement that leaves a needed output of the root without one."""
    if root not in nodes:
        return
    members = set(nodes)
    for value in root.outputs:
        if value in replacements:
            continue
        if value.is_graph_output() or any(use.node not in members for use in value.uses()):
            raise Refusal(f"{root.op_type}'s result is used elsewhere", value)
