"""GraphTransformerManager: transformers by level, applied in steps until nothing changes."""

from __future__ import annotations

import dataclasses
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
from ortopt.graph.onnx_ir_internals import clone
from ortopt.instrumentation.check_each import invalidity
from ortopt.observers import HistoryEntry, InvalidGraph, Observer, Observers, RetryRequested
from ortopt.option_kinds import whole_number
from ortopt.options import DEFAULT_STEPS, Options, TransformerLevel
from ortopt.rule import RewriteRule, RuleFailure, check_rule
from ortopt.rule_batch import Clock, RuleBatch, in_batches, in_order
from ortopt.transformer import GraphTransformer, check_contract, check_instance, name_key
from ortopt.workspace import CloneWorkspace, Workspace


class GraphTransformerManager:
    """Applies the transformers of a level in steps until nothing changes.

    Args:
        steps: The bound on the steps of a level.
        options: Options of the run, as transformers see them; the defaults if None.
        observers: Observers of the run.
        on_error: What happens where a transformer raises: ``"raise"`` ends the run with a `TransformerError`,
            ``"skip"`` leaves it out and continues. In both cases the model is as it was before that transformer; where
            that is not possible (`TransformerError.corrupted`), the error is raised in both cases.
        keep_order: Whether transformers run as they were registered, instead of by ``after`` and name.

    Attributes:
        failures: The transformers left out, with their errors.
        bound_reached: The levels that ended at a limit of steps or rewrites, in the last call of `apply_transformers`.
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
        self._unchanged_at: dict[GraphTransformer, dict[ir.Graph, Clock]] = {}  # of those that no level matters to
        self._batches: dict[TransformerLevel, tuple[Workspace, tuple[GraphTransformer, ...], list[RuleBatch]]] = {}
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
        """Register a transformer.

        Args:
            transformer: An instance.
            level: The level at which it runs; None is every level that its class declares.

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
        for level_ in levels:
            other = self._by_level[level_].get(key)
            if other is not None:
                raise RegistrationError(
                    f"level {level_.value} already has a transformer named {other.name} ({_where(other)});"
                    f" {_where(transformer)} cannot have it too"
                )
        for level_ in levels:
            self._by_level[level_][key] = transformer

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

    @np.errstate(all="ignore")  # infinities and NaN in constants are for transformers to refuse, not for numpy to warn
    def run(
        self,
        workspace: Workspace,
        level: TransformerLevel,
        cancellation: CancellationToken,
        *,
        cleanup: bool = False,
    ) -> bool:
        """Apply a level's transformers in a workspace, or only those that run in a cleanup (see `apply_transformers`).

        Raises:
            TransformerError: As there.
            OptimizationCancelled: If it was stopped; the caller calls `Workspace.roll_back_to_mark`.
        """
        self._modified = False
        self._endless = ""
        if not cleanup:  # the limit of an earlier round counts no more once all of the level runs again
            self.bound_reached = [reached for reached in self.bound_reached if reached is not level]
        batches = self._batches_of(workspace, level)
        for number in range(1, self._steps + 1):
            step = _Step(workspace, level, number, cancellation)
            changed = False
            for batch in batches:
                if (batch.apply_once and number > 1) or (cleanup and not batch.runs_in_cleanup):
                    continue
                changed |= self._run_batch(batch, step)
            self._modified |= changed
            if self._endless:
                self.warn_limit(level, f"level {level.value} stopped in step {number}: {self._endless}")
                return self._modified
            if not changed:
                return self._modified
        if any(not batch.apply_once for batch in batches):
            self.warn_limit(
                level, f"level {level.value} still changed the graph in step {self._steps}, the last one allowed"
            )
        return self._modified

    def _batches_of(self, workspace: Workspace, level: TransformerLevel) -> list[RuleBatch]:
        """The batches of a level; those of the last run on this workspace, which know what they have seen."""
        registered = tuple(self._by_level[level].values())
        kept = self._batches.get(level)
        if kept is None or kept[0] is not workspace or kept[1] != registered:
            kept = workspace, registered, in_batches(self.transformers(level))
            self._batches[level] = kept
        return kept[2]

    def warn_limit(self, level: TransformerLevel, message: str) -> None:
        """Warn that a level has ended at a limit, before its fixed point."""
        self.bound_reached.append(level)
        warnings.warn(message, RuntimeWarning, stacklevel=3)

    def _run_batch(self, batch: RuleBatch, step: _Step) -> bool:
        if batch.bypasses_editor:
            return self._run_on_clone(batch, step)
        changed = False
        workspace = step.workspace
        for graph in workspace.edit.index.graphs():
            unchanged_at = (
                self._unchanged_at.setdefault(batch.transformers[0], {})
                if batch.level_independent
                else batch.unchanged_at
            )
            if unchanged_at.get(graph) == (workspace.edit, workspace.edit.clock):
                continue
            if graph not in workspace.edit.index:
                continue  # a transformer has removed it meanwhile
            step.cancellation.check()
            before = workspace.edit.version
            while self._run_on(batch, graph, step):
                pass
            if workspace.edit.version == before:
                unchanged_at[graph] = (workspace.edit, workspace.edit.clock)
            else:
                changed = True
                self._modified = True
                workspace.reinfer(step.cancellation)
        return changed

    def _run_on(self, batch: RuleBatch, graph: ir.Graph, step: _Step) -> bool:
        """Run a batch on a graph; whether it must run again, because one of its transformers had to be left out."""
        workspace, edit = step.workspace, step.workspace.edit
        active = [t for t in batch.transformers if t not in self._left_out and self.observers.should_run(t, graph)]
        if not active or (batch.is_rules and not edit.index.has_any(graph, batch.roots)):
            return False
        version, offered, nodes_before = edit.version, workspace.offered, len(graph)
        contexts = {t: step.context(t, self.observers) for t in active}
        for transformer in active:
            self.observers.before(transformer, step.level.value, step.number, graph)
        started = time.perf_counter()
        try:
            entries = (self._sweep if batch.is_rules else self._apply)(batch, contexts, graph, step)
            edit.restore_order(step.cancellation)
            edit.drop_freed_initializers(step.cancellation)
            self.observers.inspect(workspace.model, edit.version != version)
        except OptimizationCancelled:
            workspace.stop_at(max((context._mark for context in contexts.values()), default=version))
            raise
        except Exception as error:
            culprit, cause = _blamed(error, active)
            restored = self._roll_back(workspace, version) and not isinstance(cause, DirectEdit)
            if isinstance(cause, MemoryError):  # not the transformer's fault, and the next one would fail too
                raise cause from None
            workspace.offered = offered
            batch.failed(graph)
            return self._leave_out(culprit, cause, batch, graph, step, restored=restored)
        seconds = time.perf_counter() - started
        for entry in entries:
            self._record(
                dataclasses.replace(
                    entry,
                    seconds=entry.seconds if batch.is_rules else seconds,
                    nodes_before=nodes_before,
                    nodes_after=len(graph),
                ),
                graph,
            )
        return False

    def _record(self, entry: HistoryEntry, graph: ir.Graph) -> None:
        self._history.append(entry)
        self.observers.after(entry, graph)

    def _leave_out(
        self,
        culprit: GraphTransformer,
        cause: Exception,
        batch: RuleBatch,
        graph: ir.Graph,
        step: _Step,
        *,
        restored: bool,
    ) -> bool:
        """Leave out a transformer that failed; whether its batch must run again."""
        if isinstance(cause, RetryRequested) and restored:
            return True
        if restored and (invalid := invalidity(step.workspace.model)) is not None:
            raise InvalidModelError(f"{culprit.name} found the model broken: {invalid}") from cause
        self._fail(culprit, cause, graph, step, corrupted=not restored)
        return batch.is_rules

    def _roll_back(self, workspace: Workspace, version: int) -> bool:
        """Roll the model back; whether it is as it was, as far as observers can tell."""
        try:
            workspace.edit.rollback(version)
            self.observers.inspect(workspace.model, False)
        except OptimizationCancelled:
            raise
        except Exception:  # edits past the editor can make a roll-back fail in any way
            return False
        return True

    def _sweep(
        self, batch: RuleBatch, contexts: dict[GraphTransformer, Context], graph: ir.Graph, step: _Step
    ) -> list[HistoryEntry]:
        driver = batch.driver(contexts)
        changes = batch.changes(driver, step.workspace.edit)
        outcome = driver.run(graph, contexts, changes.near(graph, step.cancellation))  # type: ignore[arg-type]
        changes.ran(graph, step.cancellation)
        label = scope.label(graph)
        if outcome.bounded:
            most = max(outcome.statistics, key=lambda name: outcome.statistics[name].rewrites)
            count = sum(figures.rewrites for figures in outcome.statistics.values())
            self._endless = f"rules made {count} rewrites on {label} and were not done, {most} the most of them"
        return [
            step.entry(
                name,
                label,
                modified=figures.rewrites > 0,
                seconds=figures.seconds,
                rewrites=figures.rewrites,
                visits=figures.visits,
            )
            for name, figures in outcome.statistics.items()
            if figures.visits
        ]

    def _apply(
        self, batch: RuleBatch, contexts: dict[GraphTransformer, Context], graph: ir.Graph, step: _Step
    ) -> list[HistoryEntry]:
        ((transformer, context),) = contexts.items()
        edit = context.edit
        edit.author = transformer.name
        version = edit.version
        entry = step.entry(transformer.name, scope.label(graph))
        if transformer.offers_rewrites or context.offer((), transformer.formula):
            returned = transformer.apply(graph, context)
            context._end()
            check_edits(transformer, edit, graph, returned=returned, logged=edit.version != version)
        modified = edit.version != version  # what it did counts, not what it returned
        return [dataclasses.replace(entry, modified=modified, rewrites=context._rewrites)]

    def _run_on_clone(self, batch: RuleBatch, step: _Step) -> bool:
        """Run a transformer that edits onnx-ir directly, on a clone that replaces the model if it succeeds."""
        (transformer,) = batch.transformers
        workspace, token = step.workspace, step.cancellation
        graph = workspace.model.graph
        if transformer in self._left_out or not self.observers.should_run(transformer, graph):
            return False
        if batch.unchanged_at.get(graph) == (workspace.edit, workspace.edit.clock):
            return False
        context = step.context(transformer, self.observers)
        if not context.offer((), transformer.formula):
            return False
        self.observers.before(transformer, step.level.value, step.number, graph)
        started, nodes_before = time.perf_counter(), len(graph)
        entry = step.entry(transformer.name, scope.label(graph))
        copy = clone(workspace.model, token)
        scope.attach(copy, workspace.options, token)
        on_clone = dataclasses.replace(step, workspace=CloneWorkspace(copy, workspace))
        try:
            modified = transformer.apply(copy.graph, on_clone.context(transformer, self.observers))
            self.observers.inspect(copy, modified)
        except (OptimizationCancelled, MemoryError):
            raise
        except Exception as error:
            self._fail(transformer, error, graph, step)
            return False
        if modified:
            workspace.swap_in(copy, token)
            self._modified = True
            context._complete((), ())
        else:
            batch.unchanged_at[graph] = (workspace.edit, workspace.edit.clock)
        self._record(
            dataclasses.replace(
                entry,
                modified=modified,
                seconds=time.perf_counter() - started,
                nodes_before=nodes_before,
                nodes_after=len(workspace.model.graph),
                rewrites=int(modified),
            ),
            workspace.model.graph,
        )
        return modified

    def _fail(
        self,
        transformer: GraphTransformer,
        error: Exception,
        graph: ir.Graph,
        step: _Step,
        *,
        corrupted: bool = False,
    ) -> None:
        if isinstance(error, InvalidGraph):
            reason = f"what it left is broken: {error}"
        elif isinstance(error, DirectEdit):
            reason = str(error)
        else:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        failure = TransformerError(transformer.name, step.level.value, step.number, _label(graph), reason)
        failure.__cause__ = error
        failure.corrupted = corrupted
        if corrupted or self.on_error == "raise":
            raise failure from error
        self.failures.append(failure)
        self._left_out.add(transformer)
        self.observers.failed(transformer, graph, reason)


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    """One step of a level.

    Attributes:
        workspace: The model, and what is kept about it.
        level: The level.
        number: From 1.
        cancellation: Cancellation token.
    """

    workspace: Workspace
    level: TransformerLevel
    number: int
    cancellation: CancellationToken

    def context(self, transformer: GraphTransformer, observers: Observers) -> Context:
        """A context for a transformer."""
        return Context(self.workspace, transformer, self.level, self.number, self.cancellation, observers)

    def entry(
        self,
        transformer: str,
        label: str,
        *,
        modified: bool = False,
        seconds: float = 0.0,
        rewrites: int = 0,
        visits: int = 0,
    ) -> HistoryEntry:
        """An entry of the history; how the graph's size changed is filled in later."""
        return HistoryEntry(
            self.level.value, self.number, transformer, label, modified, seconds, 0, 0, rewrites, visits
        )


def _blamed(error: Exception, active: Sequence[GraphTransformer]) -> tuple[GraphTransformer, Exception]:
    """The transformer that failed, and its error."""
    if isinstance(error, RuleFailure):
        return error.rule, error.cause
    if isinstance(error, InvalidGraph):
        return next((t for t in active if t.name == error.transformer), active[0]), error
    return active[0], error


def _label(graph: ir.Graph) -> str:
    """The graph's label; its own name where the graph around it is corrupted."""
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
