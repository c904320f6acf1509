"""The speed of a result against its original of the same run: in turns, in fresh processes, with an interval."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ortopt import api
from ortopt.errors import OrtoptError
from ortopt.measurement.asking import MeasurementBudget
from ortopt.measurement.in_turns import Version, attempt, measure_in_turns
from ortopt.measurement.pairs import interval
from ortopt.regression.facts import rounded
from ortopt.verification.input_sets import store_inputs

ROUNDS: Final = 9

Measure = Callable[[Sequence[Version], Path, MeasurementBudget], Sequence[float]]
"""The ratios of the rounds, from the original and the result, and inputs; none where one of them does not run."""


def in_turns(versions: Sequence[Version], inputs: Path, budget: MeasurementBudget) -> Sequence[float]:
    """The ratio of the result's time to the original's in each round.

    Args:
        versions: The original and the result.
        inputs: A folder of stored inputs.
        budget: How much is measured.
    """
    first, second = measure_in_turns(versions, inputs, budget)
    return () if first.error or second.error else second.ratios


class Latency:
    """Measures results against their originals.

    Args:
        rounds: Processes of each.
        seconds: Seconds of calls in each process, about.
        threads: Threads within an op.
        measure: What measures.
    """

    def __init__(
        self, rounds: int = ROUNDS, *, seconds: float = 0.5, threads: int = 1, measure: Measure = in_turns
    ) -> None:
        self._budget = MeasurementBudget(rounds=rounds, seconds=seconds, threads=threads)
        self._measure = measure

    def __call__(self, order: Mapping[str, Any], result: Path) -> dict[str, Any] | None:
        """The ratio with its interval; None where nothing can be measured.

        Args:
            order: What was optimized.
            result: The result's file.
        """
        with tempfile.TemporaryDirectory(prefix="ortopt-check-") as folder:
            inputs = Path(folder, "inputs")
            original = _original(order)
            if not self._can_run(order, original, inputs):
                return None
            options = api.make_options(**order["options"])
            budget = dataclasses.replace(
                self._budget, providers=options.providers, libraries=options.custom_op_libraries
            )
            ratios = self._measure((Version(0, original), Version(options.level, result)), inputs, budget)
        if not ratios:
            return None
        low, median, high = map(rounded, interval(ratios))
        return {"ratio": median, "low": low, "high": high, "rounds": len(ratios)}

    def _can_run(self, order: Mapping[str, Any], original: Path, inputs: Path) -> bool:
        """Store the first inputs that the original accepts."""
        try:
            for arrays in _candidates(order, original):
                if not all(map(_is_plain, arrays.values())):
                    continue
                store_inputs(arrays, inputs)
                if attempt(Version(0, original), inputs, self._budget) is None:
                    return True
        except OrtoptError:
            return False
        return False


def _is_plain(array: Any) -> bool:
    """Whether ONNX Runtime takes it as numpy has it."""
    return isinstance(array, np.ndarray) and array.dtype.kind in "biufcU"


def _original(order: Mapping[str, Any]) -> Path:
    if order["path"] is not None:
        return Path(order["path"])
    from ortopt import zoo

    return zoo.cached(order["zoo"])


def _candidates(order: Mapping[str, Any], original: Path) -> Iterator[dict[str, Any]]:
    """Inputs to try: those that are given, the zoo's, or such as verification draws."""
    from ortopt.analysis.dimensions import sizes_of_symbols
    from ortopt.serialization.load import load
    from ortopt.verification.draws import initial_draws
    from ortopt.verification.inputs import Interface

    options = api.make_options(**order["options"])
    sizes: Mapping[str, int] = options.dims
    if order["inputs"] is not None:
        from ortopt.verification.inputs import read_inputs

        yield read_inputs(order["inputs"])
        return
    if order["zoo"] is not None:
        from ortopt import zoo

        yield dict(zoo.inputs(order["zoo"], sizes=sizes))
        return
    model, shapes = load(original), options.input_shapes
    interface = Interface(model, shapes=shapes)
    sizes = sizes_of_symbols(model, sizes, shapes)
    for how in initial_draws():
        yield dict(interface.draw(sizes=sizes, how=how))
