"""The speed of a result against its original of the same run: in turns, in fresh processes, with an interval."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ortopt import api
from ortopt.analysis.dimensions import override
from ortopt.errors import InvalidModelError
from ortopt.measurement.asking import MeasurementBudget
from ortopt.measurement.in_turns import Version, measure_in_turns
from ortopt.measurement.inputs import StoredInputs, attempts, stored_inputs
from ortopt.measurement.pairs import interval
from ortopt.measurement.words import shapes_in_words
from ortopt.options import Options
from ortopt.regression.case import model_of
from ortopt.regression.facts import rounded
from ortopt.serialization.load import load
from ortopt.serialization.save import save
from ortopt.verification.inputs import read_inputs

ROUNDS: Final = 9
_SECONDS: Final = 0.5  # of calls in each process

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
        threads: Threads within an op.
        measure: What measures.
    """

    def __init__(self, rounds: int = ROUNDS, *, threads: int = 1, measure: Measure = in_turns) -> None:
        self._budget = MeasurementBudget(rounds=rounds, seconds=_SECONDS, threads=threads)
        self._measure = measure

    def __call__(self, order: Mapping[str, Any], result: Path) -> dict[str, Any]:
        """The ratio with its interval: of each round the geometric mean over all sizes; and the same at each size.

        Args:
            order: What was optimized.
            result: The result's file.

        Raises:
            OrtoptError: Nothing can be measured; why.
        """
        options = api.make_options(**order["options"])
        budget = dataclasses.replace(self._budget, providers=options.providers, libraries=options.custom_op_libraries)
        with tempfile.TemporaryDirectory(prefix="ortopt-check-") as folder:
            original, places = _inputs(order, options, Path(folder), budget)
            versions = Version(0, original), Version(options.level, result)
            every = [self._measure(versions, place.folder, budget) for place in places]
        if not all(every):
            raise InvalidModelError("the original or the result does not run with the inputs of the measurement")
        mean = [math.prod(ratios) ** (1 / len(ratios)) for ratios in zip(*every, strict=True)]
        at = [{**_described(place), **_spread(ratios)} for place, ratios in zip(places, every, strict=True)]
        return {**_spread(mean), "rounds": len(mean), "at": at}


def _spread(ratios: Sequence[float]) -> dict[str, float]:
    low, median, high = map(rounded, interval(ratios))
    return {"ratio": median, "low": low, "high": high}


def _described(place: StoredInputs) -> dict[str, Any]:
    """Where a ratio was measured; the inputs as a text: a decoder has dozens, and the facts have their names."""
    return {**place.as_dict(), "inputs": shapes_in_words(place.inputs)}


def _inputs(
    order: Mapping[str, Any], options: Options, folder: Path, budget: MeasurementBudget
) -> tuple[Path, list[StoredInputs]]:
    """The original, of the sizes that are asked for, and inputs: those of the manifest, else one at each of the sizes.

    Raises:
        OrtoptError: The original runs on none.
    """
    original = model_of(order)
    model = load(original)
    if override(model, options.dims, options.input_shapes):
        original = folder / "original.onnx"
        save(model, original)
    return original, stored_inputs(
        model,
        folder / "inputs",
        attempts(original, budget),
        sizes=options.dims,
        expected=options.dim_hints,
        given=None if order["inputs"] is None else read_inputs(order["inputs"]),
    )
