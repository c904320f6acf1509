"""GraphTransformerManager: transformers by level, applied in steps until nothing changes."""

from __future__ import annotations

import heapq
import itertools
import time
import warnings
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.context import Context
from ortopt.direct_edits import DirectEdit, check_edits
from ortopt.errors import InvalidModelError, OptimizationCancelled, RegistrationError, TransformerError, UsageError
from ortopt.graph import scope
from ortopt.graph.edit import Editor
from ortopt.instrumentation.check_each import what_is_broken
from ortopt.observers import HistoryEntry, InvalidGraph, Observer, Observers, RetryRequested
from ortopt.onnx_ir_internals import clone
from ortopt.options import DEFAULT_STEPS, Options, TransformerLevel, whole_number
from ortopt.rule import Changes, RewriteRule, RuleDriver, RuleFailure, check_rule
from ortopt.transformer import GraphTransformer, check_contract, check_instance, name_key
from ortopt.workspace import Workspace


class GraphTransformerManager:
    """Applies the transformers of a level in steps until nothing changes.

    Args:
        steps: The bound on the steps of a level.
        options: What the transformers are told; the defaults if None.
        observers: Who watches.
        on_error: What a transformer that raises does: ``"raise"`` ends the run with a `TransformerError`, ``"skip"``
            leaves it out and goes on. Either way the model is as it was before that transformer; where that cannot be
            (`TransformerError.corrupted`), it is raised in either case.
        keep_order: Whether transformers run as they were registered, instead of by ``after`` and name.

    Attributes:
        failures: The transformers left out, with their errors.
        bound_reached: The levels that still changed something in their last step, or whose rules found no end, in the
            last call of `apply_transformers`.
    """

    def __init__(
        self,
        steps: int = DEFAULT_STEPS,
        *,
        options: Options | None = None,
        observers: Iterable[Observer] = (),
        on_error: Literal["raise", "skip"] = "raise",
        keep_order: bool = False,
    ) -> None:
        self.set_steps(steps)
        self.options = options or Options()
        self.observers = Observers(observers)
        self.on_error = on_error
        self.keep_order = keep_order
        self.failures: list[TransformerError] = []
        self.bound_reached: list[TransformerLevel] = []
        self._by_level: dict[TransformerLevel, dict[str, GraphTransformer]] = {level: {} for level in TransformerLevel}
        self._history: list[HistoryEntry] = []
        self._modified = False
        self._left_out: set[GraphTransformer] = set()
        self._seen_elsewhere: dict[GraphTransformer, dict[ir.Graph, tuple[object, int]]] = {}
        self._slots: dict[TransformerLevel, tuple[Workspace, tuple[GraphTransformer, ...], list[RuleBatch]]] = {}
        self._endless = ""

    # -- what ONNX Runtime's manager has ------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """The bound on the steps of a level."""
        return self._steps

    def set_steps(self, steps: int) -> None:
        """Set the bound on the steps of a level.

        Args:
            steps: At least 1.

        Raises:
            UsageError: If it is less, or no whole number.
        """
        self._steps = whole_number("steps", steps, least=1)

    @property
    def is_graph_modified(self) -> bool:
        """Whether the last call of `apply_transformers` changed anything."""
        return self._modified

    def clear_graph_modified(self) -> None:
        """Forget that anything changed."""
        self._modified = False

    @property
    def history(self) -> tuple[HistoryEntry, ...]:
        """What ran, in order, over all calls."""
        return tuple(self._history)

    def register(self, transformer: GraphTransformer, level: TransformerLevel | int | None = None) -> None:
        """Take up a transformer.

        Args:
            transformer: An instance.
            level: Where it runs; None is every level that its class declares.

        Raises:
            RegistrationError: If it is no instance, its declarations make no sense, or its name is taken at a level.
            UsageError: If there is no such level.
        """
        check_instance(transformer)
        check_contract(transformer)
        if isinstance(transformer, RewriteRule):
            check_rule(transformer)
        levels = type(transformer).levels if level is None else (_level(level),)
        key = name_key(transformer.name)
        for at in levels:
            taken = self._by_level[at].get(key)
            if taken is not None:
                raise RegistrationError(
                    f"level {at.value} already has a transformer named {taken.name} ({_where(taken)});"
                    f" {_where(transformer)} cannot have it too"
                )
        for at in levels:
            self._by_level[at][key] = transformer

    def transformers(self, level: TransformerLevel | int) -> tuple[GraphTransformer, ...]:
        """The transformers of a level, in the order in which they run.

        Raises:
            RegistrationError: If their ``after`` lists form a circle.
            UsageError: If there is no such level.
        """
        registered = list(self._by_level[_level(level)].values())
        return tuple(registered) if self.keep_order else tuple(in_order(registered))

    def apply_transformers(
        self,
        model: ir.Model,
        level: TransformerLevel | int,
        *,
        cancellation: CancellationToken | None = None,
    ) -> bool:
        """Apply a level's transformers to a model, in place, until nothing changes.

        Args:
            model: The model.
            level: 1 to 4.
            cancellation: Cancellation token.

        Returns:
            Whether anything changed.

        Raises:
            UsageError: If the model is no `ir.Model`, or there is no such level.
            TransformerError: If a transformer raised, and errors are not skipped.
            InvalidModelError: If the model is broken.
            OptimizationCancelled: If it was stopped; the model holds exactly the rewrites that had completed.
            MemoryError: If there is no more memory, whatever happens to errors; the model is as it was before that
                transformer.
        """
        if not isinstance(model, ir.Model):
            raise UsageError(
                f"apply_transformers takes an onnx_ir.Model, which it changes in place, not {type(model).__name__}"
                " (onnx_ir.load and onnx_ir.from_proto make one; ortopt.optimize takes files and protos)"
            )
        wanted = _level(level)
        token = cancellation or NEVER
        self.bound_reached.clear()
        workspace = Workspace(model, self.options, token=token)
        try:
            return self.run(workspace, wanted, token)
        except OptimizationCancelled:
            workspace.roll_back_to_mark()
            raise

    # -- the loop -----------------------------------------------------------------------------------------------------

    @np.errstate(all="ignore")  # infinities and NaN in constants are a transformer's to refuse, not numpy's to report
    def run(
        self,
        workspace: Workspace,
        level: TransformerLevel,
        cancellation: CancellationToken,
        *,
        cleanup: bool = False,
    ) -> bool:
        """Apply a level's transformers, or only those that close a round, in a workspace (see `apply_transformers`).

        Raises:
            TransformerError: As there.
            OptimizationCancelled: If it was stopped; `Workspace.roll_back_to_mark` is the caller's to call.
        """
        self._modified = False
        self._endless = ""
        if not cleanup:  # an earlier round's bound does not hold any more once all of the level runs again
            self.bound_reached = [reached for reached in self.bound_reached if reached is not level]
        slots = self._slots_of(workspace, level)
        for step in range(1, self._steps + 1):
            changed = False
            for slot in slots:
                if (slot.apply_once and step > 1) or (cleanup and not slot.closes):
                    continue
                changed |= self._run_slot(slot, workspace, level, step, cancellation)
            self._modified |= changed
            if self._endless:
                self.warn_limit(level, f"level {level.value} stopped in step {step}: {self._endless}")
                return self._modified
            if not changed:
                return self._modified
        if any(not slot.apply_once for slot in slots):
            self.warn_limit(
                level, f"level {level.value} still changed the graph in step {self._steps}, the last one allowed"
            )
        return self._modified

    def _slots_of(self, workspace: Workspace, level: TransformerLevel) -> list[RuleBatch]:
        """The slots of a level; those of the last run on this workspace, which know what they have seen."""
        registered = tuple(self._by_level[level].values())
        kept = self._slots.get(level)
        if kept is None or kept[0] is not workspace or kept[1] != registered:
            kept = workspace, registered, [RuleBatch(members) for members in in_slots(self.transformers(level))]
            self._slots[level] = kept
        return kept[2]

    def warn_limit(self, level: TransformerLevel, what: str) -> None:
        """Say that a level was left before it found an end."""
        self.bound_reached.append(level)
        warnings.warn(what, RuntimeWarning, stacklevel=3)

    def _run_slot(
        self, slot: RuleBatch, workspace: Workspace, level: TransformerLevel, step: int, cancellation: CancellationToken
    ) -> bool:
        if slot.raw:
            return self._run_raw(slot, workspace, level, step, cancellation)
        changed = False
        for graph in workspace.edit.index.graphs():
            seen = self._seen_elsewhere.setdefault(slot.transformers[0], {}) if slot.alike else slot.seen
            if seen.get(graph) == (workspace.edit, workspace.edit.clock):
                continue  # nothing has changed since it said that there is nothing to do
            if graph not in workspace.edit.index:
                continue  # a transformer has taken it away meanwhile
            cancellation.check()
            before = workspace.edit.version
            ran = True
            while ran:
                ran = self._run_on(slot, workspace, graph, level, step, cancellation)
            if workspace.edit.version == before:
                seen[graph] = (workspace.edit, workspace.edit.clock)
            else:
                changed = True
                self._modified = True
                workspace.reinfer(cancellation)
        return changed

    def _run_on(
        self,
        slot: RuleBatch,
        workspace: Workspace,
        graph: ir.Graph,
        level: TransformerLevel,
        step: int,
        cancellation: CancellationToken,
    ) -> bool:
        """Run a slot on a graph; whether it must run again, because one of its transformers had to be left out."""
        active = [
            transformer
            for transformer in slot.transformers
            if transformer not in self._left_out and self.observers.should_run(transformer, graph)
        ]
        if not active:
            return False
        if slot.is_rules and not workspace.edit.index.has_any(graph, slot.roots):
            return False
        edit = workspace.edit
        start, offered, nodes_before = edit.version, workspace.offered, len(graph)
        contexts = {t: Context(workspace, t, level, step, cancellation, self.observers) for t in active}
        for transformer in active:
            self.observers.before(transformer, level.value, step, graph)
        started = time.perf_counter()
        try:
            if slot.is_rules:
                entries = self._sweep(slot, active, contexts, workspace, graph, level, step)
            else:
                (transformer,) = active
                edit.author = transformer.name
                entries = self._apply(transformer, contexts[transformer], graph, level, step)
            edit.restore_order(cancellation)
            edit.drop_freed_initializers(cancellation)
            self.observers.inspect(workspace.model, edit.version != start)
        except OptimizationCancelled:
            workspace.stop_at(max((context._mark for context in contexts.values()), default=start))
            raise
        except Exception as error:
            culprit, cause = _blamed(error, active)
            whole = self._take_back(workspace, start) and not isinstance(cause, DirectEdit)
            if isinstance(cause, MemoryError):  # no fault of its own, and the next would find no more: the run is over
                raise cause from None
            workspace.offered = offered
            slot.failed(graph)
            if isinstance(cause, RetryRequested) and whole:
                return True
            if whole and (wrong := what_is_broken(workspace.model)) is not None:
                raise InvalidModelError(f"{culprit.name} found the model broken: {wrong}") from cause
            self._fail(culprit, cause, level, step, graph, corrupted=not whole)
            return slot.is_rules
        seconds = time.perf_counter() - started
        for entry in entries:
            finished = HistoryEntry(
                entry.level, entry.step, entry.transformer, entry.graph, entry.modified,
                entry.seconds if slot.is_rules else seconds,
                nodes_before, len(graph), entry.rewrites, entry.visits,
            )  # fmt: skip
            self._history.append(finished)
            self.observers.after(finished, graph)
        return False

    def _take_back(self, workspace: Workspace, version: int) -> bool:
        """Roll an edit back; whether the model is as it was, as far as anybody looks."""
        try:
            workspace.edit.rollback(version)
            self.observers.inspect(workspace.model, False)
        except OptimizationCancelled:
            raise
        except Exception:  # what was edited behind the editor's back can break its way back anywhere
            return False
        return True

    def _sweep(
        self,
        slot: RuleBatch,
        active: Sequence[GraphTransformer],
        contexts: dict[GraphTransformer, Context],
        workspace: Workspace,
        graph: ir.Graph,
        level: TransformerLevel,
        step: int,
    ) -> list[HistoryEntry]:
        driver = slot.driver(active)
        changes = slot.changes(driver, workspace.edit)
        token = next(iter(contexts.values())).cancellation
        outcome = driver.run(graph, contexts, changes.near(graph, token))  # type: ignore[arg-type]
        changes.ran(graph, token)
        label = scope.label(graph)
        if outcome.bounded:
            most = max(outcome.statistics, key=lambda name: outcome.statistics[name].rewrites)
            count = sum(figures.rewrites for figures in outcome.statistics.values())
            self._endless = f"rules made {count} rewrites on {label} and were not done, {most} the most of them"
        return [
            HistoryEntry(
                level.value,
                step,
                name,
                label,
                figures.rewrites > 0,
                figures.seconds,
                0,
                0,
                figures.rewrites,
                figures.visits,
            )
            for name, figures in outcome.statistics.items()
            if figures.visits
        ]

    def _apply(
        self, transformer: GraphTransformer, context: Context, graph: ir.Graph, level: TransformerLevel, step: int
    ) -> list[HistoryEntry]:
        edit = context.edit
        version = edit.version
        label = scope.label(graph)
        if transformer.offers_rewrites or context.offer((), transformer.formula):
            said = transformer.apply(graph, context)
            context._end()
            check_edits(transformer, edit, graph, said=said, logged=edit.version != version)
        modified = edit.version != version  # what it did counts, not what it says
        return [HistoryEntry(level.value, step, transformer.name, label, modified, 0.0, 0, 0, context._rewrites)]

    def _run_raw(
        self, slot: RuleBatch, workspace: Workspace, level: TransformerLevel, step: int, cancellation: CancellationToken
    ) -> bool:
        """Run a transformer that edits onnx-ir directly, on a clone."""
        (transformer,) = slot.transformers
        model = workspace.model
        if transformer in self._left_out or not self.observers.should_run(transformer, model.graph):
            return False
        if slot.seen.get(model.graph) == (workspace.edit, workspace.edit.clock):
            return False
        context = Context(workspace, transformer, level, step, cancellation, self.observers)
        if not context.offer((), transformer.formula):
            return False
        self.observers.before(transformer, level.value, step, model.graph)
        started, nodes_before, label = time.perf_counter(), len(model.graph), scope.label(model.graph)
        copy = clone(model, cancellation)
        scope.attach(copy, workspace.options, cancellation)
        twin = Context(CloneWorkspace(copy, workspace), transformer, level, step, cancellation, self.observers)
        try:
            modified = transformer.apply(copy.graph, twin)
            self.observers.inspect(copy, modified)
        except (OptimizationCancelled, MemoryError):
            raise
        except Exception as error:
            self._fail(transformer, error, level, step, model.graph)
            return False
        if modified:
            workspace.swap_in(copy, cancellation)
            self._modified = True
            context._complete((), ())
        else:
            slot.seen[model.graph] = (workspace.edit, workspace.edit.clock)
        entry = HistoryEntry(
            level.value, step, transformer.name, label, modified, time.perf_counter() - started,
            nodes_before, len(model.graph), int(modified),
        )  # fmt: skip
        self._history.append(entry)
        self.observers.after(entry, model.graph)
        return modified

    def _fail(
        self,
        transformer: GraphTransformer,
        error: Exception,
        level: TransformerLevel,
        step: int,
        graph: ir.Graph,
        *,
        corrupted: bool = False,
    ) -> None:
        if isinstance(error, InvalidGraph):
            reason = f"what it left is broken: {error}"
        elif isinstance(error, DirectEdit):
            reason = str(error)
        else:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        failure = TransformerError(transformer.name, level.value, step, _label(graph), reason)
        failure.__cause__ = error
        failure.corrupted = corrupted
        if corrupted or self.on_error == "raise":
            raise failure from error
        self.failures.append(failure)
        self._left_out.add(transformer)
        self.observers.failed(transformer, graph, reason)


