"""Processes that run models, reused from model to model, as many at a time as memory allows."""

from __future__ import annotations

import functools
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import msgspec

from ortopt.regression.model_run import BROKEN, LATE, NO_MEMORY, Answer
from ortopt.system import child_processes, memory
from ortopt.system.threads import BackgroundThread

_MODULE: Final = "ortopt.regression.worker"

_MODELS_A_PROCESS: Final = 100
"""Models after which a process is replaced: what libraries keep of each would add up."""

_BASE: Final = 400 << 20
_COPIES: Final = 4
"""Bytes of a run, about: those of Python and ONNX Runtime, and copies of the model."""

_BETWEEN_LOOKS: Final = 0.2
"""Seconds between two moments at which Ctrl-C is heard."""


def need(nbytes: int) -> int:
    """The bytes of memory that a model needs, about.

    Args:
        nbytes: Its size.
    """
    return _BASE + _COPIES * nbytes


class Worker:
    """A child process that runs one model after the other; it starts when it is first asked.

    Args:
        timeout: Seconds that a model may take; None is no limit.
    """

    def __init__(self, timeout: float | None = None) -> None:
        self._timeout = timeout
        self._child: child_processes.Conversation | None = None
        self._models = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, order: Mapping[str, Any]) -> Answer:
        """The answer to an order; a process that dies or takes too long is one, too.

        Args:
            order: As `ortopt.regression.model_run.run` takes it.
        """
        if self._models >= _MODELS_A_PROCESS:
            self.close()
        if self._child is None:
            self._child, self._models = child_processes.Conversation(child_processes.spawn(_MODULE)), 0
        self._models += 1
        child = self._child
        child.ask(order)
        line = child.answer(self._timeout)
        if line.endswith(b"\n"):
            answer = msgspec.convert(json.loads(line), Answer)
            if answer.kind == NO_MEMORY:
                self.close()  # what is left of the model is in the way of the next one
            return answer
        death = child.death()
        self.close()
        if child.is_late:
            return Answer({}, f"it took longer than {self._timeout:g} s (see --timeout)", LATE)
        return Answer({}, f"its process ended with {death}", BROKEN)

    def stop(self) -> None:
        """End the process, from any thread; whoever waits for an answer is told of its death."""
        child = self._child
        if child is not None:
            child.process.kill()

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            child_processes.end(self._child.process)
            self._child = None


@dataclass(frozen=True, slots=True)
class Job:
    """A model that waits for its turn.

    Attributes:
        key: What the caller knows it by.
        order: As `ortopt.regression.model_run.run` takes it, without a limit of memory.
        nbytes: The size of the model.
    """

    key: int
    order: Mapping[str, Any]
    nbytes: int = 0


class Pool:
    """Several workers, which share the memory: a large model waits until there is enough of it.

    Args:
        jobs: How many models run at a time, at most.
        timeout: Seconds that a model may take; None is no limit.
        limit: Bytes that a model may take; None is its share of the budget, and all of it where that does not do.
        budget: Bytes that all may take together; None is what the machine offers.
    """

    def __init__(
        self, jobs: int, *, timeout: float | None = None, limit: int | None = None, budget: int | None = None
    ) -> None:
        self._jobs = jobs
        self._timeout = timeout
        self._limit = limit
        self._budget = budget if budget is not None else memory.default_limit()
        self._state = threading.Condition()
        self._waiting: deque[tuple[Job, int | None]] = deque()
        self._reserved: list[int] = []
        self._running = 0
        self._stopped = False
        self._workers: list[Worker] = []
        self.most_at_once = 0

    def run(self, jobs: Sequence[Job], done: Callable[[Job, Answer], None], begun: Callable[[Job], None]) -> None:
        """Run all; Ctrl-C ends all.

        Args:
            jobs: The models, in the order in which they begin.
            done: Called with each model's answer, in one thread at a time.
            begun: Called when a model's turn comes, in one thread at a time.

        Raises:
            BaseException: What ``done`` or ``begun`` raised, or KeyboardInterrupt.
        """
        self._waiting.extend((job, self._share(job)) for job in jobs)
        failures: list[BaseException] = []
        threads = [
            BackgroundThread(functools.partial(self._work, done, begun, failures), f"ortopt-check-{number}")
            for number in range(min(self._jobs, len(jobs)))
        ]
        try:
            for thread in threads:
                thread.join()
        finally:
            self._stop()
            for thread in threads:
                thread.join()
        if failures:
            raise failures[0]

    def _share(self, job: Job) -> int | None:
        """The bytes that a model may take at first; None where nothing is limited."""
        if self._limit is not None:
            return self._limit
        if self._budget is None:
            return None
        least = max(self._budget // self._jobs, memory.LEAST)
        return min(self._budget, max(least, need(job.nbytes)))

    def _work(
        self, done: Callable[[Job, Answer], None], begun: Callable[[Job], None], failures: list[BaseException]
    ) -> None:
        with Worker(self._timeout) as worker:
            self._workers.append(worker)
            try:
                while (taken := self._next()) is not None:
                    self._turn(worker, *taken, done, begun)
            except BaseException as error:  # whatever the caller's functions raise is the caller's
                failures.append(error)
                self._stop()

    def _turn(
        self,
        worker: Worker,
        job: Job,
        share: int | None,
        done: Callable[[Job, Answer], None],
        begun: Callable[[Job], None],
    ) -> None:
        try:
            with self._state:
                begun(job)
            answer = worker.run({**job.order, "memory": share})
        finally:
            with self._state:
                self._running -= 1
                if share is not None:
                    self._reserved.remove(share)
                self._state.notify_all()
        with self._state:
            if self._stopped:
                return
            alone = self._budget
            if answer.kind == NO_MEMORY and self._limit is None and alone is not None and share != alone:
                self._waiting.append((job, alone))  # its share does not do: it gets all of the memory, alone
                self._state.notify_all()
                return
            done(job, answer)

    def _next(self) -> tuple[Job, int | None] | None:
        """The next model whose share is free; None when there is none left."""
        with self._state:
            while not self._stopped:
                if self._waiting and self._fits(self._waiting[0][1]):
                    job, share = self._waiting.popleft()
                    self._running += 1
                    self.most_at_once = max(self.most_at_once, self._running)
                    if share is not None:
                        self._reserved.append(share)
                    return job, share
                if not self._waiting and not self._running:  # one that runs may have to run again
                    self._state.notify_all()
                    return None
                self._state.wait(_BETWEEN_LOOKS)
            return None

    def _fits(self, share: int | None) -> bool:
        return not self._running or share is None or self._budget is None or sum(self._reserved) + share <= self._budget

    def _stop(self) -> None:
        with self._state:
            self._stopped = True
            self._waiting.clear()
            self._state.notify_all()
        for worker in list(self._workers):
            worker.stop()
