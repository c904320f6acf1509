"""Workers run models to verify them, in a child process (`ortopt.verification.worker`) or in this one."""

from __future__ import annotations

import contextlib
import functools
import json
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.evaluation.raw_tensors import Place
from ortopt.evaluation.sessions import BIG_GRAPH
from ortopt.serialization.scan import count_nodes
from ortopt.system import child_processes, memory
from ortopt.system.files import is_lack_of_room, no_room
from ortopt.verification import start
from ortopt.verification.worker import open_session, run_stored

PATIENCE: Final = 120.0
"""Seconds that any model may take to be loaded and run."""

_BYTES_PER_SECOND: Final = 10e6  # that large weights may take longer
_LARGE: Final = 1 << 30  # bytes of weights from which they are left where they are
_NODES_PER_SECOND: Final = 100.0  # that large graphs may take longer


class WorkerError(Exception):
    """A model could not be loaded or run; ``died`` if its process ended, ``late`` if it took too long."""

    def __init__(self, message: str, *, died: bool = False, late: bool = False) -> None:
        self.died = died
        self.late = late
        super().__init__(" ".join(message.split())[:500])


class Calls(NamedTuple):
    """How a session is called.

    Attributes:
        session: Its number, of those that stand beside each other; the last.
        times: How many times.
        cold: Whether the caches are emptied before.
    """

    session: int = -1
    times: int = 1
    cold: bool = False


ONE_CALL: Final = Calls()


class Deadline:
    """A point in time, some seconds from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until then; never quite 0."""
        return max(self._end - time.monotonic(), 0.001)

    @property
    def is_over(self) -> bool:
        """Whether it has passed."""
        return time.monotonic() >= self._end


class _Session(NamedTuple):
    """A session that has been asked for.

    Attributes:
        patience: Seconds that its model may take.
        runs: What it has been asked to run, and has not answered: the places of inputs and outputs.
    """

    patience: float
    runs: deque[tuple[Place, Place]]


class Worker:
    """A child process, which starts at once if it has not started yet, for sessions of one model after the other.

    It need not wait for anything: what it will be asked can be said before (`queue`, `follow`), and while an answer is
    looked at, it is busy with the next.

    Args:
        providers: Full names.
        token: Cancellation token; the process is ended when it is set.
        libraries: Shared libraries of ops that its models need.
        runtime: Another runtime than the one that is installed here.

    Attributes:
        patience: Seconds that its model may take, by its size.
        deadline: When it is ended.
        seconds: Seconds of the last opening of a session, or of the last run, measured in the process itself.
        processor_seconds: Seconds of processor time of the last run, of all threads, without reading and writing; of
            several times the mean.
        dead: Whether the process has ended, or was ended because it was late.
    """

    dead = False
    seconds = 0.0
    processor_seconds = 0.0

    def __init__(
        self,
        providers: Sequence[str],
        token: CancellationToken = NEVER,
        libraries: Sequence[str] = (),
        runtime: start.Runtime | None = None,
    ) -> None:
        self.patience = PATIENCE
        self.deadline = Deadline(self.patience)
        self._providers = list(providers)
        self._libraries = list(libraries)
        self._token = token
        self._memory = memory.remaining()
        self._child = child_processes.Conversation(start.process(runtime))
        self._sessions: deque[_Session] = deque()
        self._is_loading = False

    def open(
        self, model: Path, nbytes: int, deadline: Deadline | None, *, optimize: bool = False, beside: bool = False
    ) -> None:
        """Begin to make a session; whoever asks it something waits for that.

        Args:
            model: The file.
            nbytes: Its size, weights beside it included.
            deadline: None gives it time by its size.
            optimize: Whether ONNX Runtime optimizes it.
            beside: Whether it stands beside the sessions that are there, which are waited for, or in their place.
        """
        if beside:
            self.wait()
        self._sessions.clear()
        self.follow(model, nbytes, optimize=optimize, beside=beside)
        self._attend(deadline)

    def follow(
        self,
        model: Path,
        nbytes: int,
        *,
        optimize: bool,
        runs: Iterable[tuple[Place, Place]] = (),
        beside: bool = False,
    ) -> None:
        """Ask for a session behind all that has been asked for; `proceed` goes on to it.

        Args:
            model: The file.
            nbytes: Its size, weights beside it included.
            optimize: Whether ONNX Runtime optimizes it.
            runs: What is run there, as `queue` takes it.
            beside: Whether it stands beside the sessions that are there.
        """
        nodes = count_nodes(model, self._token)
        patience = PATIENCE + nbytes / _BYTES_PER_SECOND + nodes / _NODES_PER_SECOND
        self._child.ask(
            {
                "model": str(model),
                "providers": self._providers,
                "quiet": nodes > BIG_GRAPH,
                "optimize": optimize,
                "libraries": self._libraries,
                "large": nbytes > _LARGE,
                "memory": self._memory,
                "beside": beside,
            }
        )
        self._sessions.append(_Session(patience, deque()))
        self.queue(runs)

    def queue(self, runs: Iterable[tuple[Place, Place]], calls: Calls = ONE_CALL) -> None:
        """Ask a session for runs; `run` then only waits for the answers, in the same order.

        Args:
            runs: The places of inputs and outputs.
            calls: Which session, and how often.
        """
        for source, target in runs:
            self._child.ask([str(source), str(target), *calls])
            self._sessions[-1].runs.append((source, target))

    def proceed(self, deadline: Deadline | None) -> None:
        """Go on to the next session; what has not been asked of this one is of no interest.

        Args:
            deadline: None gives it time by its size.
        """
        self._skip()
        self._sessions.popleft()
        self._attend(deadline)

    def finish(self) -> bool:
        """Whether it has nothing to do any more, once what the only session was asked for has been answered."""
        if self.dead or len(self._sessions) > 1:
            return False
        with contextlib.suppress(WorkerError):
            self._skip()
        return not self.dead

    def _skip(self) -> None:
        """Read what the session has yet to answer."""
        if self._is_loading:
            with contextlib.suppress(WorkerError):
                self.wait()
        runs = self._sessions[0].runs
        while runs and not self.dead:
            runs.popleft()
            with contextlib.suppress(WorkerError):
                self._answer()

    def _attend(self, deadline: Deadline | None) -> None:
        self.__dict__.pop("_outputs", None)
        self._is_loading = True
        self.patience = self._sessions[0].patience
        self.deadline = deadline or Deadline(self.patience)

    @functools.cached_property
    def _outputs(self) -> list[tuple[str, str]]:
        """Waits for the session."""
        if not self._is_loading:
            raise WorkerError("it was not loaded")
        self._is_loading = False
        answer = self._answer()
        self.seconds = answer["seconds"]
        return [(name, type_) for name, type_ in answer["outputs"]]

    def wait(self) -> None:
        """Wait for the session, so that a run can be timed apart from it."""
        assert self._outputs is not None

    @property
    def names(self) -> list[str]:
        """The outputs' names."""
        return [name for name, _ in self._outputs]

    @property
    def types(self) -> list[str]:
        """The outputs' types, in ONNX's spelling."""
        return [type_ for _, type_ in self._outputs]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stop(self) -> None:
        """End the process, from any thread; whoever waits for an answer learns of its death."""
        self._child.process.kill()

    def close(self) -> None:
        """End the process, and let go of all that belongs to it."""
        child_processes.end(self._child.process)

    def run(self, source: Place, target: Place, calls: Calls = ONE_CALL) -> list[Any]:
        """Run the inputs in one place; the outputs are kept in the other.

        Args:
            source: The place of the inputs.
            target: The other one.
            calls: Which session, and how often.
        """
        self.wait()
        runs = self._sessions[0].runs
        if not runs:
            self.queue([(source, target)], calls)
        expected = runs.popleft()
        assert expected == (source, target), "not in the order in which it was asked"
        answer = self._answer()
        self.seconds, self.processor_seconds = answer["seconds"], answer["processor"]
        rows: list[Any] = answer["rows"]
        return rows

    def runtime(self, providers: Iterable[str] = ()) -> tuple[str, tuple[str, ...]]:
        """The name of the runtime that answers, with its release, and those of some providers that work there.

        Args:
            providers: Full names.

        Raises:
            WorkerError: It has none.
        """
        self._child.ask(" ".join(("runtime", *providers)))
        answer = self._answer()
        return answer["runtime"], tuple(answer["providers"])

    def release(self) -> None:
        """Let go of the session, and wait for that."""
        self._child.ask(None)
        self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._child.answer(self.deadline.left, self._token)
        self._token.check()
        if self._child.is_late:
            self.dead = True
            raise WorkerError(f"it took longer than {self.deadline.seconds:.0f} s", died=True, late=True)
        if not line:
            self.dead = True
            end = self._child.death()
            status = f"its process ended with {end}" if end.startswith("status") else f"it ended its process with {end}"
            raise WorkerError(status, died=True)
        answer: dict[str, Any] = json.loads(line)
        if "full" in answer:
            raise no_room(answer["full"])
        if "failed" in answer:
            raise WorkerError(answer["failed"])
        return answer


