"""Latency of several versions of one model, run in turns so that changes of the machine's speed affect all alike.

`python -m benchmarks.latency ROUNDS SECONDS INPUTS.npz MODEL...` prints a JSON list: for each model the seconds of each
round, or a line that says why it does not run. Sessions have ONNX Runtime's defaults.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnxruntime

_AT_LEAST = 5  # rounds, whatever they take


def main(rounds: int, seconds: float, inputs: str, models: Sequence[str]) -> list[list[float] | str]:
    """Time the models in turns, for at most `rounds` rounds and about `seconds` seconds."""
    import numpy as np

    with np.load(inputs) as archive:
        feeds = dict(archive)
    started = [_start(model, feeds) for model in models]
    sessions = [session for session in started if not isinstance(session, str)]
    times: list[list[float]] = [[] for _ in sessions]
    end = time.perf_counter() + seconds
    for done in range(rounds):
        if done >= _AT_LEAST and time.perf_counter() > end:
            break
        for turn in range(len(sessions)):
            which = (turn + done) % len(sessions)
            start = time.perf_counter()
            sessions[which].run(None, feeds)
            times[which].append(time.perf_counter() - start)
    timed = iter(times)
    return [session if isinstance(session, str) else next(timed) for session in started]


def _start(model: str, feeds: dict[str, Any]) -> onnxruntime.InferenceSession | str:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for _ in range(2):  # warm-up: the first runs allocate
            session.run(None, feeds)
    except Exception as error:  # a peer's broken result is a line in the table
        return f"does not run: {str(error).splitlines()[0][:200]}"
    return session


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:])))
