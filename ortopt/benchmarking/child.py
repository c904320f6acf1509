"""The process in which one version of a model is measured, once: creation, memory, calls.

``python -m ortopt.benchmarking.child`` reads one JSON object from stdin (see `ortopt.benchmarking.benchmark`) and
answers with one.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from ortopt.system.child_processes import end_with, take_streams

_BATCH = 1e-3  # seconds of calls between two looks at the clock, which costs a microsecond
_WARM_UP = 2


def measure(order: dict[str, Any]) -> dict[str, Any]:
    """Open a session, run it, and say what it took.

    Args:
        order: ``model`` and ``inputs`` are paths, ``providers`` their full names, ``grouped`` chooses
            `ortopt.InferenceSession`, ``threads`` is 0 for ONNX Runtime's default, ``repeat`` and ``seconds`` bound the
            timed runs, and ``trace`` is the file that a timeline goes to, or None.
    """
    import onnxruntime

    from ortopt.analysis.providers import usable
    from ortopt.runtime.session import InferenceSession
    from ortopt.runtime.settings import quiet_options
    from ortopt.runtime.tracing import Timeline

    options, quiet = quiet_options(order["threads"])
    for provider in order["providers"]:
        usable(provider)  # loads the libraries that the provider looks for
    with np.load(order["inputs"], allow_pickle=False) as archive:
        feeds = {
            name: array.astype(object) if array.dtype.kind == "U" else array for name, array in dict(archive).items()
        }
    timeline = None if order["trace"] is None or order["grouped"] else Timeline()
    before = memory()
    start = time.perf_counter()
    session: Any
    try:
        if order["grouped"]:
            session = InferenceSession(order["model"], options, order["providers"], trace=order["trace"] is not None)
        else:
            session = onnxruntime.InferenceSession(order["model"], options, order["providers"], enable_fallback=0)
    except Exception as error:  # whatever ONNX Runtime raises: the parent says it in one line
        return _failure(error, opens=False)
    opened = time.perf_counter()
    session.run(None, feeds, quiet)
    first = time.perf_counter()
    after = memory()
    if timeline is not None:
        timeline.add("compile", "whole model", start, opened)
        timeline.add("call", "run", opened, first)
    samples = _samples(session, feeds, quiet, order, timeline)
    if order["trace"] is not None:
        trace = timeline.as_dict() if timeline is not None else session.trace()
        Path(order["trace"]).write_text(json.dumps(trace), encoding="utf-8")
    return {
        "open": opened - start,
        "first": first - opened,
        "calls": samples,
        "anonymous": _difference(after, before, "RssAnon", "RssAnon"),
        "peak": _difference(after, before, "VmHWM", "VmRSS"),
    }


def _failure(error: Exception, *, opens: bool) -> dict[str, Any]:
    text = " ".join(f"{error}".split())[:500]
    return {"error": text or type(error).__name__, "kind": type(error).__name__, "opens": opens}


def _samples(session: Any, feeds: dict[str, Any], quiet: Any, order: dict[str, Any], timeline: Any) -> list[float]:
    """Seconds of a call, several times."""
    clock, run = time.perf_counter, session.run

    def timed(calls: int) -> float:
        start = clock()
        for _ in range(calls):
            run(None, feeds, quiet)
        end = clock()
        if timeline is not None:
            timeline.add("call", "run", start, end)
        return (end - start) / calls

    once = min(timed(1) for _ in range(_WARM_UP))
    batch = 1 if order["trace"] is not None else max(1, int(_BATCH / max(once, 1e-7)))
    samples: list[float] = []
    end = clock() + order["seconds"]
    while len(samples) < order["repeat"] and (clock() < end or not samples):
        samples.append(timed(batch))
    return samples


def memory() -> dict[str, int]:
    """Bytes of this process; empty where nothing tells."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {key: int(rows[key].split()[0]) << 10 for key in ("RssAnon", "VmHWM", "VmRSS") if key in rows}


def _difference(after: dict[str, int], before: dict[str, int], key: str, base: str) -> int | None:
    return after[key] - before[base] if key in after and base in before else None


if __name__ == "__main__":
    requests, answers = take_streams()
    end_with(int(sys.argv[1]))
    try:
        order = json.load(requests)
        answer = measure(order)
    except Exception as error:  # as above
        answer = _failure(error, opens=True)
    with answers:
        answers.write(json.dumps(answer).encode())
