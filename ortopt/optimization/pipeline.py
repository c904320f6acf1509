"""From a source to a transformed model: what a run executes once, and a search replays."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir
from msgspec import Struct, field

from ortopt.analysis import dimensions
from ortopt.analysis.costs import Cost
from ortopt.cancellation import NEVER, CancellationToken, DeadlineForced, DeadlinePassed
from ortopt.errors import InvalidModelError, OptimizationCancelled
from ortopt.graph import scope
from ortopt.instrumentation.check_each import is_sound
from ortopt.manager import GraphTransformerManager
from ortopt.observers import Observer
from ortopt.optimization.declared_shapes import declare
from ortopt.optimization.growth_record import allowed_growth, record_growth
from ortopt.optimization.replay import CompletedRuns, NumberedRewrite, Replay, RewriteKey, StopPointReached
from ortopt.optimization.watchdog import Watchdog
from ortopt.options import Numerics, Options, TransformerLevel
from ortopt.partition import groups
from ortopt.registry import Selected
from ortopt.serialization import load_time_names, shadowed_names, sparse_tensors
from ortopt.serialization.checks.structure import validate
from ortopt.serialization.load import Kept, load
from ortopt.workspace import Workspace

if TYPE_CHECKING:
    from ortopt.serialization.load import Source
    from ortopt.transformer import GraphTransformer

MAX_ROUNDS = 10
"""How often levels run again while those above them change something."""

_ENDLESS = f"all {MAX_ROUNDS} rounds of levels changed the graph"


class Run(Struct):
    """One run of all levels.

    Attributes:
        content: The model; where it has yet to be rolled back, `model` does so.
        manager: The manager, with its history and failures.
        observers: Observers of the run.
        left_out: Names of transformers that do not run.
        completed: Counter of completed runs of transformers.
        offered: Number of rewrites that were offered.
        too_large: See `RunState`.
        declined: See `RunState`.
        numerics: See `RunState`.
        stopped: Whether the deadline ended it.
        last: The last rewrite of a replay.
        roll_back: Restores the model of a cancelled run: valid, with exactly the rewrites that had completed.
        group_fault: What was wrong with the model's groups before the first transformer.
    """

    content: ir.Model
    manager: GraphTransformerManager
    observers: tuple[Observer, ...]
    left_out: frozenset[str]
    completed: CompletedRuns
    offered: int = 0
    too_large: dict[tuple[str, ir.Node], int] = field(default_factory=dict)
    declined: dict[tuple[str, ir.Node], Cost] = field(default_factory=dict)
    numerics: set[tuple[str, Numerics]] = field(default_factory=set)
    stopped: bool = False
    last: NumberedRewrite | None = None
    roll_back: Callable[[], ir.Model] | None = None
    group_fault: str | None = None

    @property
    def is_for_finite_numbers(self) -> bool:
        """Whether a NaN or an infinity may have spread to its neighbours in the result."""
        return any(numerics is Numerics.FINITE for _, numerics in self.numerics)

    def numerics_of(self, transformer: GraphTransformer) -> Numerics:
        """What a transformer may have done to numbers: that of a rule may be more for some matches."""
        rewrote_finite = (transformer.name, Numerics.FINITE) in self.numerics
        return Numerics.FINITE if rewrote_finite else transformer.numerics

    @property
    def model(self) -> ir.Model:
        """The result."""
        if self.roll_back is not None:
            roll_back, self.roll_back = self.roll_back, None
            self.content = roll_back()
        return self.content


class Pipeline:
    """Executes and replays runs of the same transformers, with the same options, on the same original.

    Transformers are the same instances each time: an `apply` that does not do the same to the same graph each time
    cannot be replayed.

    Args:
        source: The original, as `load` takes it, but no stream.
        options: Options of the run.
        selected: Transformers and their levels.

    Attributes:
        original_bytes: Bytes of the original's constants: the allowed growth depends on them.
        resized: The inputs of which a fixed size has changed; known once the original has been loaded.
    """

    def __init__(self, source: Source, options: Options, selected: Sequence[Selected]) -> None:
        self._source = Kept(source) if isinstance(source, str | os.PathLike) else source
        self.options = options
        self.selected = tuple(selected)
        self.original_bytes = 0
        self.resized: frozenset[str] = frozenset()

    def original(self, token: CancellationToken = NEVER) -> ir.Model:
        """Load the original as it is; that its file has been removed or replaced meanwhile makes no difference.

        Args:
            token: Cancellation token.
        """
        return load(self._source, token)

    def load(self, token: CancellationToken = NEVER) -> ir.Model:
        """Load the original, its inputs in the sizes that are asked for.

        Args:
            token: Cancellation token.

        Raises:
            UsageError: If it has no such inputs or dimensions, or the sizes contradict each other.
        """
        model = self.original(token)
        if self.options.dims or self.options.input_shapes:
            self.resized = dimensions.override(model, self.options.dims, self.options.input_shapes)
        dimensions.check_names(model, self.options.dim_hints)
        return model

    def _manager(self, observers: Iterable[Observer], left_out: Collection[str]) -> GraphTransformerManager:
        manager = GraphTransformerManager(
            self.options.steps,
            options=self.options,
            observers=observers,
            on_error="raise" if self.options.strict else "skip",
            keep_order=self.options.passes is not None,
        )
        for chosen in self.selected:
            for level in chosen.levels:
                if chosen.transformer.name not in left_out:
                    manager.register(chosen.transformer, level)
        return manager

    def new_run(self, model: ir.Model, observers: Iterable[Observer] = (), left_out: Collection[str] = ()) -> Run:
        """A run that has yet to be executed.

        Args:
            model: The original, loaded.
            observers: Observers of the run.
            left_out: Names of transformers that do not run.
        """
        completed = CompletedRuns()
        observers = tuple(observers)
        return Run(model, self._manager((*observers, completed), left_out), observers, frozenset(left_out), completed)

    def execute(self, run: Run, token: CancellationToken) -> None:
        """Apply the levels to a run's model, in place.

        Args:
            run: From `new_run`; it holds the results.
            token: Cancellation token.

        Raises:
            TransformerError: If a transformer raised, with `Options.strict`, or corrupted the graph.
            InvalidModelError: If the result is broken.
            OptimizationCancelled: If it was stopped; the model is valid and holds what was completed.
        """
        watchdog = self._watchdog(token)
        corrupted = False
        try:
            self._execute(run, token, watchdog)
        except DeadlinePassed as passed:
            run.stopped = True
            corrupted = watchdog.fired and (isinstance(passed, DeadlineForced) or not is_sound(run.model))
        except Exception as error:
            if not watchdog.fired or isinstance(error, MemoryError):
                raise
            corrupted = True  # the interrupt came in mid-edit, and the roll-back failed
        if corrupted:
            replayed = self.replay(run.observers, runs=run.completed.count, left_out=run.left_out)
            run.content, run.manager, run.offered = replayed.model, replayed.manager, replayed.offered
            run.numerics = replayed.numerics
            run.stopped = True
        self._close(run, token.with_timeout(None))

    def _close(self, run: Run, token: CancellationToken) -> None:
        """What follows the last transformer: names and declared shapes as they are written, and a check."""
        model = run.model
        declare(model, self.options, token)
        shadowed_names.restore(model, token)
        if self.options.level:
            load_time_names.avoid(model, token)
        validate(model, token=token)
        fault = groups.fault_of(model, token)
        if fault is not None and fault != run.group_fault:
            raise InvalidModelError(fault)

    def _watchdog(self, token: CancellationToken) -> Watchdog:
        return Watchdog(token if self.options.enforce_timeout else NEVER)

    def _execute(self, run: Run, token: CancellationToken, watchdog: Watchdog) -> None:
        try:  # without a deadline: there is no model to return before
            workspace = self._prepare(run, token.with_timeout(None))
        except OptimizationCancelled:
            run.roll_back = lambda: self.replay(run.observers, limit=0, left_out=run.left_out).model
            raise
        if workspace is None:
            return
        try:
            with watchdog:
                self._apply(run.manager, workspace, token)
            record_growth(workspace)
        except StopPointReached:
            workspace.state.offered -= 1
            workspace.roll_back_to_mark()
        except DeadlinePassed:
            workspace.roll_back_to_mark()
            raise
        except OptimizationCancelled:
            run.roll_back = workspace.roll_back_to_mark
            raise
        finally:
            run.offered = workspace.state.offered
            run.too_large = workspace.state.too_large
            run.declined = workspace.state.declined
            run.numerics = workspace.state.numerics

    def _prepare(self, run: Run, token: CancellationToken) -> Workspace | None:
        """What precedes the first transformer; None at level 0, which has none."""
        options = self.options
        run.manager.observers.loaded(run.model)
        if options.opset is not None:
            from ortopt.opset_conversion import conversion

            run.content = conversion.convert(run.model, options.opset, token)
        token.check()
        if options.level == 0:
            scope.attach(run.model, options, token)  # a report names graphs by where they stand
            return None
        run.manager.begin(run.model)
        run.group_fault = groups.fault_of(run.model, token)
        allowance = allowed_growth(run.model, self.original_bytes, options)
        allowance -= sparse_tensors.make_dense(run.model, allowance, token)
        return Workspace(run.model, options, allowance, token)

    def _apply(self, manager: GraphTransformerManager, workspace: Workspace, token: CancellationToken) -> None:
        """Apply the levels until they find nothing, even once all is inferred anew."""
        for _ in range(MAX_ROUNDS):
            self._apply_levels(manager, workspace, token)
            if not workspace.calls_are_outdated:
                return
            workspace.refresh(token)
        manager.warn_limit(
            TransformerLevel(self.options.level), f"{_ENDLESS}, functions and their calls in the last one too"
        )

    def _apply_levels(self, manager: GraphTransformerManager, workspace: Workspace, token: CancellationToken) -> None:
        top = self.options.level
        for _ in range(MAX_ROUNDS):
            self._apply_below_groups(manager, workspace, token)
            if top < TransformerLevel.LEVEL4 or not manager.run(workspace, TransformerLevel.LEVEL4, token):
                return
        manager.warn_limit(TransformerLevel.LEVEL4, f"{_ENDLESS}, level 4 in the last one too")

    def _apply_below_groups(
        self, manager: GraphTransformerManager, workspace: Workspace, token: CancellationToken
    ) -> None:
        """Apply levels 1 to 3 until none of them finds anything to do.

        Level 1 always runs again, so that what applies once a run of it sees what came later. That costs little: rules
        look near what has changed, other transformers at graphs in which something has.
        """
        lowest = TransformerLevel.LEVEL1
        higher = [level for level in (TransformerLevel.LEVEL2, TransformerLevel.LEVEL3) if level <= self.options.level]
        manager.run(workspace, lowest, token)
        for _ in range(MAX_ROUNDS):
            changed = [manager.run(workspace, level, token) for level in higher]
            if any(changed):
                manager.run(workspace, lowest, token)
            elif lowest in manager.bound_reached or not manager.run(workspace, lowest, token):
                return
        manager.warn_limit(
            (lowest, *higher)[-1], f"{_ENDLESS}, the levels up to {(lowest, *higher)[-1].value} in the last one too"
        )

    def replay(
        self,
        observers: Iterable[Observer],
        *,
        limit: int | None = None,
        runs: int | None = None,
        left_out: Collection[str] = (),
        without: Collection[RewriteKey] = (),
        token: CancellationToken | None = None,
    ) -> Run:
        """Load the original again and repeat what a run has done, up to a point.

        Args:
            observers: Those of the run; those that decide are asked again.
            limit: Number of the last rewrite that is made.
            runs: Number of times that a transformer, or a sweep of rules, may run to its end.
            left_out: Names of transformers that do not run.
            without: Keys of rewrites that are left out.
            token: Cancellation token.

        Returns:
            The run; its model is valid.

        Raises:
            OptimizationCancelled: If it was stopped, by its deadline too.
        """
        replay = Replay(limit, 0 if limit == 0 else runs, without)
        deciding = [observer for observer in observers if observer.decides and type(observer) is not Replay]
        token = token or CancellationToken()
        run = self.new_run(self.load(token.with_timeout(None)), (*deciding, replay), left_out)
        self._execute(run, token, self._watchdog(token))
        self._close(run, token.with_timeout(None))
        run.last = replay.last
        return run


__all__ = ["Pipeline", "Run"]
