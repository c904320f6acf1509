"""Time of results on a runtime, in turns with their originals: the part of `fuzzing.releases` that measures.

A model and its result are open in one process, and run one after the other: what a process changes, such as code that
a JavaScript engine translates again while it runs, changes for both. What counts is the processor time of the run, of
all threads, in the process itself, and the median of the ratios of neighbours: so that other work on the machine
matters little. The process is kept to one processor, on which runtimes make one thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ortopt.analysis.providers import CPU
from ortopt.verification.input_sets import store_inputs
from ortopt.verification.other_runtimes import NODE
from ortopt.verification.process import Calls, Worker
from ortopt.verification.start import Runtime

LIMIT: Final = 1.02
"""Part of the original's time beyond which a result is told to be slower."""

_WARM: Final = 2
"""Turns that do not count."""

_WARM_SECONDS: Final = 4.0
"""Processor time that turns which do not count take at least in node, which translates code anew meanwhile."""

_TURN_SECONDS: Final = 0.02
"""Processor time that a run takes at least: a model that takes less runs several times."""

_MAX_TURN_SECONDS: Final = 0.5
"""Processor time that several runs of a model take at most, where the other one is much faster."""

_OPENINGS: Final = 3
"""How often both are opened anew, but in node: where a session's buffers happen to lie moves its time by 5 to 8 %."""

_LEAST: Final = 5
_MOST: Final = 60


@contextlib.contextmanager
def on_one_processor() -> Iterator[None]:
    """Processes that start meanwhile have one processor, where the operating system can say so."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def ratio(
    runtime: Runtime, original: bytes, result: bytes, inputs: Mapping[str, Any], seconds: float, *, cold: bool = False
) -> float:
    """Time of a result, as a part of its original's: the median of ratios in turns, and of several openings of both.

    Args:
        runtime: The runtime.
        original: A serialized model.
        result: The other one.
        inputs: Arrays by name.
        seconds: Processor time to spend on runs.
        cold: Whether caches are emptied before each run, as the other layers of a network empty them.

    Raises:
        WorkerError: One of them does not run there.
    """
    in_node = any(argument.startswith(NODE) for argument in runtime.arguments)
    openings = 1 if in_node else _OPENINGS
    models = original, result
    return statistics.median(
        _of_one_opening(runtime, models, inputs, seconds / openings, _WARM_SECONDS if in_node else 0.0, cold=cold)
        for _ in range(openings)
    )


def _of_one_opening(
    runtime: Runtime,
    models: tuple[bytes, bytes],
    inputs: Mapping[str, Any],
    seconds: float,
    least_warm: float,
    *,
    cold: bool,
) -> float:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        source = folder / "in"
        store_inputs(dict(inputs), source)
        with on_one_processor():
            worker = stack.enter_context(Worker((*runtime.providers, CPU), runtime=runtime))
            for label, model in zip(("original", "result"), models, strict=True):
                path = folder / f"{label}.onnx"
                path.write_bytes(model)
                worker.open(path, len(model), None, optimize=True, beside=label == "result")
                worker.wait()
        return _in_turns(worker, (source, folder), seconds, least_warm, cold=cold)


def _in_turns(worker: Worker, places: tuple[Path, Path], seconds: float, least_warm: float, *, cold: bool) -> float:
    source, folder = places

    def turn(each: int) -> list[float]:
        took = []
        for number in range(2):
            worker.run(source, folder / f"out{number}", Calls(number, each, cold))
            took.append(worker.processor_seconds)
        return took

    ends = time.monotonic() + 5 * least_warm
    warm, turns, each = 0.0, 0, 1
    while turns < _WARM or (warm < least_warm and time.monotonic() < ends):
        took = turn(each)
        warm, turns = warm + each * sum(took), turns + 1
        each = 1 if cold else _repeats(took)
    ratios: list[float] = []
    spent, ends = 0.0, time.monotonic() + 10 * seconds
    while len(ratios) < _LEAST or (len(ratios) < _MOST and spent < seconds and time.monotonic() < ends):
        took = turn(each)
        ratios.append(took[1] / max(took[0], 1e-9))
        spent += each * sum(took)
    return statistics.median(ratios)


def _repeats(took: Sequence[float]) -> int:
    """How often both run in a turn, so that neither is too short, nor too long."""
    wanted = math.ceil(_TURN_SECONDS / max(min(took), 1e-6))
    return max(1, min(wanted, int(_MAX_TURN_SECONDS / max(*took, 1e-6))))


def told(runtime: str, ratios: Mapping[str, float]) -> str:
    """What was measured, in a line and one for each that is slower.

    Args:
        runtime: Its name.
        ratios: By what models are called.
    """
    slower = {name: one for name, one in ratios.items() if one > LIMIT}
    mean = statistics.geometric_mean(ratios.values())
    lines = [f"{runtime}: {mean:.3f} of the originals' time, geometric mean of {len(ratios)}; {len(slower)} slower"]
    rows = sorted(slower.items(), key=lambda row: -row[1])
    return "\n".join([*lines, *(f"{runtime}: {name}: {one:.2f} of the original's time" for name, one in rows)])
