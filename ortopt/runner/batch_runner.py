"""`BatchRunner`: batches of transformers on the graphs of a model; what a transformer that fails did is rolled back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Literal

import onnx_ir as ir
from msgspec import Struct

from ortopt.cancellation import CancellationToken, DeadlineForced
from ortopt.context import Context
from ortopt.errors import InvalidModelError, OptimizationCancelled, TransformerError
from ortopt.framework.direct_edits import DirectEdit, Guard, check_edits, described, read_only_constants
from ortopt.framework.workspace import Misuse, ModelInRun, Workspace
from ortopt.graph import scope
from ortopt.graph.edit import Editor
from ortopt.instrumentation.check_each import invalidity
from ortopt.observers import HistoryEntry, InvalidGraph, Observers, RetryRequested
from ortopt.options import TransformerLevel
from ortopt.rule import RewriteRule, RuleFailure, RuleStatistics
from ortopt.runner.clone_run import CloneRun
from ortopt.runner.rule_batch import Clock, RuleBatch
from ortopt.transformer import GraphTransformer


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

    def context(
        self, transformer: GraphTransformer, observers: Observers, workspace: ModelInRun | None = None
    ) -> Context:
        """A context for a transformer, of the run's model or a clone of it."""
        return Context(workspace or self.workspace, transformer, self.level, self.number, self.cancellation, observers)


