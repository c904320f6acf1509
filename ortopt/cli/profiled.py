"""``ortopt optimize --profile``: where the time of the original and of the result goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import onnx_ir as ir

from ortopt.analysis.providers import CPU, usable
from ortopt.cli import models
from ortopt.cli.models import ModelArgument
from ortopt.instrumentation.explanation import Explanation
from ortopt.measurement import profiling
from ortopt.measurement.asking import MeasurementBudget
from ortopt.measurement.inputs import attempts, stored_inputs
from ortopt.measurement.words import in_words
from ortopt.options import Options
from ortopt.reporting import profiles
from ortopt.serialization.save import save
from ortopt.system.files import temporary_folder

_PROCESSES: Final = 3
_CALLS: Final = 50
_SECONDS: Final = 0.5


def profile(
    argument: ModelArgument,
    result: ir.Model,
    path: Path | None,
    inputs: str | None,
    options: Options,
    listener: Explanation,
) -> dict[str, Any]:
    """Profile the original and the result, as data that json can write.

    Args:
        argument: The original.
        result: The result.
        path: Its file, or None if it went to a stream.
        inputs: An .npz file of the user's, or None.
        options: Options of the run.
        listener: Listened to the run.

    Raises:
        OrtoptError: One of the two cannot be profiled.
    """
    here = tuple(provider for provider in options.providers if usable(provider)[0]) or (CPU,)
    budget = MeasurementBudget(
        rounds=_PROCESSES, repeat=_CALLS, seconds=_SECONDS, providers=here, libraries=options.custom_op_libraries
    )
    with temporary_folder("ortopt-profile-") as name:
        folder = Path(name)
        original = argument.file(folder / "original.onnx")
        if path is None:
            path = folder / "result.onnx"
            save(result, path)
        found = stored_inputs(
            result,
            folder / "inputs",
            attempts(original, budget),
            sizes=options.dims,
            expected=options.dim_hints,
            given=models.verification_inputs(inputs, argument, {}) if inputs is not None else None,
            label=argument.label,
        )
        largest = found[-1]  # of a decoder the one that is given a text
        before, after = profiling.in_turns((original, path), largest.folder, budget)
    how = {**largest.as_dict(), "threads": budget.threads, "providers": list(budget.providers)}
    how["measured_with"] = in_words(largest.as_dict(), budget.threads, budget.providers)
    return {**profiles.describe(before, after, result, listener), **how}
