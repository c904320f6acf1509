"""The levels applied to the original, and applied again without the transformers that corrupt or break the model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken, DeadlineForced, DeadlinePassed
from ortopt.errors import InvalidModelError, OptimizationCancelled, TransformerError
from ortopt.framework.workspace import RunState
from ortopt.graph import scope
from ortopt.instrumentation.check_each import CheckEach, is_sound
from ortopt.manager import GraphTransformerManager
from ortopt.observers import Observer, RetryRequested
from ortopt.optimization.growth_record import record_growth
from ortopt.optimization.pipeline import Pipeline
from ortopt.optimization.replay import CompletedRuns, NumberedRewrite, Replay, RewriteKey, StopPointReached
from ortopt.optimization.watchdog import Watchdog
from ortopt.partition import groups


class Transformation:
    """A model on its way through the levels: as often as it takes until nothing breaks it.

    Args:
        pipeline: The pipeline.
        observers: Observers of its runs.
        token: Cancellation token; the original is loaded without its deadline.
        left_out: Names of transformers that are left out.
        without: Keys of single rewrites that are left out.

    Attributes:
        left_out: Names of transformers that are left out.
        without: Keys of single rewrites that are left out.
        failures: Errors of transformers that were left out for corrupting the graph.
        observers: Observers of the latest run.
        state: What the latest run has kept beside the model.
        stopped: Whether the deadline ended the latest run.
        last: The last rewrite of a replay.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        observers: Iterable[Observer],
        token: CancellationToken,
        left_out: Collection[str] = (),
        without: Collection[RewriteKey] = (),
    ) -> None:
        self.pipeline = pipeline
        self.left_out = set(left_out)
        self.without = set(without)
        self.failures: list[TransformerError] = []
        self.last: NumberedRewrite | None = None
        self._given = tuple(observers)
        self._token = token
        self._begin(pipeline.load(token.with_timeout(None)), self._given)

    def _begin(self, model: ir.Model, observers: tuple[Observer, ...]) -> None:
        """Begin a run of all levels; nothing has been done yet."""
        self._content = model
        self._roll_back: Callable[[], ir.Model] | None = None  # to a valid model with what had been completed
        self._group_fault: str | None = None  # what was wrong with the model's groups before the first transformer
        self._completed = CompletedRuns()
        self.observers = observers
        self._manager: GraphTransformerManager | None = None
        self.state = RunState()
        self.stopped = False

    @property
    def model(self) -> ir.Model:
        """The model that has been reached; where a run was cancelled, with exactly what it had completed."""
        if self._roll_back is not None:
            roll_back, self._roll_back = self._roll_back, None
            self._content = roll_back()
        return self._content

    @property
    def manager(self) -> GraphTransformerManager:
        """The manager of the latest run, with its history and failures."""
        if self._manager is None:
            self._manager = self.pipeline.manager((*self.observers, self._completed), self.left_out)
        return self._manager

    def execute(self, token: CancellationToken) -> None:
        """Apply the levels; where the model comes out corrupted or broken, find the culprit and run without it.

        Args:
            token: Cancellation token.

        Raises:
            TransformerError: If a transformer raised, with `Options.strict`.
            InvalidModelError: If the model is broken, and no transformer is the culprit.
            OptimizationCancelled: If it was stopped; `model` is valid and holds what was completed.
        """
        observers = self._given
        while True:
            self._begin(self.model, (*observers, Replay(without=self.without)) if self.without else observers)
            try:
                self._run(token)
            except TransformerError as error:
                if not error.corrupted:
                    raise
                self.restart()
                if isinstance(error.__cause__, RetryRequested):  # one of several rules is the culprit
                    observers = (*_without_checks(observers), CheckEach(closely=True, token=token))
                    continue
                if self.pipeline.options.strict:
                    raise
                self.left_out.add(error.transformer)
                self.failures.append(error)
            except InvalidModelError:
                self.restart()
                if any(isinstance(observer, CheckEach) for observer in observers) or self.pipeline.options.level == 0:
                    raise
                observers = (*observers, CheckEach(token=token))
            else:
                return

    def _run(self, token: CancellationToken) -> None:
        """Apply the levels once, as far as time allows."""
        watchdog = self._watchdog(token)
        corrupted = False
        try:
            self._apply(token, watchdog)
        except DeadlinePassed as passed:
            self.stopped = True
            corrupted = watchdog.fired and (isinstance(passed, DeadlineForced) or not is_sound(self.model))
        except Exception as error:
            if not watchdog.fired or isinstance(error, MemoryError):
                raise
            corrupted = True  # the interrupt came in mid-edit, and the roll-back failed
        if corrupted:
            self._take(self.replay(runs=self._completed.count))
            self.stopped = True
        self._finish(token.with_timeout(None))

    def _finish(self, token: CancellationToken) -> None:
        self.pipeline.finish(self.model, token)
        fault = groups.fault_of(self.model, token)
        if fault is not None and fault != self._group_fault:
            raise InvalidModelError(fault)

    def _watchdog(self, token: CancellationToken) -> Watchdog:
        return Watchdog(token if self.pipeline.options.enforce_timeout else NEVER)

    def _apply(self, token: CancellationToken, watchdog: Watchdog) -> None:
        """Apply the levels in place; where that is stopped, what had been completed stays."""
        try:  # without a deadline: there is no model to return before
            self._prepare(token.with_timeout(None))
            if self.pipeline.options.level == 0:  # it has no transformers
                return
            workspace = self.pipeline.workspace(self._content, self.state, token.with_timeout(None))
        except OptimizationCancelled:
            self._roll_back = lambda: self.replay(limit=0).model
            raise
        try:
            with watchdog:
                self.pipeline.apply(self.manager, workspace, token)
            record_growth(workspace)
        except StopPointReached:
            self.state.offered -= 1
            workspace.roll_back_to_mark()
        except DeadlinePassed:
            workspace.roll_back_to_mark()
            raise
        except OptimizationCancelled:
            self._roll_back = workspace.roll_back_to_mark
            raise

    def _prepare(self, token: CancellationToken) -> None:
        """What precedes the first transformer."""
        options = self.pipeline.options
        self.manager.observers.loaded(self._content)
        if options.opset is not None:
            from ortopt.analysis import releases, targets
            from ortopt.opset_conversion import conversion

            declared = targets.of(options.target)
            newest = releases.newest_opset(releases.least(options))
            if declared is not None and declared.opset is not None:
                newest = min(newest, declared.opset)
            version = newest if options.opset == "latest" else options.opset
            self._content = conversion.convert(self._content, version, token)
        token.check()
        if options.level == 0:
            scope.attach(self._content, options, token)  # a report names graphs by where they stand
            return
        self.manager.begin(self._content)
        self._group_fault = groups.fault_of(self._content, token)

    def restart(self) -> None:
        """Begin again with the original.

        Raises:
            OptimizationCancelled: If it was stopped; `model` is the original.
        """
        try:
            self._begin(self.pipeline.load(self._token.with_timeout(None)), self.observers)
        except OptimizationCancelled:
            self._begin(self._content, self.observers)  # that may be corrupted
            self._roll_back = lambda: self.replay(limit=0).model
            raise

    def go_back(self, limit: int) -> None:
        """Go back to the model after a number of rewrites.

        Args:
            limit: Number of the last rewrite that is made.
        """
        self._take(self.replay(limit=limit))

    def _take(self, other: Transformation) -> None:
        """Hold what another one has reached."""
        self._content, self._roll_back = other.model, None
        self._manager, self.state, self.stopped = other.manager, other.state, other.stopped

    def replay(
        self,
        *,
        limit: int | None = None,
        runs: int | None = None,
        left_out: Collection[str] | None = None,
        besides: Iterable[Observer] = (),
        token: CancellationToken | None = None,
    ) -> Transformation:
        """Load the original again and repeat what the latest run has done, up to a point.

        Args:
            limit: Number of the last rewrite that is made.
            runs: Number of times that a transformer, or a sweep of rules, may run to its end.
            left_out: Names of transformers that do not run; those that are left out of this one if None.
            besides: Observers beside those of the run that decide, which are asked again.
            token: Cancellation token.

        Returns:
            The replay; its model is valid.

        Raises:
            OptimizationCancelled: If it was stopped, by its deadline too.
        """
        token = token or CancellationToken()
        replay = Replay(limit, 0 if limit == 0 else runs, self.without)
        deciding = (o for o in (*self.observers, *besides) if o.decides and type(o) is not Replay)
        left_out = self.left_out if left_out is None else left_out
        again = Transformation(self.pipeline, (*deciding, replay), token, left_out)
        again._apply(token, again._watchdog(token))
        again._finish(token.with_timeout(None))
        again.last = replay.last
        return again


def _without_checks(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    return tuple(observer for observer in observers if not isinstance(observer, CheckEach))
