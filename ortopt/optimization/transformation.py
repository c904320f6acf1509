"""The levels applied to the original, and applied again without the transformers that corrupt or break the model.

Interrupts a transformer that does not return by the deadline: one that loops forever checks no token.

A second thread waits for the deadline, looks at the frames of the run, and raises an exception in its thread while it
is in a transformer's own code: there nothing of the framework's is half changed. Where it stays inside the editor or
onnx-ir for long, it is interrupted there, and the graph is corrupted (`DeadlineForced`): the caller replays the run. A
call that does not return to Python cannot be interrupted. Since all of this reaches into a thread of the process,
`Options.enforce_timeout` asks for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from types import FrameType, TracebackType
from typing import Self

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken, DeadlineForced, DeadlinePassed
from ortopt.errors import InvalidModelError, OptimizationCancelled, TransformerError
from ortopt.framework.workspace import RunState
from ortopt.graph import scope
from ortopt.instrumentation.check_each import CheckEach, is_sound
from ortopt.manager import GraphTransformerManager
from ortopt.observers import Observer, RetryRequested
from ortopt.optimization.pipeline import Pipeline, record_growth
from ortopt.optimization.replay import CompletedRuns, NumberedRewrite, Replay, RewriteKey, StopPointReached
from ortopt.partition import groups
from ortopt.system.threads import BackgroundThread, Signal
from ortopt.transformer import PASSES_PACKAGE, GraphTransformer

GRACE = 0.2
"""Seconds after the deadline in which a run may end by itself."""

PATIENCE = 2.0
"""Seconds in which a safe moment is awaited."""

_PERIOD = 0.02
_DELIVERY = 0.2  # seconds in which an exception arrives, or has been swallowed


class Watchdog:
    """Interrupts the thread that enters it, if that has not left it by the deadline.

    Args:
        token: A token; without a deadline nothing happens.

    Attributes:
        fired: Whether it has interrupted the thread.
    """

    def __init__(self, token: CancellationToken) -> None:
        self._token = token
        self._over = Signal()
        self._target = threading.get_ident()
        self._thread: BackgroundThread | None = None
        self.fired = False

    def __enter__(self) -> Self:
        if self._token.deadline is not None:
            self._thread = BackgroundThread(self._wait, "ortopt-watchdog")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        while True:
            try:
                self._over.set()
                self._thread.join()
                break
            except DeadlinePassed:  # it arrives only now: the run has ended, or is ending already
                continue
        if self.fired:
            self._withdraw()

    def _wait(self) -> None:
        assert self._token.deadline is not None
        left = self._token.deadline + GRACE - time.monotonic()
        if self._over.wait(left):
            return
        end = time.monotonic() + PATIENCE
        while True:
            forced = time.monotonic() > end
            if (forced and _in_run(self._frame())) or _is_safe(self._frame()):
                self._raise(DeadlineForced if forced else DeadlinePassed)
                end = time.monotonic() + PATIENCE
                pause = _DELIVERY
            else:
                pause = _PERIOD
            if self._over.wait(pause):
                return

    def _frame(self) -> FrameType | None:
        return sys._current_frames().get(self._target)

    def _withdraw(self) -> None:
        """Get rid of an exception that has not arrived yet.

        Another one replaces it and is awaited: if it were withdrawn instead (by raising NULL), CPython would still
        assume a pending one and check at each call, and 3.11 never enters the next function that is traced or profiled.
        """
        with contextlib.suppress(DeadlinePassed):
            self._raise(DeadlinePassed)
            while True:  # it comes between two instructions
                time.sleep(0)

    def _raise(self, kind: type[DeadlinePassed]) -> None:
        self.fired = True
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._target), ctypes.py_object(kind))


def _transformer_of(frame: FrameType) -> GraphTransformer | None:
    """The transformer whose method a frame runs, if any."""
    code = frame.f_code
    own = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    return own if isinstance(own, GraphTransformer) else None


def _in_run(frame: FrameType | None) -> bool:
    """Whether a transformer runs."""
    while frame is not None:
        if _transformer_of(frame) is not None:
            return True
        frame = frame.f_back
    return False


def _is_safe(frame: FrameType | None) -> bool:
    """Whether a transformer runs that has not called the framework, or one that works on a clone."""
    inside = False
    while frame is not None:
        transformer = _transformer_of(frame)
        if transformer is not None and transformer.bypasses_editor:
            return True
        module = str(frame.f_globals.get("__name__", ""))
        framework = module.split(".", maxsplit=1)[0] in {"ortopt", "onnx_ir"} and not module.startswith(PASSES_PACKAGE)
        if transformer is not None and not framework and not inside:
            return True
        inside |= framework
        frame = frame.f_back
    return False


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
