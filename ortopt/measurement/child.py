"""The process that measures: how sessions are opened, called and timed; the only one.

``python -m ortopt.measurement.child PARENT`` reads an order (see `ortopt.measurement.asking`), one JSON object, from
standard input, and answers with one. Each of ``each`` is done by itself, so that one that fails leaves the others.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

from ortopt._deferred_sympy import defer_sympy
from ortopt.system import memory
from ortopt.system.child_processes import end_with, take_streams

Order: TypeAlias = dict[str, Any]
"""What is measured: ``models`` are paths, ``inputs`` folders of stored inputs, ``providers`` full names, ``libraries``
paths, ``threads`` is 0 for ONNX Runtime's default, ``repeat`` and ``seconds`` bound the timed calls on each of the
inputs. ``grouped`` chooses `ortopt.InferenceSession`, ``as_loaded`` is false where ONNX Runtime must not optimize the
models, ``trace`` is the file for a timeline, or None, and ``lever`` are settings of a session
(`ortopt.measurement.recipe`), or None. ``cold`` empties the caches of the calling thread before calls are
timed."""

_BATCH: Final = 1e-3  # seconds of calls between two looks at the clock, which costs a microsecond
_WARM_UP: Final = 2
_LARGE: Final = 1 << 30
"""Bytes of a model from which the loaded graph's weights are written beside it: protobuf's limit."""


def answer(order: Order) -> dict[str, Any]:
    """Do all that an order asks for; what does not run has an ``error``."""
    done = []
    for one in order["each"]:
        try:
            done.append(_TASKS[order["task"]]({**order, **one}))
        except Exception as error:  # whatever ONNX Runtime raises: the parent reports it in one line
            done.append(_failure(error, opens=True))
    return {"each": done}


def _timed(order: Order) -> dict[str, Any]:
    """Open a session of each model, and call them in turns.

    A model alone is timed as a user waits for it. Of several, and of one with and without a lever, with a single thread
    on the CPU, the time is that of the thread, which other processes hardly disturb.

    Returns:
        Of each model the seconds in which it was opened and first called; for each of the inputs the seconds of each
        model's calls; bytes of memory.
    """
    from ortopt.analysis.providers import CPU
    from ortopt.evaluation.sessions import use_shared_threads
    from ortopt.runtime.instruments import Timeline
    from ortopt.verification.input_sets import inputs_from

    count, timeline = len(order["models"]), Timeline()
    compared = count > 1 or order["lever"] is not None
    by_thread = compared and order["threads"] == 1 and order["providers"] == [CPU]
    options, quiet = _options(order)
    if count > 1 and not by_thread:
        use_shared_threads(options, order["threads"])
    every, opener = [inputs_from(Path(folder)) for folder in order["inputs"]], _opener(order, options)
    before = memory.of_process()
    try:
        sessions, opening = _opened(order, opener, timeline)
    except Exception as error:  # as above
        return _failure(error, opens=False)
    first = []
    for session in sessions:
        start = time.perf_counter()
        session.run(None, every[0], quiet)
        first.append(_since(start, timeline, "call", "run"))
    after = memory.of_process()
    clock = time.thread_time if by_thread else time.perf_counter

    timing = _Timing(order, quiet, clock, timeline)
    found = [timing.calls(sessions, feeds) for feeds in every]
    if order["trace"]:
        trace = sessions[0].trace() if order["grouped"] else timeline.as_dict()
        Path(order["trace"]).write_text(json.dumps(trace), encoding="utf-8")
    return {
        "open": opening,
        "first": first,
        "calls": found,
        "anonymous": _difference(after, before, "RssAnon", "RssAnon"),
        "peak": _difference(after, before, "VmHWM", "VmRSS"),
    }


class _Timing:
    """Times calls of sessions in turns."""

    def __init__(self, order: Order, quiet: Any, clock: Callable[[], float], timeline: Any) -> None:
        self._order, self._quiet, self._clock, self._timeline = order, quiet, clock, timeline

    def calls(self, sessions: list[Any], feeds: dict[str, Any]) -> list[list[float]]:
        """Seconds of the calls of each session."""
        callers = [_caller(session, feeds, self._quiet, self._order) for session in sessions]
        return _in_turns(lambda which, batch: self._timed(callers[which], batch), len(sessions), self._order)

    def _timed(self, caller: Callable[[], Any], batch: int) -> float:
        if self._order["cold"]:
            from ortopt.evaluation.caches import empty_caches  # imports numpy

            empty_caches()
        started, start = time.perf_counter(), self._clock()
        for _ in range(batch):
            caller()
        seconds = self._clock() - start
        if self._order["trace"]:
            _since(started, self._timeline, "call", "run")
        return seconds / batch


def _caller(session: Any, feeds: dict[str, Any], quiet: Any, order: Order) -> Callable[[], Any]:
    """What calls a session: for numpy arrays, or with results that stay where they are."""
    if not (order["lever"] or {}).get("binding"):
        return lambda: session.run(None, feeds, quiet)
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name, "cpu")
    return lambda: session.run_with_iobinding(binding, quiet)


def _once(order: Order) -> dict[str, Any]:
    """Call a model, and store its results below ``results``.

    Returns:
        Types of the results by name, their bytes, seconds of a call, and whether numbers below the smallest normal one
        were computed, where this is known: the processor remembers it for one thread.
    """
    from ortopt.verification.input_sets import inputs_from, store_inputs

    options, quiet = _options(order)
    session = _opener(order, options)(order["models"][0])
    feeds = inputs_from(Path(order["inputs"][0]))
    call = _caller(session, feeds, quiet, order)
    call()
    flags = Underflow()
    start = time.perf_counter()
    call()
    seconds, underflows = time.perf_counter() - start, flags.seen()
    outputs = session.get_outputs()
    results = dict(zip((one.name for one in outputs), session.run(None, feeds, quiet), strict=True))
    store_inputs(results, Path(order["results"]))
    return {
        "types": {one.name: one.type for one in outputs},
        "bytes": sum(getattr(value, "nbytes", 0) for value in results.values()),
        "seconds": seconds,
        "underflows": underflows if order["threads"] == 1 else None,
    }


class Underflow:
    """Whether this thread has computed numbers below the smallest normal one since this was made (C's ``fenv.h``)."""

    def __init__(self) -> None:
        self._bit = {"x86_64": 0x10, "amd64": 0x10, "aarch64": 0x08, "arm64": 0x08}.get(platform.machine().lower())
        try:
            self._library = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
            self._library.feclearexcept(self._bit or 0)
        except (OSError, AttributeError):
            self._bit = None

    def seen(self) -> bool | None:
        """Whether it has; None where this processor, or its library, does not say."""
        return None if self._bit is None else bool(self._library.fetestexcept(self._bit))


def _in_turns(timed: Callable[[int, int], float], count: int, order: Order) -> list[list[float]]:
    """Seconds of a call of each session, after some calls that are not counted; of short calls of one alone, means."""
    once = min(timed(which, 1) for _ in range(_WARM_UP) for which in range(count))
    batch = max(1, int(_BATCH / max(once, 1e-7))) if count == 1 and not order["trace"] else 1
    samples: list[list[float]] = [[] for _ in range(count)]
    end = time.monotonic() + order["seconds"]
    while len(samples[0]) < order["repeat"] and (time.monotonic() < end or not samples[0]):
        turn = range(count)
        for which in turn if len(samples[-1]) % 2 == 0 else reversed(turn):
            samples[which].append(timed(which, batch))
    return samples


def _profiled(order: Order) -> dict[str, Any]:
    """Run a model in a session that records what each kernel takes.

    Args:
        order: ``bytes`` is the model's size, and ``loaded`` the file for the graph that ONNX Runtime makes of it.

    Returns:
        The file with the profile, and how many calls warmed it up.
    """
    from ortopt.runtime.instruments import Timeline
    from ortopt.verification.input_sets import inputs_from

    options, quiet = _options(order)
    loaded = Path(order["loaded"])
    options.optimized_model_filepath = str(loaded)
    if order["bytes"] > _LARGE:
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "loaded.bin")
    options.enable_profiling = True
    options.profile_file_prefix = str(loaded.with_name("profile"))
    (session,), _ = _opened(order, _opener(order, options), Timeline())
    feeds = inputs_from(Path(order["inputs"][0]))
    calls, end = 0, time.perf_counter() + order["seconds"]
    while calls < _WARM_UP + 1 or (calls < order["repeat"] + _WARM_UP and time.perf_counter() < end):
        session.run(None, feeds, quiet)
        calls += 1
    return {"profile": session.end_profiling(), "warm_up": _WARM_UP}


