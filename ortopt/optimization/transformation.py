"""The levels applied to the original, and applied again without the transformers that corrupt or break the model."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ortopt.cancellation import CancellationToken
from ortopt.errors import InvalidModelError, OptimizationCancelled, TransformerError
from ortopt.instrumentation.check_each import CheckEach
from ortopt.observers import Observer, RetryRequested
from ortopt.optimization.pipeline import Pipeline
from ortopt.optimization.replay import Replay, RewriteKey


class Transformation:
    """A model on its way through the levels.

    Args:
        pipeline: The pipeline.
        observers: Observers of its runs.
        token: Cancellation token; the original is loaded without its deadline.

    Attributes:
        run: The latest run.
        left_out: Names of transformers that are left out.
        without: Keys of single rewrites that are left out.
        failures: Errors of transformers that were left out for corrupting the graph.
    """

    def __init__(self, pipeline: Pipeline, observers: Iterable[Observer], token: CancellationToken) -> None:
        self.pipeline = pipeline
        self.observers = tuple(observers)
        self.left_out: set[str] = set()
        self.without: set[RewriteKey] = set()
        self.failures: list[TransformerError] = []
        self._token = token
        self.run = pipeline.new_run(pipeline.load(token.with_timeout(None)), self.observers)

    @property
    def model(self) -> ir.Model:
        """The model that has been reached."""
        return self.run.model

    def execute(self, token: CancellationToken) -> None:
        """Apply the levels; where the model comes out corrupted or broken, find the culprit and run without it.

        Args:
            token: Cancellation token.

        Raises:
            TransformerError: If a transformer raised, with `Options.strict`.
            InvalidModelError: If the model is broken, and no transformer is the culprit.
            OptimizationCancelled: If it was stopped; `model` is valid and holds what was completed.
        """
        observers = self.observers
        while True:
            all_observers = observers if not self.without else (*observers, Replay(without=self.without))
            if all_observers != self.run.observers or self.left_out != self.run.left_out:
                self.run = self.pipeline.new_run(self.run.model, all_observers, self.left_out)
            try:
                self.pipeline.execute(self.run, token)
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

    def restart(self) -> None:
        """Begin again with the original.

        Raises:
            OptimizationCancelled: If it was stopped; `model` is the original.
        """
        try:
            original = self.pipeline.load(self._token.with_timeout(None))
        except OptimizationCancelled:
            observers, left_out = self.run.observers, frozenset(self.left_out)
            self.run = self.pipeline.new_run(self.run.content, observers, left_out)  # that may be corrupted
            self.run.roll_back = lambda: self.pipeline.replay(observers, limit=0, left_out=left_out).model
            raise
        self.run = self.pipeline.new_run(original, self.run.observers, self.left_out)

    def replay(self, limit: int) -> None:
        """Go back to the model after a number of rewrites.

        Args:
            limit: Number of the last rewrite that is made.
        """
        self.run = self.pipeline.replay(self.observers, limit=limit, left_out=self.left_out, without=self.without)


def _without_checks(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    return tuple(observer for observer in observers if not isinstance(observer, CheckEach))


__all__ = ["Transformation"]
