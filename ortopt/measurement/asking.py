"""What the process that measures is asked for, and its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from ortopt.analysis.providers import CPU, check_installation
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.system import child_processes

_CHILD: Final = "ortopt.measurement.child"


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
        interpreter: The Python that has numpy and the ONNX Runtime to measure; None is this one.
    """

    rounds: int = 5
    repeat: int = 50
    seconds: float = 2.0
    threads: int = 0
    providers: tuple[str, ...] = (CPU,)
    libraries: tuple[str, ...] = ()
    patience: float = 600.0
    interpreter: str | None = None


def ask(
    task: str,
    each: Sequence[Mapping[str, Any]],
    budget: MeasurementBudget,
    token: CancellationToken = NEVER,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """The answers of a process that measures; an ``error`` where there is none.

    Args:
        task: ``time``, ``once`` or ``profile``.
        each: What is measured, one after the other (`ortopt.measurement.child`).
        budget: How much; ``rounds`` does not matter.
        token: Cancellation token.
        environment: Variables that the process has beside those of this one.

    Raises:
        MissingRuntimeError: There is no ONNX Runtime.
    """
    check_installation()
    order = {
        "task": task,
        "each": [
            {"grouped": False, "as_loaded": True, "cold": False, "trace": None, "lever": None, **one} for one in each
        ],
        "providers": list(budget.providers),
        "libraries": list(budget.libraries),
        "threads": budget.threads,
        "repeat": budget.repeat,
        "seconds": budget.seconds,
    }
    answered, status = child_processes.run(
        _CHILD,
        request=json.dumps(order).encode(),
        seconds=budget.patience,
        token=token,
        interpreter=budget.interpreter,
        variables=environment,
    )
    if status is None:
        return [{"error": f"it took longer than {budget.patience:.0f} s"}] * len(each)
    try:
        answers: list[dict[str, Any]] = json.loads(answered)["each"]
    except ValueError:
        return [{"error": f"its process died ({status})"}] * len(each)
    return answers
