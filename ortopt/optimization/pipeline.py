"""From a source to a transformed model: what a run does once, and what is replayed to find out what went wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis import dimensions
from ortopt.cancellation import NEVER, CancellationToken, DeadlineForced, DeadlinePassed
from ortopt.errors import OptimizationCancelled
from ortopt.graph import scope
from ortopt.instrumentation.check_each import is_sound
from ortopt.manager import GraphTransformerManager
from ortopt.observers import Observer, node_name
from ortopt.optimization.watchdog import Watchdog
from ortopt.options import Options, TransformerLevel
from ortopt.registry import Selected
from ortopt.serialization import shadowed_names, sparse_tensors
from ortopt.serialization.checks.structure import validate
from ortopt.serialization.load import Kept, load
from ortopt.system.garbage_collection import without_garbage_collection
from ortopt.transformer import GraphTransformer
from ortopt.workspace import Workspace

if TYPE_CHECKING:
    from ortopt.serialization.load import Source

MAX_ROUNDS = 10
"""How often levels run again while those above them change something."""

_ENDLESS = f"all {MAX_ROUNDS} rounds of levels changed the graph"

RewriteKey = tuple[object, ...]
"""What tells a rewrite from others, whatever its number: the transformer, the graph, and the nodes or the step."""


@dataclass(frozen=True, slots=True)
class NumberedRewrite:
    """A rewrite that a run has made.

    Attributes:
        number: Its number, from 1.
        transformer: Whose.
        level: At which level.
        step: In which step.
        graph: On which graph, for people.
        nodes: The nodes that went or changed, as (name or first result's name, op).
        why: What for.
    """

    number: int
    transformer: str
    level: int
    step: int
    graph: str
    nodes: tuple[tuple[str, str], ...]
    why: str

    @property
    def key(self) -> RewriteKey:
        """What tells it from others in a run that may number them otherwise."""
        where = self.nodes or (self.level, self.step)
        return self.transformer, self.graph, where


@dataclass(slots=True)
class Run:
    """One run of all levels.

    Attributes:
        content: The model, unless something remains to be done to it.
        manager: Who ran them; its history and failures.
        observers: Who watches.
        left_out: Transformers that do not run.
        runs: How many runs of transformers have come to their end.
        offered: How many rewrites were offered.
        too_large: See `Workspace`.
        stopped: Whether the deadline ended it.
        last: The last rewrite, where it was replayed.
        unsettled: Gives the model of a cancelled run, valid, with exactly the rewrites that had completed.
    """

    content: ir.Model
    manager: GraphTransformerManager
    observers: tuple[Observer, ...]
    left_out: frozenset[str]
    runs: _Runs
    offered: int = 0
    too_large: dict[tuple[str, ir.Node], int] = field(default_factory=dict)
    stopped: bool = False
    last: NumberedRewrite | None = None
    unsettled: Callable[[], ir.Model] | None = None

    @property
    def model(self) -> ir.Model:
        """The result."""
        if self.unsettled is not None:
            roll_back, self.unsettled = self.unsettled, None
            self.content = roll_back()
        return self.content


class Pipeline:
    """What is to be done, as often as it is wanted.

    Transformers are the same instances each time: an `apply` that does not do the same to the same graph each time
    cannot be replayed.

    Args:
        source: The model, as `load` takes it, but no stream.
        options: What is wanted.
        selected: Who runs.

    Attributes:
        original_bytes: The size of the original's constants: what the result may grow by depends on it.
    """

    def __init__(self, source: Source, options: Options, selected: Sequence[Selected]) -> None:
        self._source = Kept(source) if isinstance(source, str | os.PathLike) else source
        self.options = options
        self.selected = tuple(selected)
        self.original_bytes = 0

    def load(self, token: CancellationToken = NEVER) -> ir.Model:
        """The model as it came; a file that has gone, or another one in its place, makes no difference.

        Args:
            token: Cancellation token.
        """
        return load(self._source, token)

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

    def attempt(self, model: ir.Model, observers: Iterable[Observer] = (), left_out: Collection[str] = ()) -> Run:
        """Make a run ready.

        Args:
            model: As it came.
            observers: Who watches.
            left_out: Transformers that do not run.
        """
        runs = _Runs()
        watching = tuple(observers)
        return Run(model, self._manager((*watching, runs), left_out), watching, frozenset(left_out), runs)

    def run(self, attempt: Run, token: CancellationToken) -> None:
        """Apply the levels to an attempt's model, in place.

        Args:
            attempt: What has been made ready; what is reached is written into it.
            token: Cancellation token.

        Raises:
            TransformerError: If a transformer raised, with `Options.strict`, or tore the graph.
            InvalidModelError: If the result is broken.
            OptimizationCancelled: If it was stopped; the model is valid and holds what was completed.
        """
        watchdog = Watchdog(token)
        corrupted = False
        try:
            self._run(attempt, token, watchdog)
        except DeadlinePassed as passed:
            attempt.stopped = True
            corrupted = watchdog.fired and (isinstance(passed, DeadlineForced) or not is_sound(attempt.model))
        except Exception as error:
            if not watchdog.fired or isinstance(error, MemoryError):
                raise
            corrupted = True  # it was on its way out of a graph in mid-edit
        if corrupted:
            again = self.replay(attempt.observers, runs=attempt.runs.completed, left_out=attempt.left_out)
            attempt.content, attempt.manager, attempt.offered = again.model, again.manager, again.offered
            attempt.stopped = True
        shadowed_names.restore(attempt.model, token.with_timeout(None))
        validate(attempt.model, token=token.with_timeout(None))

    def _run(self, attempt: Run, token: CancellationToken, watchdog: Watchdog) -> None:
        with without_garbage_collection():
            try:  # a deadline that passes here finds what it needs, a model to return, only behind it
                workspace = self._prepare(attempt, token.with_timeout(None))
            except OptimizationCancelled:
                attempt.unsettled = lambda: self.replay(attempt.observers, limit=0, left_out=attempt.left_out).model
                raise
            if workspace is None:
                return
            try:
                with watchdog:
                    self._apply(attempt.manager, workspace, token)
            except StopPointReached:
                workspace.offered -= 1
                workspace.roll_back_to_mark()
            except DeadlinePassed:
                workspace.roll_back_to_mark()
                raise
            except OptimizationCancelled:
                attempt.unsettled = workspace.roll_back_to_mark
                raise
            finally:
                attempt.offered = workspace.offered
                attempt.too_large = workspace.too_large

    def _prepare(self, attempt: Run, token: CancellationToken) -> Workspace | None:
        """What precedes the first transformer; None if there is none."""
        options = self.options
        if options.dims:
            dimensions.override(attempt.model, options.dims)
        if options.opset is not None:
            from ortopt.opset_conversion import conversion

            attempt.content = conversion.convert(attempt.model, options.opset, token)
        token.check()
        if options.level == 0:
            scope.attach(attempt.model, options, token)  # a report names graphs by where they stand
            return None
        attempt.manager.observers.begin()
        allowance = semantics.growth_allowance(self.original_bytes, options)
        allowance -= sparse_tensors.make_dense(attempt.model, allowance, token)
        return Workspace(attempt.model, options, allowance, token)

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
        """Apply levels 1 to 3 until none finds anything in what the others have left.

        What the fusions of levels 2 and 3 leave is looked at by the rules of level 1, which cost as much as there is
        new, and by what runs at a higher level too; its other transformers, which walk whole graphs, run again where
        these have found something. What is applied once looks again at what came after it, too.
        """
        lowest = TransformerLevel.LEVEL1
        higher = [level for level in (TransformerLevel.LEVEL2, TransformerLevel.LEVEL3) if level <= self.options.level]
        manager.run(workspace, lowest, token)
        for _ in range(MAX_ROUNDS):
            opsets = dict(workspace.model.opset_imports)
            changed = [manager.run(workspace, level, token) for level in higher]
            raised = workspace.model.opset_imports != opsets  # then there are other forms for what was left as it is
            if manager.run(workspace, lowest, token, cleanup=True) or raised:
                manager.run(workspace, lowest, token)
            elif not any(changed):
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
        """Load the model again and do again what a run has done, up to a point.

        Args:
            observers: Those of the run; who decides in it is asked again.
            limit: The last rewrite that is made.
            runs: How many times a transformer, or a sweep of rules, may come to its end.
            left_out: Transformers that do not run.
            without: Rewrites that are not made.
            token: Cancellation token.

        Returns:
            What was reached. Its model is valid.

        Raises:
            OptimizationCancelled: If it was stopped, by its deadline too.
        """
        replay = Replay(limit, 0 if limit == 0 else runs, without)
        deciding = [observer for observer in observers if observer.decides and type(observer) is not Replay]
        token = token or CancellationToken()
        attempt = self.attempt(self.load(token.with_timeout(None)), (*deciding, replay), left_out)
        self._run(attempt, token, Watchdog(token))
        shadowed_names.restore(attempt.model, token.with_timeout(None))
        validate(attempt.model, token=token.with_timeout(None))
        attempt.last = replay.last
        return attempt


class StopPointReached(OptimizationCancelled):
    """A replay has come as far as it was to come."""


class Replay(Observer):
    """Stops a run at a point, leaves rewrites out, and knows the last that was made.

    Args:
        limit: The last rewrite that is made.
        runs: How many times a transformer, or a sweep of rules, may come to its end.
        without: Rewrites that are not made.
    """

    def __init__(self, limit: int | None = None, runs: int | None = None, without: Collection[RewriteKey] = ()) -> None:
        self._limit = limit
        self._runs = runs
        self._without = frozenset(without)
        self._where: dict[str, tuple[int, int, str]] = {}
        self.last: NumberedRewrite | None = None

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """Remember where it is, if it may run."""
        if self._runs is not None and self._runs <= 0:
            raise StopPointReached
        self._where[transformer.name] = (level, step, scope.label(graph))

    def inspect(self, model: ir.Model, changed: bool) -> None:
        """Count the runs."""
        if self._runs is not None:
            self._runs -= 1

    def offer(self, transformer: GraphTransformer, nodes: Sequence[ir.Node], number: int, why: str) -> bool:
        """Whether it is within the limit, and not left out."""
        if self._limit is not None and number > self._limit:
            raise StopPointReached
        names = tuple((node_name(node), node.op_type) for node in nodes)
        level, step, graph = self._where.get(transformer.name, (transformer.levels[0].value, 1, "main"))
        rewrite = NumberedRewrite(number, transformer.name, level, step, graph, names, why or transformer.formula)
        if rewrite.key in self._without:
            return False
        self.last = rewrite
        return True


class _Runs(Observer):
    """Counts how many times a transformer, or a sweep of rules, has come to its end."""

    decides = False

    def __init__(self) -> None:
        self.completed = 0

    def inspect(self, model: ir.Model, changed: bool) -> None:
        self.completed += 1


__all__ = ["NumberedRewrite", "Pipeline", "Replay", "RewriteKey", "Run", "StopPointReached"]
