"""The process in which one version of a model is measured, once, under ONNX Runtime or in groups, traced or not.

``python -m ortopt.benchmarking.child PARENT`` answers as `ortopt.measurement.child` does. An order also holds:
``grouped`` chooses `ortopt.InferenceSession`, and ``trace`` is the file for a timeline, or None.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ortopt._deferred_sympy import defer_sympy
from ortopt.measurement import child
from ortopt.measurement.child import Order


def measure(order: Order) -> dict[str, Any]:
    """Open a session, run it, and return what that costs.

    Args:
        order: What is measured.
    """
    from ortopt.runtime.instruments.tracing import Timeline
    from ortopt.runtime.session import InferenceSession

    trace: str | None = order["trace"]
    sessions: list[Any] = []

    def open_session(order: Order, options: Any) -> Any:
        if order["grouped"]:
            sessions.append(InferenceSession(order["model"], options, order["providers"], trace=trace is not None))
        else:
            sessions.append(child.open_plain(order, options))
        return sessions[0]

    timeline = None if trace is None or order["grouped"] else Timeline()
    record = None if timeline is None else timeline.add
    answer = child.measure(order, open_session, record=record, batched=trace is None)
    if trace is not None and "error" not in answer:
        data = timeline.as_dict() if timeline is not None else sessions[0].trace()
        Path(trace).write_text(json.dumps(data), encoding="utf-8")
    return answer


if __name__ == "__main__":
    defer_sympy()
    child.serve(measure)