class _GraphRun(Struct):
    """A run of a batch on a graph.

    Attributes:
        contexts: The contexts of its transformers.
        figures: What each of them has done.
        version: The editor's version when it began.
        offered: Number of rewrites that had been offered.
        nodes_before: The graph's nodes when it began.
        started: When it began.
    """

    contexts: dict[GraphTransformer, Context]
    figures: dict[str, RuleStatistics]
    version: int
    offered: int
    nodes_before: int
    started: float

    def entries(self, step: Step, graph: ir.Graph, version: int, nodes_after: int) -> list[HistoryEntry]:
        """What goes into the history: of rules, those that were offered a node.

        Args:
            step: The step.
            graph: The graph.
            version: The editor's version up to which it counts.
            nodes_after: The graph's nodes in that version.
        """
        seconds, label = time.perf_counter() - self.started, _label(graph)
        entries = []
        for transformer, context in self.contexts.items():
            figures, rewrites, modified = self.figures[transformer.name], context._rewrites, version != self.version
            if isinstance(transformer, RewriteRule):
                if not (figures.visits or rewrites):
                    continue
                seconds, modified = figures.seconds, rewrites > 0
            entries.append(
                HistoryEntry(
                    step.level.value, step.number, transformer.name, label, modified,
                    seconds, self.nodes_before, nodes_after, rewrites, figures.visits, context._growth,
                )
            )  # fmt: skip
        return entries


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

    def forget_failures(self) -> None:
        """Let transformers that have failed on one model run on the next."""
        self._left_out.clear()
        self._unchanged_at.clear()

    def begin(self, transformers: Mapping[GraphTransformer, TransformerLevel], graph: ir.Graph) -> None:
        """Tell transformers that a run begins; one that raises is left out, or ends the run, as anywhere else.

        Args:
            transformers: The transformers, with the levels at which they run first.
            graph: The main graph.
        """
        for transformer, level in transformers.items():
            try:
                transformer.begin()
            except (OptimizationCancelled, MemoryError):
                raise
            except Exception as error:
                self._fail(transformer, error, graph, level, 1)

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
        model, token = step.workspace.model, step.cancellation
        with read_only_constants(model, token) if batch.strangers else nullcontext():
            return self._run_on_graphs(batch, step)

    def _run_on_graphs(self, batch: RuleBatch, step: Step) -> bool:
        """Run a batch on every graph on which something has changed; whether anything changed."""
        changed = False
        workspace, guard = step.workspace, Guard(step.workspace.edit)
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
            while self._run_on(batch, graph, step, guard):
                pass
            if workspace.edit.version == before:
                unchanged_at[graph] = (workspace.edit, workspace.edit.clock)
            else:
                changed = True
                self.modified = True
                workspace.reinfer(step.cancellation)
        self._check_guarded(guard, workspace.model.graph, step)
        return changed

    def _check_guarded(self, guard: Guard, graph: ir.Graph, step: Step) -> None:
        """Fail where a transformer has edited past the editor, and no glance has shown it."""
        if guard.shows_direct_edits():
            culprit, cause = guard.blamed()
            self._fail(culprit, cause, graph, step.level, step.number, corrupted=True)

    def _run_on(self, batch: RuleBatch, graph: ir.Graph, step: Step, guard: Guard) -> bool:
        """Run a batch on a graph; whether it must run again, because one of its transformers had to be left out."""
        workspace, edit = step.workspace, step.workspace.edit
        active = self._active(batch, graph, workspace) if batch.has_nodes(graph, edit) else []
        if not active:
            return False
        strangers = [t for t in batch.strangers if t in active and _may_run(t, edit)]
        guard.begin(strangers, step.cancellation)
        run = _GraphRun(
            {t: step.context(t, self._observers) for t in active},
            {t.name: RuleStatistics() for t in active},
            edit.version,
            workspace.state.offered,
            len(graph),
            0.0,
        )
        for transformer in active:
            self._observers.before(transformer, step.level.value, step.number, graph)
        run.started = time.perf_counter()
        try:
            (self._sweep if batch.is_rules else self._apply)(batch, run, graph, step)
            edit.restore_order(step.cancellation)
            edit.drop_freed_initializers(step.cancellation)
            self._observers.inspect(workspace.model, edit.version != run.version)
        except OptimizationCancelled as stopped:
            self._stop(run, guard, graph, step, forced=isinstance(stopped, DeadlineForced))
            raise
        except Exception as error:
            culprit, cause = _blamed(error, active)
            restored = self._roll_back(workspace, run.version) and not isinstance(cause, DirectEdit)
            if isinstance(cause, MemoryError):  # not the transformer's fault, and the next one would fail too
                raise cause from None
            if not isinstance(cause, DirectEdit) and not guard.is_restored():
                restored = False
                culprit, cause = guard.blamed(culprit, cause)
            workspace.state.offered = run.offered
            batch.failed(graph)
            return self._leave_out(culprit, cause, batch, graph, step, restored=restored)
        for entry in run.entries(step, graph, edit.version, len(graph)):
            self.history.append(entry)
            self._observers.after(entry, graph)
        return False

    def _active(self, batch: RuleBatch, graph: ir.Graph, workspace: Workspace) -> list[GraphTransformer]:
        """The transformers of a batch that run on a graph; those that cannot serve only say why, if anybody listens."""
        may_serve = batch.transformers if self._observers.listens_to_refusals else batch.serving(workspace.options)
        return [t for t in may_serve if t not in self._left_out and self._observers.should_run(t, graph)]

    def _stop(self, run: _GraphRun, guard: Guard, graph: ir.Graph, step: Step, *, forced: bool) -> None:
        """Say where a run that was stopped goes back to, and what it had completed by then."""
        edit = step.workspace.edit
        if not forced:  # in the middle of an edit, nobody knows
            self._check_guarded(guard, graph, step)
        mark = max((context._mark for context in run.contexts.values()), default=run.version)
        step.workspace.stop_at(mark)
        self.modified |= mark != run.version
        self.history += run.entries(step, graph, mark, edit.size_at(graph, mark))

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
        self._fail(culprit, cause, graph, step.level, step.number, corrupted=not restored)
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

    def _sweep(self, batch: RuleBatch, run: _GraphRun, graph: ir.Graph, step: Step) -> None:
        driver = batch.driver(run.contexts)
        changes = batch.changes(driver, step.workspace.edit)
        too_large = [node for _, node in step.workspace.state.too_large]
        near = changes.near(graph, too_large, step.cancellation)
        outcome = driver.run(graph, run.contexts, near, run.figures)  # type: ignore[arg-type]
        changes.ran(graph, step.cancellation)
        if outcome.bounded:
            most = max(outcome.statistics, key=lambda name: outcome.statistics[name].rewrites)
            count = sum(figures.rewrites for figures in outcome.statistics.values())
            label = scope.label(graph)
            self.endless = f"rules made {count} rewrites on {label} and were not done, {most} the most of them"

    def _apply(self, batch: RuleBatch, run: _GraphRun, graph: ir.Graph, step: Step) -> None:
        ((transformer, context),) = run.contexts.items()
        edit = context.edit
        edit.author, edit.accept, edit.offered = transformer.name, context._accept, ()
        try:
            if transformer.offers_rewrites or context.offer((), transformer.formula):
                returned = transformer.apply(graph, context)
                context._end()
                check_edits(edit, graph, returned=returned, logged=edit.version != run.version)
        finally:
            edit.accept = None

    def _run_on_clone(self, batch: RuleBatch, step: Step) -> bool:
        """Run a transformer that edits onnx-ir directly, on a clone that replaces the model if it succeeds."""
        (transformer,) = batch.transformers
        workspace = step.workspace
        graph, offered = workspace.model.graph, workspace.state.offered
        if transformer in self._left_out or not self._observers.should_run(transformer, graph):
            return False
        if batch.unchanged_at.get(graph) == (workspace.edit, workspace.edit.clock):
            return False
        context = step.context(transformer, self._observers)
        if not context.offer((), transformer.formula):
            return False
        self._observers.before(transformer, step.level.value, step.number, graph)
        started, nodes_before, label = time.perf_counter(), len(graph), scope.label(graph)
        run = CloneRun(workspace, transformer, step.cancellation)
        try:
            with read_only_constants(workspace.model, step.cancellation):  # the clone shares them
                modified = run.apply(step.context(transformer, self._observers, run.workspace))
            self._observers.inspect(run.workspace.model, modified)
            modified = modified and run.swap_in(context)
        except (OptimizationCancelled, MemoryError):
            raise
        except Exception as error:
            workspace.state.offered = offered
            self._fail(transformer, error, graph, step.level, step.number)
            return False
        if modified:
            self.modified = True
            context._complete((), ())
        else:
            batch.unchanged_at[graph] = (workspace.edit, workspace.edit.clock)
        after = workspace.model.graph
        entry = HistoryEntry(
            step.level.value, step.number, transformer.name, label, modified,
            time.perf_counter() - started, nodes_before, len(after), int(modified), growth=context._growth,
        )  # fmt: skip
        self.history.append(entry)
        self._observers.after(entry, after)
        return modified

    def _fail(
        self,
        transformer: GraphTransformer,
        error: Exception,
        graph: ir.Graph,
        level: TransformerLevel,
        step: int,
        *,
        corrupted: bool = False,
    ) -> None:
        if isinstance(error, InvalidGraph):
            reason = f"what it left is broken: {error}"
        elif isinstance(error, Misuse):
            reason = str(error)
        else:
            reason = described(error)
        failure = TransformerError(transformer.name, level.value, step, _label(graph), reason)
        failure.__cause__ = error
        failure.corrupted = corrupted
        if corrupted or self._on_error == "raise":
            raise failure from error
        self.failures.append(failure)
        self._left_out.add(transformer)
        self._observers.failed(transformer, graph, reason)


def _may_run(transformer: GraphTransformer, edit: Editor) -> bool:
    """Whether there is anything for a transformer: for a rule, a node of its ops."""
    return not isinstance(transformer, RewriteRule) or edit.index.has_any_anywhere(transformer.roots)


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
