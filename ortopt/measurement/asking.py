"""What a process that measures is asked for, and its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ortopt.analysis.providers import CPU
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.system import child_processes


@dataclass(frozen=True, slots=True)
class MeasurementBudget:
    """How much is measured.

    Attributes:
        rounds: Processes of each version, or of each pair of models, at most.
        repeat: Timed calls in each, on each of the inputs, at most.
        seconds: Seconds of timed calls in each, on each of the inputs, about, at most.
        threads: Intra-op threads; 0 leaves ONNX Runtime's default.
        providers: Full names, in order.
        libraries: Shared libraries of ops that the models need.
        patience: Seconds after which a process is ended.
    """

    rounds: int = 5
    repeat: int = 50
    seconds: float = 2.0
    threads: int = 0
    providers: tuple[str, ...] = (CPU,)
    libraries: tuple[str, ...] = ()
    patience: float = 600.0


def ask(
    module: str, order: Mapping[str, Any], effort: MeasurementBudget, token: CancellationToken = NEVER
) -> dict[str, Any]:
    """The answer of a process that measures; its ``error`` where there is none.

    Args:
        module: The module of the process.
        order: What is measured.
        effort: How much; ``rounds`` does not matter.
        token: Cancellation token.
    """
    settings = {
        "providers": list(effort.providers),
        "libraries": list(effort.libraries),
        "threads": effort.threads,
        "repeat": effort.repeat,
        "seconds": effort.seconds,
    }
    request = json.dumps({**order, **settings}).encode()
    answered, status = child_processes.run(module, request=request, seconds=effort.patience, token=token)
    if status is None:
        return {"error": f"it took longer than {effort.patience:.0f} s"}
    try:
        answer: dict[str, Any] = json.loads(answered)
    except ValueError:
        return {"error": f"its process died ({status})"}
    return answer


__all__ = ["MeasurementBudget", "ask"]