_TASKS: Final = {"time": _timed, "once": _once, "profile": _profiled}


def _options(order: Order) -> tuple[Any, Any]:
    """Options of sessions and of runs."""
    import onnxruntime

    from ortopt.analysis.providers import usable
    from ortopt.evaluation.sessions import quiet_options

    options, quiet = quiet_options(order["threads"])
    if not order["as_loaded"]:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in (order["lever"] or {}).get("config", ()):
        options.add_session_config_entry(key, value)
    for name, value in (order["lever"] or {}).get("attributes", ()):
        setattr(options, name, value)
    for provider in order["providers"]:
        usable(provider)  # loads the libraries that the provider looks for
    return options, quiet


def _opened(order: Order, opener: Callable[[str], Any], timeline: Any) -> tuple[list[Any], list[float]]:
    """A session of each model, and the seconds that it took."""
    sessions, seconds = [], []
    for path in order["models"]:
        start = time.perf_counter()
        sessions.append(opener(path))
        seconds.append(_since(start, timeline, "compile", "whole model"))
    return sessions, seconds


def _opener(order: Order, options: Any) -> Callable[[str], Any]:
    """What opens a session of ONNX Runtime, or of `ortopt.InferenceSession`; all that it imports is imported by now."""
    import onnxruntime

    from ortopt.evaluation.sessions import register_libraries

    libraries = list(order["libraries"])
    kind, more = onnxruntime.InferenceSession, {"enable_fallback": 0}
    if order["grouped"]:
        from ortopt.runtime.session import InferenceSession

        kind, more = InferenceSession, {"trace": order["trace"] is not None}

    def opener(path: str) -> Any:
        register_libraries(options, libraries)
        libraries.clear()  # options know them for the next session
        return kind(path, options, order["providers"], **more)

    return opener


def _since(start: float, timeline: Any, category: str, name: str) -> float:
    """Seconds since a moment, which are a step of the timeline."""
    end = time.perf_counter()
    timeline.add(category, name, start, end)
    return end - start


def _failure(error: Exception, *, opens: bool) -> dict[str, Any]:
    """The answer where a model does not run; whether a session of it can be opened."""
    text = " ".join(f"{error}".split())[:500]
    return {"error": text or type(error).__name__, "kind": type(error).__name__, "opens": opens}


def _difference(after: dict[str, int], before: dict[str, int], key: str, base: str) -> int | None:
    return after[key] - before[base] if key in after and base in before else None


if __name__ == "__main__":
    defer_sympy()
    requests, answers = take_streams()
    end_with(int(sys.argv[1]))
    with answers:
        answers.write(json.dumps(answer(json.load(requests))).encode())
