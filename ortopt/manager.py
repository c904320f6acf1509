"""GraphTransformerManager: transformers by level, applied in steps until nothing changes."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable
from typing import Literal

import numpy as np
import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.discovery.pass_files import check
from ortopt.errors import OptimizationCancelled, RegistrationError, TransformerError, UsageError
from ortopt.framework.workspace import Workspace
from ortopt.graph import scope
from ortopt.observers import HistoryEntry, Observer, Observers
from ortopt.option_kinds import whole_number
from ortopt.options import DEFAULT_STEPS, Options, TransformerLevel
from ortopt.runner.batch_runner import BatchRunner, Step
from ortopt.runner.rule_batch import RuleBatch, in_batches, in_order
from ortopt.transformer import GraphTransformer, check_instance, name_key


class GraphTransformerManager:
    """Applies the transformers of a level in steps until nothing changes.

    Args:
        steps: The bound on the steps of a level that do not make the main graph smaller.
        options: Options of the run, as transformers see them; the defaults if None.
        observers: Observers of the run.
        on_error: What happens where a transformer raises: ``"raise"`` ends the run with a `TransformerError`,
            ``"skip"`` leaves it out for this model and continues. In both cases the model is as it was before that
            transformer; where that is not possible (`TransformerError.corrupted`), the error is raised in both cases.
        keep_order: Whether transformers run as they were registered, instead of by ``after`` and name.

    Raises:
        UsageError: If an argument makes no sense.

    Attributes:
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
        if on_error not in ("raise", "skip"):
            raise UsageError(f"on_error takes 'raise' or 'skip', not {on_error!r}")
        self.set_steps(steps)
        self.options = options or Options()
        self.observers = Observers(observers)
        self.keep_order = keep_order
        self.bound_reached: list[TransformerLevel] = []
        self._by_level: dict[TransformerLevel, dict[str, GraphTransformer]] = {level: {} for level in TransformerLevel}
        self._runner = BatchRunner(self.observers, on_error)
        self._latest: weakref.ref[ir.Model] | None = None
        self._batches: dict[TransformerLevel, tuple[Workspace, tuple[GraphTransformer, ...], list[RuleBatch]]] = {}

    # -- what ONNX Runtime's manager has ------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """The bound on the steps of a level that do not make the main graph smaller."""
        return self._steps

    def set_steps(self, steps: int) -> None:
        """Set the bound on the steps of a level that do not make the main graph smaller.

        Args:
            steps: At least 1.

        Raises:
            UsageError: If it is less, or no whole number.
        """
        self._steps = whole_number("steps", steps, least=1)

    @property
    def is_graph_modified(self) -> bool:
        """Whether the last call of `apply_transformers` changed anything."""
        return self._runner.modified

    def clear_graph_modified(self) -> None:
        """Forget that anything changed."""
        self._runner.modified = False

    @property
    def history(self) -> tuple[HistoryEntry, ...]:
        """What ran, in order, over all calls."""
        return tuple(self._runner.history)

    @property
    def failures(self) -> list[TransformerError]:
        """The errors of the transformers that were left out, over all calls; each is left out for one model only."""
        return self._runner.failures

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
        check(transformer)
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
        if self._latest is None or self._latest() is not model:
            self._latest = weakref.ref(model)
            self._runner.forget_failures()
        self._begin(model, (wanted,))
        workspace = Workspace(model, self.options, token=token)
        try:
            return self.run(workspace, wanted, token)
        except OptimizationCancelled:
            workspace.roll_back_to_mark()
            raise

    def begin(self, model: ir.Model) -> None:
        """Tell observers and transformers that a run of several levels begins (see `run`).

        Args:
            model: The model, as it was read.

        Raises:
            TransformerError: If a transformer raised, and errors are not skipped.
        """
        self.observers.begin()
        self._begin(model, TransformerLevel)

    def _begin(self, model: ir.Model, levels: Iterable[TransformerLevel]) -> None:
        first: dict[GraphTransformer, TransformerLevel] = {}
        for level in levels:
            for transformer in self._by_level[level].values():
                first.setdefault(transformer, level)
        self._runner.begin(first, model.graph)

    # -- the loop -----------------------------------------------------------------------------------------------------

    @np.errstate(all="ignore")  # infinities and NaN in constants are for transformers to refuse, not for numpy to warn
    def run(
        self,
        workspace: Workspace,
        level: TransformerLevel,
        cancellation: CancellationToken,
    ) -> bool:
        """Apply a level's transformers in a workspace (see `apply_transformers`).

        Raises:
            TransformerError: As there.
            OptimizationCancelled: If it was stopped; the caller calls `Workspace.roll_back_to_mark`.
        """
        self._runner.modified = False
        self._runner.endless = ""
        self.bound_reached = [reached for reached in self.bound_reached if reached is not level]  # of an earlier round
        batches = self._batches_of(workspace, level)
        left, number, graph = self._steps, 0, workspace.model.graph
        while left:
            number, size = number + 1, len(graph)
            step = Step(workspace, level, number, cancellation)
            changed = False
            for batch in batches:
                if batch.apply_once and number > 1:
                    continue
                with scope.stopped_by(workspace.model, cancellation):
                    changed |= self._runner.run(batch, step)
            self._runner.modified |= changed
            if self._runner.endless:
                self.warn_limit(level, f"level {level.value} stopped in step {number}: {self._runner.endless}")
                return self._runner.modified
            if not changed:
                return self._runner.modified
            left -= len(graph) >= size  # a graph that gets smaller each time comes to an end
        if any(not batch.apply_once for batch in batches):
            self.warn_limit(
                level, f"level {level.value} still changed the graph in step {number}, the last one allowed"
            )
        return self._runner.modified

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
