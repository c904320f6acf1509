"""How late a run stops that is cancelled, at instants spread over it: ``python -m fuzzing.latency``.

A run on a large graph is cancelled many times without being repeated: at each instant it forks, and the child is the
one that is cancelled. Instants are spread over CPU time, and so is the latency that counts: on a machine that others
use too, time on the clock says more about them. Verification, which waits for another process, is measured on the
clock, in runs of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from benchmarks.generators import GENERATORS
from ortopt.api import optimize
from ortopt.cancellation import CancellationToken
from ortopt.errors import OptimizationCancelled
from ortopt.serialization.checks.structure import validate

_SAMPLE_EVERY: Final = 0.01
_PLACES: Final = 3


@dataclass(frozen=True)
class Late:
    """What became of one cancellation.

    Attributes:
        cpu: Seconds of CPU time that the cancelled thread went on for.
        clock: Seconds on the clock until the caller had the error.
        at: Where the run was.
        meanwhile: Where it was longest from then on.
        wrong: What must not be, in words.
    """

    cpu: float
    clock: float
    at: str
    meanwhile: str = ""
    wrong: str = ""


def place(thread: int) -> str:
    """The innermost functions of ortopt's that a thread runs, innermost first.

    Args:
        thread: Its identifier.
    """
    frame = sys._current_frames().get(thread)
    names: list[str] = []
    while frame is not None and len(names) < _PLACES:
        if "ortopt" in frame.f_globals.get("__name__", ""):
            names.append(f"{frame.f_globals['__name__'].removeprefix('ortopt.')}.{frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(names)


class _Cancelling:
    """Sets a token, and sees how long the calling thread goes on.

    Args:
        token: What is set.
    """

    def __init__(self, token: CancellationToken) -> None:
        self._thread = threading.get_ident()
        self._clock_of_thread = time.pthread_getcpuclockid(self._thread)
        self._seen: Counter[str] = Counter()
        self._over = threading.Event()
        self._token = token
        self._begun: tuple[float, float, str] | None = None

    def begin(self) -> None:
        """Set the token now; any thread may call this."""
        self._begun = time.clock_gettime(self._clock_of_thread), time.perf_counter(), place(self._thread)
        self._token.cancel()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self._over.wait(_SAMPLE_EVERY):
            self._seen[place(self._thread)] += 1

    def end(self, wrong: str = "") -> Late | None:
        """How late it is; None if it was not cancelled."""
        cpu, clock = time.thread_time(), time.perf_counter()
        self._over.set()
        if self._begun is None:
            return None
        longest = self._seen.most_common(1)
        return Late(
            cpu - self._begun[0], clock - self._begun[1], self._begun[2], longest[0][0] if longest else "", wrong
        )


def forked(run: Callable[[CancellationToken], object], gap: float, seed: int) -> Iterator[Late]:
    """Cancel a run at many instants: a fork of it at each, in which nothing but this thread is alive.

    Args:
        run: Runs in this thread, and starts no other.
        gap: Seconds of CPU time between two instants, on average.
        seed: When.
    """
    draw = random.Random(seed)
    token = CancellationToken()
    cancelling: _Cancelling | None = None
    answers: list[Late] = []

    def fork(_signal: int, _frame: FrameType | None) -> None:
        nonlocal cancelling
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            os.dup2(writing, 3)
            cancelling = _Cancelling(token)
            cancelling.begin()
            return
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
        _, status = os.waitpid(child, 0)
        if answer:
            answers.append(Late(**json.loads(answer)))
        elif status:  # else it was over before it asked again
            answers.append(Late(0, 0, "", "", "the child died"))
        signal.setitimer(signal.ITIMER_PROF, draw.uniform(0.001, 2 * gap))

    before = signal.signal(signal.SIGPROF, fork)
    signal.setitimer(signal.ITIMER_PROF, draw.uniform(0.001, 2 * gap))
    try:
        run(token)
    except OptimizationCancelled as cancelled:
        assert cancelling is not None
        late = cancelling.end()
        assert late is not None
        os.write(3, json.dumps(asdict(late) | {"wrong": _wrong(cancelled, draw)}).encode())
        os._exit(0)
    finally:
        if cancelling is not None:
            os._exit(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    yield from answers


def _wrong(cancelled: OptimizationCancelled, draw: random.Random) -> str:
    """What is wrong with what was reached; looked at now and then, for that takes long."""
    if draw.random() > 0.1:
        return ""
    try:
        if cancelled.result is not None:
            validate(cancelled.result.model)
    except Exception as error:  # whatever it is, it must not be
        return f"{type(error).__name__}: {error}"
    return ""


def threaded(run: Callable[[CancellationToken], object], seconds: float, count: int, seed: int) -> Iterator[Late]:
    """Cancel runs from another thread, each in a process of its own, at instants spread over so many seconds.

    Args:
        run: What is run, `count` times.
        seconds: How long one takes.
        count: How often.
        seed: When.
    """
    draw = random.Random(seed)
    for number in range(count):
        delay = (number + draw.random()) / count * seconds
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            token = CancellationToken()
            cancelling = _Cancelling(token)
            threading.Timer(delay, cancelling.begin).start()
            try:
                with contextlib.suppress(OptimizationCancelled):
                    run(token)
                if (late := cancelling.end()) is not None:
                    os.write(writing, json.dumps(asdict(late)).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(child, 0)
        if answer:
            yield Late(**json.loads(answer))


def report(what: str, found: Sequence[Late], worst: int = 5) -> list[str]:
    """Percentiles, and the worst places.

    Args:
        what: What was cancelled.
        found: How late it was.
        worst: How many of the worst are told.

    Returns:
        What is wrong, in words.
    """
    if not found:
        return []
    for unit in ("cpu", "clock"):
        ordered = sorted(getattr(one, unit) * 1000 for one in found)
        shares = "  ".join(f"p{p} {ordered[min(len(ordered) * p // 100, len(ordered) - 1)]:.0f}" for p in (50, 90, 99))
        print(f"{what}: {len(found)} cancelled; {unit}, ms: {shares}  most {ordered[-1]:.0f}", flush=True)
    for one in sorted(found, key=lambda late: -late.cpu)[:worst]:
        print(f"  {one.cpu * 1000:.0f} ms CPU, {one.clock * 1000:.0f} ms: cancelled in {one.at}; then {one.meanwhile}")
    return [f"{what}, cancelled in {one.at}: {one.wrong}" for one in found if one.wrong]


def measure(shape: str, nodes: int, *, gap: float, verified: int, seed: int, level: int = 3) -> list[str]:
    """Cancel loading and optimizing a graph, and its verification; print how late each stops.

    Args:
        shape: A generator's name.
        nodes: The graph's size.
        gap: See `forked`.
        verified: How many runs are cancelled with verification, and how many in it.
        seed: When.
        level: The level.

    Returns:
        What is wrong, in words.
    """
    with tempfile.TemporaryDirectory(prefix="ortopt-latency-") as folder:
        path = Path(folder) / f"{shape}.onnx"
        path.write_bytes(GENERATORS[shape](nodes).SerializeToString())
        found = list(forked(lambda token: optimize(path, level=level, verify=False, cancellation=token), gap, seed))
        wrong = report(f"{shape}, {nodes} nodes, load and optimize", found)
        if verified:
            started = time.perf_counter()
            if not os.fork():
                optimize(path, level=level)
                os._exit(0)
            os.wait()
            seconds = time.perf_counter() - started
            found = list(threaded(lambda token: _end(path, level, token), seconds, verified, seed))
            wrong += report(f"{shape}, {nodes} nodes, with verification", found)
    return wrong


def _end(path: Path, level: int, token: CancellationToken) -> None:
    optimize(path, level=level, cancellation=token)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 1 if anything is wrong.

    Args:
        arguments: The command line; the process's own if None.
    """
    parser = argparse.ArgumentParser(prog="python -m fuzzing.latency", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--shapes", default=",".join(GENERATORS), help="generators, by commas")
    parser.add_argument("--gap", type=float, default=0.4, help="seconds of CPU time between two cancellations")
    parser.add_argument("--verified", type=int, default=10, help="how many runs are cancelled with verification")
    parser.add_argument("--level", type=int, default=3)
    options = parser.parse_args(arguments)
    optimize(GENERATORS["stack"](100), level=options.level)  # what is imported once is no part of a run
    wrong: list[str] = []
    for shape in options.shapes.split(","):
        wrong += measure(
            shape, options.nodes, gap=options.gap, verified=options.verified, seed=options.seed, level=options.level
        )
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


__all__ = ["Late", "forked", "measure", "report", "threaded"]

if __name__ == "__main__":
    sys.exit(main())
