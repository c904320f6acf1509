"""Which transformers of a level run together, and in which order."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from ortopt.errors import RegistrationError
from ortopt.framework.direct_edits import is_own
from ortopt.graph.edit import Editor
from ortopt.options import Options
from ortopt.rule import Changes, RewriteRule, RuleDriver
from ortopt.transformer import GraphTransformer, name_key

Clock = tuple[Editor, int]
"""An editor, and how much it had changed: nothing has changed since where both are the same."""


class RuleBatch:
    """Adjacent rules, which run in one sweep over a graph; or one other transformer.

    Args:
        transformers: The rules, in order, or the one transformer.

    Attributes:
        is_rules: Whether they are rules.
        apply_once: Whether it runs in the first step only.
        bypasses_editor: Whether it edits onnx-ir directly.
        level_independent: Whether it does the same at all levels, and is no rule.
        strangers: Those that are not ortopt's own.
        unchanged_at: By graph, when it last found nothing to do.
    """

    def __init__(self, transformers: Sequence[GraphTransformer]) -> None:
        self.transformers = tuple(transformers)
        self.is_rules = isinstance(transformers[0], RewriteRule)
        self.apply_once = transformers[0].apply_once
        self.bypasses_editor = transformers[0].bypasses_editor
        self.level_independent = not self.is_rules and transformers[0].level_independent
        self.strangers = tuple(t for t in transformers if not is_own(t))
        self._ops = frozenset(
            itertools.chain.from_iterable(t.roots if isinstance(t, RewriteRule) else t.needs for t in transformers)
        )
        self.unchanged_at: dict[ir.Graph, Clock] = {}
        self._changes: dict[RuleDriver, Changes] = {}
        self._drivers: dict[tuple[GraphTransformer, ...], RuleDriver] = {}

    def has_nodes(self, graph: ir.Graph, edit: Editor) -> bool:
        """Whether a graph has a node of its rules' ops; or the model one of those that another transformer needs."""
        if self.is_rules:
            return edit.index.has_any(graph, self._ops)
        return not self._ops or edit.index.has_any_anywhere(self._ops)

    def serving(self, options: Options) -> Sequence[GraphTransformer]:
        """Its transformers for a run's target and one of its providers: the others would be refused at each node."""
        return [t for t in self.transformers if _serves(t, options)]

    def driver(self, active: Iterable[GraphTransformer]) -> RuleDriver:
        """The driver of the rules that are active."""
        key = tuple(active)
        if key not in self._drivers:
            self._drivers[key] = RuleDriver([t for t in key if isinstance(t, RewriteRule)])
        return self._drivers[key]

    def changes(self, driver: RuleDriver, edit: Editor) -> Changes:
        """What an editor has changed since a driver last ran."""
        changes = self._changes.get(driver)
        if changes is None or changes.edit is not edit:
            changes = self._changes[driver] = Changes(driver, edit)
        return changes

    def failed(self, graph: ir.Graph) -> None:
        """A run on a graph has been rolled back: it has not been swept."""
        for changes in self._changes.values():
            changes.failed(graph)


def _serves(transformer: GraphTransformer, options: Options) -> bool:
    targets, providers = transformer.targets, transformer.providers
    for_target = not targets or options.target in targets
    return for_target and (not providers or any(provider in options.providers for provider in providers))


def in_batches(transformers: Iterable[GraphTransformer]) -> list[RuleBatch]:
    """Batch adjacent rules; a rule that applies once ends a batch, as any other transformer does."""
    batches: list[list[GraphTransformer]] = []
    for transformer in transformers:
        joins = (
            batches
            and isinstance(transformer, RewriteRule)
            and isinstance(batches[-1][-1], RewriteRule)
            and not transformer.apply_once
            and not batches[-1][-1].apply_once
        )
        if joins:
            batches[-1].append(transformer)
        else:
            batches.append([transformer])
    return [RuleBatch(members) for members in batches]


def in_order(transformers: Sequence[GraphTransformer]) -> list[GraphTransformer]:
    """Sort transformers by ``after``, then name; rules stay together where ``after`` leaves the choice.

    Raises:
        RegistrationError: If the ``after`` lists form a circle; names it.
    """
    by_key = {name_key(t.name): t for t in transformers}
    waits = {key: (set(map(name_key, t.after)) & set(by_key.keys())) for key, t in by_key.items()}
    followers: dict[str, list[str]] = {key: [] for key in by_key}
    for key, earlier in waits.items():
        for other in earlier:
            followers[other].append(key)
    ready: dict[bool, list[tuple[str, str]]] = {True: [], False: []}
    for key, earlier in waits.items():
        if not earlier:
            heapq.heappush(ready[isinstance(by_key[key], RewriteRule)], (by_key[key].name, key))
    ordered: list[GraphTransformer] = []
    rules = False
    while ready[True] or ready[False]:
        if not ready[rules]:
            rules = not rules
        _, key = heapq.heappop(ready[rules])
        ordered.append(by_key[key])
        for follower in followers[key]:
            waits[follower].discard(key)
            if not waits[follower]:
                heapq.heappush(ready[isinstance(by_key[follower], RewriteRule)], (by_key[follower].name, follower))
    if len(ordered) != len(transformers):
        circle = ", ".join(sorted(by_key[key].name for key, earlier in waits.items() if earlier))
        raise RegistrationError(f"the 'after' lists of these transformers form a circle: {circle}")
    return ordered
