"""A step that chooses between versions of a group by what a guard in the file says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ortopt.runtime.execution.group_runner import GroupRunner
from ortopt.runtime.instruments.statistics import Counters
from ortopt.runtime.instruments.tracing import Timeline
from ortopt.runtime.onnxruntime_internals import value_class
from ortopt.runtime.specialization.guard_reader import Expected
from ortopt.runtime.values.conversion import to_numpy

if TYPE_CHECKING:
    import onnxruntime


class GuardedVersion(NamedTuple):
    """One version of a group, among the values of a step.

    Attributes:
        group: What runs it.
        places: The places of what it is given among the values of the step.
        order: Where each result of the step is among its own.
        expected: What must hold of values, by their places; nothing for the general version.
    """

    group: GroupRunner
    places: tuple[int, ...]
    order: tuple[int, ...]
    expected: tuple[tuple[int, Expected], ...] = ()

    def run(self, values: Sequence[Any], options: onnxruntime.RunOptions) -> list[Any]:
        """Run it with the values of the step; the results of the step."""
        results = self.group([values[i] for i in self.places], options)
        return [results[i] for i in self.order]


class GuardedCall:
    """Runs the first version of a group that holds for its arguments, or else the general one.

    Args:
        versions: The versions, in the order in which they are asked.
        general: The general version.
        name: The group's name.
        counters: Where the runs of both are counted.
        timeline: Where failures are recorded, None for nowhere.
    """

    __slots__ = ("_counters", "_general", "_name", "_tensor", "_timeline", "_versions")

    def __init__(
        self,
        versions: Sequence[GuardedVersion],
        general: GuardedVersion,
        name: str,
        counters: Counters,
        timeline: Timeline | None,
    ) -> None:
        self._versions = tuple(versions)
        self._general = general
        self._name = name
        self._counters = counters
        self._timeline = timeline
        self._tensor = value_class()

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Choose, and run what is chosen."""
        for version in self._versions:
            if self._holds(version.expected, values):
                self._counters.add("specialized_runs")
                return version.run(values, options)
        self._counters.add("guard_failures")
        if self._timeline is not None:
            self._timeline.mark("guard failure", group=self._name)
        return self._general.run(values, options)

    def _holds(self, expected: Sequence[tuple[int, Expected]], values: list[Any]) -> bool:
        for place, (sizes, content) in expected:
            value = values[place]
            if type(value) is not self._tensor or value.shape() != sizes:
                return False
            if content and np.asarray(to_numpy(value)).tobytes() != content:
                return False
        return True