class CloneWorkspace(Workspace):
    """A clone that a raw transformer works on: it has no editor, but shares the run's options."""

    def __init__(self, model: ir.Model, workspace: Workspace) -> None:
        self.model = model
        self.options = workspace.options
        self.allowance = workspace.allowance
        self.offered = workspace.offered
        self.too_large = workspace.too_large
        self.left_out = workspace.left_out
        self.edit = workspace.edit


class RuleBatch:
    """Transformers that run together: a run of adjacent rules, or one other transformer."""

    def __init__(self, transformers: Sequence[GraphTransformer]) -> None:
        self.transformers = tuple(transformers)
        self.is_rules = isinstance(transformers[0], RewriteRule)
        self.apply_once = transformers[0].apply_once
        self.raw = transformers[0].bypasses_editor
        self.alike = not self.is_rules and transformers[0].level_independent
        self.closes = self.is_rules or self.alike
        self.roots = frozenset(
            itertools.chain.from_iterable(t.roots for t in transformers if isinstance(t, RewriteRule))
        )
        self.seen: dict[ir.Graph, tuple[object, int]] = {}
        self._changes: dict[RuleDriver, Changes] = {}
        self._drivers: dict[tuple[GraphTransformer, ...], RuleDriver] = {}

    def driver(self, active: Sequence[GraphTransformer]) -> RuleDriver:
        """The driver of those rules that are active."""
        key = tuple(active)
        if key not in self._drivers:
            self._drivers[key] = RuleDriver([t for t in active if isinstance(t, RewriteRule)])
        return self._drivers[key]

    def changes(self, driver: RuleDriver, edit: Editor) -> Changes:
        """What a driver has not seen yet of what an editor has changed."""
        found = self._changes.get(driver)
        if found is None or found.edit is not edit:
            found = self._changes[driver] = Changes(driver, edit)
        return found

    def failed(self, graph: ir.Graph) -> None:
        """A run on a graph has been taken back."""
        for changes in self._changes.values():
            changes.failed(graph)


