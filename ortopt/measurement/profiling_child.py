"""The process that profiles a model under ONNX Runtime's defaults: where the time of a call goes, op by op.

``python -m ortopt.measurement.profiling_child PARENT`` reads an order as `ortopt.measurement.child` does and answers
with ``ops`` (how many of its kernels run in a call, and their microseconds) and ``calls`` (how many there were). The
graph that ONNX Runtime made of the model when it loaded it is in the file that the order names ``loaded``.
"""

from __future__ import annotations

import bisect
import json
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ortopt._deferred_sympy import defer_sympy
from ortopt.measurement.child import Order, failure, feeds_of, open_plain, serve
from ortopt.semantics.op_traits import CONTROL_FLOW

_WARM_UP: Final = 2
_LARGE: Final = 1 << 30
"""Bytes of a model from which the loaded graph's weights are written beside it: protobuf's limit."""


def profile(order: Order) -> dict[str, Any]:
    """Open a session that records what each kernel takes, and run it."""
    from ortopt.evaluation.sessions import quiet_options, register_libraries

    options, quiet = quiet_options(order["threads"])
    loaded = Path(order["loaded"])
    options.optimized_model_filepath = str(loaded)
    if order["bytes"] > _LARGE:
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "loaded.bin")
    options.enable_profiling = True
    options.profile_file_prefix = str(loaded.with_name("profile"))
    feeds = feeds_of(order["inputs"])
    try:
        register_libraries(options, order["libraries"])
        session = open_plain(order, options)
    except Exception as error:  # whatever ONNX Runtime raises: the parent reports it in one line
        return failure(error, opens=False)
    calls, end = 0, time.perf_counter() + order["seconds"]
    while calls < _WARM_UP + 1 or (calls < order["repeat"] + _WARM_UP and time.perf_counter() < end):
        session.run(None, feeds, quiet)
        calls += 1
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    each = [by_op(rows) for rows in by_call(events)[_WARM_UP:]]
    return {"ops": typical(each), "calls": len(each)}


def by_call(events: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The events of each call of a session, in order.

    Args:
        events: Of a profile, in ONNX Runtime's format.
    """
    rows = list(events)
    spans = sorted((row["ts"], row["ts"] + row["dur"]) for row in rows if row.get("name") == "model_run")
    starts = [start for start, _ in spans]
    calls: list[list[dict[str, Any]]] = [[] for _ in spans]
    for row in rows:
        number = bisect.bisect_right(starts, row.get("ts", -1)) - 1
        if number >= 0 and row["ts"] <= spans[number][1]:
            calls[number].append(row)
    return calls


def typical(calls: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """For each op the medians over the calls, of its kernels' runs and of their microseconds.

    Args:
        calls: From `by_op`.
    """
    ops = dict.fromkeys(op for call in calls for op in call)
    return {op: [statistics.median(call.get(op, (0, 0.0))[i] for call in calls) for i in (0, 1)] for op in ops}


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
    return row["args"]["op_name"] in CONTROL_FLOW


if __name__ == "__main__":
    defer_sympy()
    serve(profile)
