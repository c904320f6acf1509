"""One change of a model's inputs and outputs: what it made of the model, and the exact adapter between the two.

By the adapter, a result with the new inputs and outputs is run against the original with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Arrays: TypeAlias = dict[str, Any]
"""Arrays by the names of inputs or outputs; lists of arrays for sequences."""


class InterfaceChange:
    """A change that has been made to a model; this one changes nothing.

    A subclass makes it when it is constructed with a model. All names are those of the original: new ones come last.
    """

    def calls(self, inputs: Arrays) -> Sequence[Arrays] | None:
        """The calls of the model before the change that stand for one call of it afterwards.

        Args:
            inputs: What is given after the change.

        Returns:
            The inputs of each; None where there are no such calls.
        """
        return [inputs]

    def outputs(self, results: Sequence[Arrays]) -> Arrays:
        """What the model gives after the change, from what those calls give."""
        return results[0]

    def variants(self, inputs: Arrays) -> list[Arrays]:
        """Inputs after the change, in the place of those that were drawn, that show whether it is right."""
        return [inputs]

    def given(self, inputs: Arrays) -> Arrays:
        """Inputs that a caller has for the model before the change, as it takes them afterwards.

        Raises:
            UsageError: If they have no such form.
        """
        return inputs


def adapted(changes: Sequence[InterfaceChange], run: Callable[[Arrays], Arrays], inputs: Arrays) -> Arrays | None:
    """What a model gives through the adapters of its changes.

    Args:
        changes: The changes, in the order in which they were made.
        run: Runs the model before them.
        inputs: As they are given after them.

    Returns:
        Its outputs; None where no calls of the model stand for these inputs.
    """
    if not changes:
        return run(inputs)
    *earlier, last = changes
    calls = last.calls(inputs)
    results = [adapted(earlier, run, call) for call in calls or ()]
    known = [result for result in results if result is not None]
    return last.outputs(known) if known and len(known) == len(results) else None


def variants(changes: Sequence[InterfaceChange], inputs: Arrays) -> list[Arrays]:
    """What is run to show that changes are right, in the place of inputs that were drawn.

    Args:
        changes: The changes.
        inputs: As they are given after them.
    """
    found = [inputs]
    for change in changes:
        found = [other for each in found for other in change.variants(each)]
    return found