def in_slots(transformers: Iterable[GraphTransformer]) -> list[list[GraphTransformer]]:
    """Group adjacent rules; a rule that applies once closes a slot, as any other transformer does."""
    slots: list[list[GraphTransformer]] = []
    for transformer in transformers:
        joins = (
            slots
            and isinstance(transformer, RewriteRule)
            and isinstance(slots[-1][-1], RewriteRule)
            and not transformer.apply_once
            and not slots[-1][-1].apply_once
        )
        if joins:
            slots[-1].append(transformer)
        else:
            slots.append([transformer])
    return slots


def in_order(transformers: Sequence[GraphTransformer]) -> list[GraphTransformer]:
    """Sort transformers by ``after``, then name; rules stay together where ``after`` leaves the choice.

    Raises:
        RegistrationError: If the ``after`` lists form a circle; names it.
    """
    by_key = {name_key(t.name): t for t in transformers}
    waits = {key: {name_key(name) for name in t.after} & by_key.keys() for key, t in by_key.items()}
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


def _blamed(error: Exception, active: Sequence[GraphTransformer]) -> tuple[GraphTransformer, Exception]:
    """Who failed, and how."""
    if isinstance(error, RuleFailure):
        return error.rule, error.cause
    if isinstance(error, InvalidGraph):
        return next((one for one in active if one.name == error.transformer), active[0]), error
    return active[0], error


def _label(graph: ir.Graph) -> str:
    """The graph for people; by its own name where the graph around it is corrupted."""
    try:
        return scope.label(graph)
    except Exception:  # whatever a broken graph answers
        return graph.name or "?"


def _level(level: TransformerLevel | int) -> TransformerLevel:
    """A level of transformers.

    Raises:
        UsageError: If there is no such level.
    """
    try:
        return TransformerLevel(level)
    except ValueError:
        raise UsageError(f"transformers run at levels 1 to 4; there is no level {level!r}") from None


def _where(transformer: GraphTransformer) -> str:
    return f"{type(transformer).__module__}.{type(transformer).__qualname__}"
