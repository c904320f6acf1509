"""The process in which one version of a model is measured, once: how a session is opened, its memory, its calls.

``python -m ortopt.measurement.child PARENT`` reads one JSON object from standard input (see
`ortopt.measurement.in_turns`) and answers with one. It opens a session of ONNX Runtime; a module that opens another
kind of session calls `serve` and `measure`, too.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from ortopt._deferred_sympy import defer_sympy
from ortopt.system.child_processes import end_with, take_streams

Order: TypeAlias = dict[str, Any]
"""What is measured: ``model`` and ``inputs`` are paths, ``providers`` their full names, ``threads`` is 0 for ONNX
Runtime's default, ``repeat`` and ``seconds`` bound the timed calls."""

_BATCH: Final = 1e-3  # seconds of calls between two looks at the clock, which costs a microsecond
_WARM_UP: Final = 2


def open_plain(order: Order, options: Any) -> Any:
    """A session of ONNX Runtime."""
    import onnxruntime

    return onnxruntime.InferenceSession(order["model"], options, order["providers"], enable_fallback=0)


def measure(
    order: Order,
    open_session: Callable[[Order, Any], Any] = open_plain,
    *,
    record: Callable[[str, str, float, float], None] | None = None,
    batched: bool = True,
) -> dict[str, Any]:
    """Open a session, run it, and return what that costs.

    Args:
        order: What is measured.
        open_session: Opens the session of an order with some session options.
        record: Called with the category, the name, the start and the end of each timed step.
        batched: Whether short calls are timed several at a time.
    """
    from ortopt.analysis.providers import usable
    from ortopt.evaluation.sessions import quiet_options, register_libraries

    options, quiet = quiet_options(order["threads"])
    for provider in order["providers"]:
        usable(provider)  # loads the libraries that the provider looks for
    feeds = feeds_of(order["inputs"])
    before = memory()
    start = time.perf_counter()
    try:
        register_libraries(options, order.get("libraries", ()))
        session = open_session(order, options)
    except Exception as error:  # whatever ONNX Runtime raises: the parent reports it in one line
        return failure(error, opens=False)
    opened = time.perf_counter()
    session.run(None, feeds, quiet)
    first = time.perf_counter()
    after = memory()
    if record is not None:
        record("compile", "whole model", start, opened)
        record("call", "run", opened, first)

    def timed(calls: int) -> float:
        return _timed(session.run, feeds, quiet, calls, record)

    return {
        "open": opened - start,
        "first": first - opened,
        "calls": _samples(timed, order["repeat"], order["seconds"], batched=batched),
        "anonymous": _difference(after, before, "RssAnon", "RssAnon"),
        "peak": _difference(after, before, "VmHWM", "VmRSS"),
    }


def failure(error: Exception, *, opens: bool) -> dict[str, Any]:
    """The answer where a version does not run; whether a session of it can be opened."""
    text = " ".join(f"{error}".split())[:500]
    return {"error": text or type(error).__name__, "kind": type(error).__name__, "opens": opens}


def serve(answer_to: Callable[[Order], dict[str, Any]]) -> None:
    """Answer the order of the parent process."""
    requests, answers = take_streams()
    end_with(int(sys.argv[1]))
    try:
        answer = answer_to(json.load(requests))
    except Exception as error:  # as above
        answer = failure(error, opens=True)
    with answers:
        answers.write(json.dumps(answer).encode())


def feeds_of(path: str) -> dict[str, Any]:
    """The arrays of an .npz file, texts as ONNX Runtime takes them."""
    with np.load(path, allow_pickle=False) as archive:
        return {
            name: array.astype(object) if array.dtype.kind == "U" else array for name, array in dict(archive).items()
        }


def _timed(
    run: Callable[..., Any],
    feeds: dict[str, Any],
    quiet: Any,
    calls: int,
    record: Callable[[str, str, float, float], None] | None,
) -> float:
    """Seconds of a call, the mean of several."""
    start = time.perf_counter()
    for _ in range(calls):
        run(None, feeds, quiet)
    end = time.perf_counter()
    if record is not None:
        record("call", "run", start, end)
    return (end - start) / calls


def _samples(timed: Callable[[int], float], repeat: int, seconds: float, *, batched: bool) -> list[float]:
    """Seconds of a call, several times, after some calls that are not counted."""
    once = min(timed(1) for _ in range(_WARM_UP))
    batch = max(1, int(_BATCH / max(once, 1e-7))) if batched else 1
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < repeat and (time.perf_counter() < end or not samples):
        samples.append(timed(batch))
    return samples


def memory() -> dict[str, int]:
    """Bytes of this process; empty where the system does not tell."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    rows = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {key: int(rows[key].split()[0]) << 10 for key in ("RssAnon", "VmHWM", "VmRSS") if key in rows}


def _difference(after: dict[str, int], before: dict[str, int], key: str, base: str) -> int | None:
    return after[key] - before[base] if key in after and base in before else None


if __name__ == "__main__":
    defer_sympy()
    serve(measure)
