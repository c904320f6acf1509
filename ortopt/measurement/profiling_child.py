"""The process that profiles a model under ONNX Runtime's defaults: where the time of a call goes, op by op.

``python -m ortopt.measurement.profiling_child PARENT`` reads an order as `ortopt.measurement.child` does and answers
with ``events`` (by op: how many kernels ran in a call, and their microseconds), ``calls`` and the graph that ONNX
Runtime made of the model when it loaded it, in the file that the order names ``loaded``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from ortopt._deferred_sympy import defer_sympy
from ortopt.measurement.child import Order, failure, feeds_of, serve

_WARM_UP: Final = 2
_LARGE: Final = 1 << 30
"""Bytes of a model from which the loaded graph's weights are written beside it: protobuf's limit."""


def profile(order: Order) -> dict[str, Any]:
    """Open a session that records what each kernel takes, and run it."""
    import onnxruntime

    from ortopt.evaluation.sessions import quiet_options, register_libraries

    options, quiet = quiet_options(order["threads"])
    register_libraries(options, order["libraries"])
    loaded = Path(order["loaded"])
    options.optimized_model_filepath = str(loaded)
    if order["bytes"] > _LARGE:
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "loaded.bin")
    options.enable_profiling = True
    options.profile_file_prefix = str(loaded.with_name("profile"))
    feeds = feeds_of(order["inputs"])
    try:
        session = onnxruntime.InferenceSession(order["model"], options, order["providers"], enable_fallback=0)
    except Exception as error:  # whatever ONNX Runtime raises: the parent reports it in one line
        return failure(error, opens=False)
    calls, end = 0, time.perf_counter() + order["seconds"]
    while calls < _WARM_UP + 1 or (calls < order["repeat"] + _WARM_UP and time.perf_counter() < end):
        session.run(None, feeds, quiet)
        calls += 1
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return {"events": by_op(after_warm_up(events, _WARM_UP)), "calls": calls - _WARM_UP}


def after_warm_up(events: Iterable[dict[str, Any]], skipped: int) -> list[dict[str, Any]]:
    """The events after the first calls of a session.

    Args:
        events: Of a profile, in ONNX Runtime's format.
        skipped: How many calls are left out.
    """
    rows = list(events)
    ends = sorted(row["ts"] + row["dur"] for row in rows if row.get("name") == "model_run")
    start = ends[skipped - 1] if len(ends) >= skipped > 0 else 0
    return [row for row in rows if row.get("ts", 0) >= start]


def by_op(events: Iterable[dict[str, Any]]) -> dict[str, list[float]]:
    """For each op the number of its kernels' runs, and their own microseconds: those of a loop's body are not its own.

    Args:
        events: Of a profile, in ONNX Runtime's format.
    """
    kernels = [row for row in events if row.get("cat") == "Node" and row["name"].endswith("_kernel_time")]
    kernels.sort(key=lambda row: (row["tid"], row["ts"], -row["dur"]))
    found: dict[str, list[float]] = {}
    around: list[dict[str, Any]] = []
    for row in kernels:
        while around and (around[-1]["tid"] != row["tid"] or around[-1]["ts"] + around[-1]["dur"] < row["ts"]):
            around.pop()
        if around and around[-1]["ts"] + around[-1]["dur"] >= row["ts"] + row["dur"] and _has_body(around[-1]):
            found[around[-1]["args"]["op_name"]][1] -= row["dur"]
        count = found.setdefault(row["args"]["op_name"], [0, 0.0])
        count[0] += 1
        count[1] += row["dur"]
        around.append(row)
    return found


def _has_body(row: dict[str, Any]) -> bool:
    return row["args"]["op_name"] in {"If", "Loop", "Scan", "SequenceMap"}


if __name__ == "__main__":
    defer_sympy()
    serve(profile)