class InProcessWorker(Worker):
    """A session of one model in this process; one thread, as starting more takes longer than small models do."""

    def __init__(
        self, providers: Sequence[str], token: CancellationToken = NEVER, libraries: Sequence[str] = ()
    ) -> None:
        self.patience = PATIENCE
        self.deadline = Deadline(self.patience)
        self._providers = list(providers)
        self._libraries = list(libraries)
        self._token = token
        self._session: Any = None

    def open(
        self, model: Path, nbytes: int, deadline: Deadline | None, *, optimize: bool = False, beside: bool = False
    ) -> None:
        """Remember what to open."""
        assert not beside, "it has one session"
        self.__dict__.pop("_outputs", None)
        self._session = None
        self.deadline = deadline or self.deadline
        self._model, self._optimize = model, optimize

    @functools.cached_property
    def _outputs(self) -> list[tuple[str, str]]:
        quiet = count_nodes(self._model) > BIG_GRAPH
        started = time.perf_counter()
        try:
            self._session = open_session(
                str(self._model), self._providers, quiet, optimize=self._optimize, libraries=self._libraries, threads=1
            )
        except Exception as error:
            raise WorkerError(str(error)) from error
        self.seconds = time.perf_counter() - started
        return [(output.name, output.type) for output in self._session.get_outputs()]

    def queue(self, runs: Iterable[tuple[Place, Place]], calls: Calls = ONE_CALL) -> None:
        """Nothing runs before somebody waits for it."""

    def finish(self) -> bool:
        """It is never busy."""
        return True

    def stop(self) -> None:
        """Nothing can stop it."""

    def close(self) -> None:
        """Let go of the session."""
        self._session = None

    def run(self, source: Place, target: Place, calls: Calls = ONE_CALL) -> list[Any]:
        """Run the inputs in one place; the outputs are kept in the other."""
        assert not calls.cold, "it empties no caches"
        self.wait()
        started = time.perf_counter()
        try:
            rows, self.processor_seconds = run_stored(self._session, source, target, calls.times)
        except Exception as error:
            if isinstance(error, OSError) and is_lack_of_room(error):
                raise no_room(error) from error
            raise WorkerError(str(error)) from error
        self.seconds = time.perf_counter() - started
        return rows
