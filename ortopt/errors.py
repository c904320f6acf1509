"""Every error that ortopt raises on purpose, and the exit code that the command line gives it.

::

    OrtoptError
    ├── UsageError                     exit 1: an option, a name or a value that makes no sense
    │   ├── MissingRuntimeError        no ONNX Runtime is installed, or one that is too old
    │   ├── UnknownTransformerError    a transformer's name that is not registered
    │   └── RegistrationError          a name registered twice, a plug-in or a pass file that does not load
    ├── InvalidModelError              exit 2: the file is missing, broken or hostile
    ├── OutputError                    exit 2: the result cannot be written where it should go
    ├── VerificationError              exit 3: the result does not compute what the original computes
    ├── TransformerError               exit 4: a pass raised, or broke its contract
    └── OptimizationCancelled          exit 130: the cancellation token was set

Beside them stands a warning: `PlugInWarning`, of a plug-in that does not load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class OrtoptError(Exception):
    """The root of all errors of this package."""

    exit_code = 1


class UsageError(OrtoptError):
    """An option, a name or a value that makes no sense."""


class MissingRuntimeError(UsageError):
    """A model has to run, and no ONNX Runtime is installed, or one that is too old; the message says what to do."""


class UnknownTransformerError(UsageError):
    """A transformer's name that is not registered.

    Args:
        name: The name.
        nearest: Registered names that are spelled similarly, best first.
    """

    def __init__(self, name: str, nearest: tuple[str, ...] = ()) -> None:
        self.name = name
        self.nearest = nearest
        hint = f"; did you mean {', '.join(nearest)}?" if nearest else ""
        super().__init__(f"there is no transformer named {name!r}{hint}")


class RegistrationError(UsageError):
    """A transformer that cannot be registered: a name taken, a file that does not load, a contract not kept."""


class PlugInWarning(UserWarning):
    """A plug-in, or a pass of one, does not load and is left out; the message names it."""


class InvalidModelError(OrtoptError):
    """A model, or another file that is read, is missing, broken or hostile; one line names it and what is wrong."""

    exit_code = 2


class OutputError(OrtoptError):
    """A result that cannot be written where it should go."""

    exit_code = 2


class VerificationError(OrtoptError):
    """A result that does not compute what the original computes; it is never written."""

    exit_code = 3


class TransformerError(OrtoptError):
    """A transformer that raised or broke its contract; the model is as it was before that transformer.

    Args:
        transformer: The transformer's name.
        level: Its level, 1 to 4.
        step: The step of the fixed-point loop, from 1.
        graph: The graph it worked on.
        reason: The reason.

    Attributes:
        corrupted: Whether it changed the graph past the editor, which cannot be rolled back: then the model is not as
            it was.
    """

    exit_code = 4

    def __init__(self, transformer: str, level: int, step: int, graph: str, reason: str) -> None:
        self.transformer = transformer
        self.level = level
        self.step = step
        self.graph = graph
        self.reason = reason
        self.corrupted = False
        super().__init__(
            f"{transformer} failed at level {level}, step {step}, on graph {graph!r}: {reason}"
            f" (leave it out with --disable {transformer})"
        )


class OptimizationCancelled(OrtoptError):  # noqa: N818 -- the name says what happened, and no error did
    """The cancellation token was set.

    Args:
        message: The reason.
    """

    exit_code = 130

    def __init__(self, message: str = "cancelled") -> None:
        self._result: Any = None
        self._make_result: Callable[[], Any] | None = None
        super().__init__(message)

    @property
    def result(self) -> Any:
        """The ``ortopt.OptimizeResult`` reached: valid, equivalent to the input, with the rewrites that had completed.

        None where nothing had been loaded yet. It is computed on first access, so that cancelling is immediate. Errors
        are below everything that can fail, so the type is not named here.
        """
        if self._make_result is not None:
            self._result, self._make_result = self._make_result(), None
        return self._result

    def leave(self, result: Callable[[], Any]) -> None:
        """Set how the result is computed, when it is asked for."""
        self._make_result = result


__all__ = [
    "InvalidModelError",
    "MissingRuntimeError",
    "OptimizationCancelled",
    "OrtoptError",
    "OutputError",
    "PlugInWarning",
    "RegistrationError",
    "TransformerError",
    "UnknownTransformerError",
    "UsageError",
    "VerificationError",
]
