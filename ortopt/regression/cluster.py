"""Models on the workers of a Dask scheduler (extra ``cluster``): what a lost worker had is run again by another.

Each worker of Dask runs models in a process of its own, as `ortopt.regression.pool` does: a model that crashes costs
neither the worker nor the others. A model goes by path where every worker sees the same file there, else by content
through the scheduler.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ortopt.errors import InvalidModelError, OrtoptError, UsageError
from ortopt.regression.facts import hash_of
from ortopt.regression.model_run import BROKEN, Answer
from ortopt.regression.pool import Job, Worker
from ortopt.terminal_text import one_line, quoted

LIMIT: Final = 64 << 20
"""Bytes of a model, external data included, that go through the scheduler; larger ones need a shared file system."""

_CONNECT: Final = 10.0  # seconds

_here = threading.local()
"""The process of each thread of a Dask worker."""


class Cluster:
    """Runs jobs on the workers of a Dask scheduler; takes the place of `ortopt.regression.pool.Pool`.

    Args:
        address: The scheduler's, e.g. ``tcp://10.0.0.1:8786``.
        timeout: Seconds that a model may take; None is no limit.
        limit: Bytes of memory that a model may take; None leaves that to Dask.

    Raises:
        UsageError: dask.distributed is not installed, or there is no scheduler, or no worker.
    """

    def __init__(self, address: str, *, timeout: float | None = None, limit: int | None = None) -> None:
        try:
            import distributed
        except ImportError:
            raise UsageError("--dask needs dask.distributed: pip install 'ortopt[cluster]'") from None
        try:
            self._client = distributed.Client(address, timeout=_CONNECT, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(f"--dask: no scheduler answers at {quoted(address)}: {one_line(error)}") from error
        self._timeout = timeout
        self._limit = limit

    def run(self, jobs: Sequence[Job], done: Callable[[Job, Answer], None], begun: Callable[[Job], None]) -> None:
        """Run all jobs.

        Args:
            jobs: The models, the dearest first.
            done: Called with each model's answer.
            begun: Called when a model is handed over.

        Raises:
            UsageError: There is no worker.
        """
        from distributed import as_completed

        try:
            if not self._client.scheduler_info()["workers"]:
                raise UsageError("--dask: the scheduler has no workers")
            by_future = {}
            seen = self._seen(jobs)
            for number, job in enumerate(jobs):
                begun(job)
                order = {**job.order, "memory": self._limit}
                try:
                    content = _content(job, seen)
                except (OSError, OrtoptError) as error:
                    done(job, Answer({}, one_line(error), BROKEN))
                    continue
                future = self._client.submit(
                    run_here,
                    order,
                    content,
                    self._timeout,
                    pure=False,
                    priority=-number,
                    key=f"ortopt-{os.urandom(8).hex()}",
                )
                by_future[future] = job
            for future in as_completed(list(by_future), loop=self._client.loop):
                done(by_future[future], _answer(future))
        finally:
            self._client.close()

    def _seen(self, jobs: Sequence[Job]) -> frozenset[str]:
        """The paths at which every worker sees a file of the size that it has here."""
        sizes = {}
        for job in jobs:
            path = job.order["path"]
            if path is not None and Path(path).is_file():
                sizes[path] = _identity(path)
        answers = self._client.run(_identities, list(sizes)).values()
        return frozenset(path for path, known in sizes.items() if all(answer.get(path) == known for answer in answers))


def _identity(path: str) -> tuple[int, str]:
    """The size of a file, and the hash of its contents."""
    return Path(path).stat().st_size, hash_of([Path(path)])


def _identities(paths: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Of those paths at which this machine has a file: what it is."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            found[path] = _identity(path)
    return found


def _content(job: Job, seen: frozenset[str]) -> dict[str, bytes] | None:
    """The files of a model that goes by content, by their paths below its folder; None where its path does.

    Raises:
        InvalidModelError: It is too large, or cannot be read.
    """
    path = job.order["path"]
    if path is None or path in seen:
        return None
    from ortopt.serialization.load import SOURCE_KEY, load

    model = Path(path)
    data = load(model).meta[SOURCE_KEY].data
    folder = Path(os.path.realpath(model.parent))
    names = {model.name: model, **{str(Path(file).relative_to(folder)): Path(file) for file in data}}
    nbytes = sum(file.stat().st_size for file in names.values())
    if nbytes > LIMIT:
        raise InvalidModelError(
            f"{quoted(path)}: the workers do not see it there, and {nbytes} bytes are more than the {LIMIT} that go"
            " through the scheduler"
        )
    content = {name: file.read_bytes() for name, file in names.items()}
    inputs = job.order["inputs"]
    if inputs is not None:
        content["ortopt-inputs.npz"] = Path(inputs).read_bytes()
    return content


def run_here(order: Mapping[str, Any], content: Mapping[str, bytes] | None, timeout: float | None) -> Answer:
    """Run a model on a worker of Dask, in a process of its own that waits for the next one.

    Args:
        order: As `ortopt.regression.model_run.run` takes it.
        content: The model's files, or None where its path does.
        timeout: Seconds that it may take.
    """
    worker: Worker | None = getattr(_here, "worker", None)
    if worker is None:
        worker = _here.worker = Worker(timeout)
    if content is None:
        return worker.run(order)
    with tempfile.TemporaryDirectory(prefix="ortopt-check-") as folder:
        for name, data in content.items():
            file = Path(folder, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        inputs = str(Path(folder, "ortopt-inputs.npz")) if "ortopt-inputs.npz" in content else None
        path = str(Path(folder, Path(order["path"]).name))
        return worker.run({**order, "path": path, "inputs": inputs})


def _answer(future: Any) -> Answer:
    """What came of a model; of one that took every worker with it, that."""
    try:
        answer: Answer = future.result()
    except Exception as error:  # Dask raises what it likes, KilledWorker among it
        return Answer({}, f"the cluster lost it: {one_line(error)}", BROKEN)
    return answer
