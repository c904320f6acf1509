"""`BatchRunner`: batches of transformers on the graphs of a model; what a transformer that fails did is rolled back."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Literal

import onnx_ir as ir
from msgspec import Struct, structs

from ortopt.cancellation import CancellationToken
from ortopt.context import Context
from ortopt.direct_edits import DirectEdit, check_edits
from ortopt.errors import InvalidModelError, OptimizationCancelled, TransformerError
from ortopt.graph import scope
from ortopt.instrumentation.check_each import invalidity
from ortopt.observers import HistoryEntry, InvalidGraph, Observers, RetryRequested
from ortopt.onnx_ir_internals import clone
from ortopt.options import TransformerLevel
from ortopt.rule import RuleFailure
from ortopt.rule_batch import Clock, RuleBatch
from ortopt.transformer import GraphTransformer
from ortopt.workspace import CloneWorkspace, Workspace


class Step(Struct, frozen=True):
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


class BatchRunner:
    """Runs batches of transformers on the graphs of a model.

    Args:
        observers: Observers of the run.
        on_error: What happens where a transformer raises (see `ortopt.manager.GraphTransformerManager`).

    Attributes:
        history: What has run, in order.
        failures: The transformers left out, with their errors.
        modified: Whether anything has changed; the caller resets it.
        endless: Why rules have found no end; the caller resets it.
    """

    def __init__(self, observers: Observers, on_error: Literal["raise", "skip"]) -> None:
        self.history: list[HistoryEntry] = []
        self.failures: list[TransformerError] = []
        self.modified = False
        self.endless = ""
        self._observers = observers
        self._on_error = on_error
        self._left_out: set[GraphTransformer] = set()
        self._unchanged_at: dict[GraphTransformer, dict[ir.Graph, Clock]] = {}  # of those that are level-independent

    def run(self, batch: RuleBatch, step: Step) -> bool:
        """Run a batch on every graph on which something has changed since it found nothing to do.

        Args:
            batch: The batch.
            step: The step.

        Returns:
            Whether anything changed.

        Raises:
            TransformerError: If a transformer raised, and errors are not skipped, or it corrupted the graph.
            InvalidModelError: If a transformer found the model broken.
            OptimizationCancelled: If it was stopped; `Workspace.roll_back_to_mark` is left to the caller.
        """
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
                self.modified = True
                workspace.reinfer(step.cancellation)
        return changed

    def _run_on(self, batch: RuleBatch, graph: ir.Graph, step: Step) -> bool:
        """Run a batch on a graph; whether it must run again, because one of its transformers had to be left out."""
        workspace, edit = step.workspace, step.workspace.edit
        active = [t for t in batch.transformers if t not in self._left_out and self._observers.should_run(t, graph)]
        if not active or (batch.is_rules and not edit.index.has_any(graph, batch.roots)):
            return False
        version, offered, nodes_before = edit.version, workspace.offered, len(graph)
        contexts = {t: step.context(t, self._observers) for t in active}
        for transformer in active:
            self._observers.before(transformer, step.level.value, step.number, graph)
        started = time.perf_counter()
        try:
            entries = (self._sweep if batch.is_rules else self._apply)(batch, contexts, graph, step)
            edit.restore_order(step.cancellation)
            edit.drop_freed_initializers(step.cancellation)
            self._observers.inspect(workspace.model, edit.version != version)
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
            elapsed = entry.seconds if batch.is_rules else seconds
            self._record(_with_figures(entry, elapsed, nodes_before, len(graph)), graph)
        return False

    def _record(self, entry: HistoryEntry, graph: ir.Graph) -> None:
        self.history.append(entry)
        self._observers.after(entry, graph)

    def _leave_out(
        self,
        culprit: GraphTransformer,
        cause: Exception,
        batch: RuleBatch,
        graph: ir.Graph,
        step: Step,
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
            self._observers.inspect(workspace.model, False)
        except OptimizationCancelled:
            raise
        except Exception:  # edits past the editor can make a roll-back fail in any way
            return False
        return True

    def _sweep(
        self, batch: RuleBatch, contexts: dict[GraphTransformer, Context], graph: ir.Graph, step: Step
    ) -> list[HistoryEntry]:
        driver = batch.driver(contexts)
        changes = batch.changes(driver, step.workspace.edit)
        too_large = [node for _, node in step.workspace.too_large]
        near = changes.near(graph, too_large, step.cancellation)
        outcome = driver.run(graph, contexts, near)  # type: ignore[arg-type]
        changes.ran(graph, step.cancellation)
        label = scope.label(graph)
        if outcome.bounded:
            most = max(outcome.statistics, key=lambda name: outcome.statistics[name].rewrites)
            count = sum(figures.rewrites for figures in outcome.statistics.values())
            self.endless = f"rules made {count} rewrites on {label} and were not done, {most} the most of them"
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
        self, batch: RuleBatch, contexts: dict[GraphTransformer, Context], graph: ir.Graph, step: Step
    ) -> list[HistoryEntry]:
        ((transformer, context),) = contexts.items()
        edit = context.edit
        edit.author = transformer.name
        version = edit.version
        label = scope.label(graph)
        if transformer.offers_rewrites or context.offer((), transformer.formula):
            returned = transformer.apply(graph, context)
            context._end()
            check_edits(transformer, edit, graph, returned=returned, logged=edit.version != version)
        modified = edit.version != version  # what it did counts, not what it returned
        return [step.entry(transformer.name, label, modified=modified, rewrites=context._rewrites)]

    def _run_on_clone(self, batch: RuleBatch, step: Step) -> bool:
        """Run a transformer that edits onnx-ir directly, on a clone that replaces the model if it succeeds."""
        (transformer,) = batch.transformers
        workspace, token = step.workspace, step.cancellation
        graph = workspace.model.graph
        if transformer in self._left_out or not self._observers.should_run(transformer, graph):
            return False
        if batch.unchanged_at.get(graph) == (workspace.edit, workspace.edit.clock):
            return False
        context = step.context(transformer, self._observers)
        if not context.offer((), transformer.formula):
            return False
        self._observers.before(transformer, step.level.value, step.number, graph)
        started, nodes_before = time.perf_counter(), len(graph)
        entry = step.entry(transformer.name, scope.label(graph))
        copy = clone(workspace.model, token)
        scope.attach(copy, workspace.options, token)
        on_clone = structs.replace(step, workspace=CloneWorkspace(copy, workspace))
        try:
            modified = transformer.apply(copy.graph, on_clone.context(transformer, self._observers))
            self._observers.inspect(copy, modified)
        except (OptimizationCancelled, MemoryError):
            raise
        except Exception as error:
            self._fail(transformer, error, graph, step)
            return False
        if modified:
            workspace.swap_in(copy, token)
            self.modified = True
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
        step: Step,
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
        if corrupted or self._on_error == "raise":
            raise failure from error
        self.failures.append(failure)
        self._left_out.add(transformer)
        self._observers.failed(transformer, graph, reason)


def _with_figures(entry: HistoryEntry, seconds: float, nodes_before: int, nodes_after: int) -> HistoryEntry:
    """An entry with what is known after the run; `dataclasses.replace` would take as long as a small pass."""
    return HistoryEntry(
        entry.level, entry.step, entry.transformer, entry.graph, entry.modified,
        seconds, nodes_before, nodes_after, entry.rewrites, entry.visits,
    )  # fmt: skip


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


__all__ = ["BatchRunner", "Step"]
