"""Runs models one after the other, in a worker that is used again as long as it lives."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import onnx_ir as ir

from ortopt.analysis.providers import CPU
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import OptimizationCancelled, VerificationError
from ortopt.evaluation.raw_tensors import MemoryPlace, Place
from ortopt.serialization.save import save
from ortopt.serialization.scan import external_files
from ortopt.serialization.stored_weights import StoredWeights
from ortopt.system.files import temporary_folder
from ortopt.verification.input_sets import InputSet, elements, in_memory, is_finite, store_inputs
from ortopt.verification.inputs import Inputs
from ortopt.verification.process import Deadline, InProcessWorker, Worker, WorkerError
from ortopt.verification.start import Runtime
from ortopt.verification.worker import restore

Source: TypeAlias = str | os.PathLike[str] | ir.Model
"""A model, or the path of its file."""

_ONE_FILE: Final = 3 << 29
"""Bytes of weights from which models are written beside their weights, which they share."""


@dataclass(eq=False)
class ModelRunner:
    """Runs the models of one verification.

    Attributes:
        folder: A folder for models, inputs and outputs.
        providers: Full names.
        token: Cancellation token.
        in_process: Whether models run in this process.
        libraries: Shared libraries of ops that the models need.
        runtime: Another runtime than the one that is installed here.
        deadline: When a model that runs is ended; None gives each model time by its size.
        attempts: How many input sets have been run with `attempt`.
    """

    folder: Path
    providers: tuple[str, ...]
    token: CancellationToken = NEVER
    _: KW_ONLY
    in_process: bool = False
    libraries: tuple[str, ...] = ()
    runtime: Runtime | None = None

    def __post_init__(self) -> None:
        self.deadline: Deadline | None = None
        self.attempts = 0
        self._idle: Worker | None = None
        self._running: Worker | None = None
        self._stopped = False
        self._weights = StoredWeights(self.folder)

    def start(self) -> None:
        """Let the worker start, unless there is one: in a thread beside busy ones that takes ten times as long."""
        if self._idle is None:
            arguments = self.providers, self.token, self.libraries
            self._idle = InProcessWorker(*arguments) if self.in_process else Worker(*arguments, self.runtime)

    def stop(self) -> None:
        """End what runs in another thread."""
        self._stopped = True
        if self._running is not None:
            self._running.stop()

    def close(self) -> None:
        """End the worker; another starts when one is needed."""
        if self._idle is not None:
            self._idle.close()
            self._idle = None

    @contextlib.contextmanager
    def worker(self, source: Source, label: str, *, optimize: bool = False) -> Iterator[Worker]:
        """A worker that makes a session of a model: the last one, if it still lives."""
        path = self.written(source, label)
        self.start()
        worker, self._idle = self._idle, None
        assert worker is not None
        self._running = worker
        try:
            worker.open(path, nbytes(source), self.deadline, optimize=optimize)
            if self._stopped:
                worker.stop()
            yield worker
            is_free = worker.finish()
        except OptimizationCancelled:
            worker.stop()
            self._idle = worker  # `close` waits for its end
            raise
        except BaseException:
            worker.close()
            raise
        if self._idle is not None or not is_free:
            worker.close()
        else:
            self._idle = worker

    def written(self, source: Source, label: str) -> Path:
        """The file of a model: one of a few sessions, in one piece if it is not too large, not waiting for the disk."""
        if not isinstance(source, ir.Model):
            return Path(source)
        path = self.folder / f"{label}.onnx"
        if nbytes(source) > _ONE_FILE:
            self._weights.save(source, path, self.token)
        else:
            with path.open("wb") as file:
                save(source, file, token=self.token)
        return path

    def place(self, label: str) -> Place:
        """A new place for inputs or outputs, which the worker reads and writes."""
        return MemoryPlace() if self.in_process else self.folder / label

    def attempt(self, worker: Worker, inputs: Inputs, label: str = "") -> InputSet:
        """Run inputs, and keep the outputs as an input set of the original."""
        source = self.place(f"in{self.attempts}")
        target = self.place(f"original{self.attempts}")
        self.attempts += 1
        store_inputs(inputs, source)
        rows = worker.run(source, target)
        input_set = InputSet(source, target, rows, label, worker.seconds, elements(inputs))
        input_set.finite = is_finite(inputs)
        return input_set

    def outputs(self, model: Source, inputs: Inputs) -> dict[str, Any]:
        """Run a model, without optimization.

        Args:
            model: A path or a model.
            inputs: Arrays by name.

        Returns:
            The outputs by name; bfloat16 and the like as their bits.

        Raises:
            VerificationError: It cannot be loaded or run.
        """
        try:
            with self.worker(model, "model") as worker:
                input_set = self.attempt(worker, inputs)
                names = worker.names
        except WorkerError as error:
            raise VerificationError(str(error)) from error
        return {
            name: in_memory(restore(input_set.target, row)) for name, row in zip(names, input_set.rows, strict=True)
        }


def nbytes(source: Source) -> int:
    """About how large a model is: its files, or its weights."""
    if isinstance(source, ir.Model):
        return sum(
            tensor.nbytes for value in source.graph.initializers.values() if (tensor := value.const_value) is not None
        )
    path = Path(source)
    files = {path, *external_files(path)}
    return sum(file.stat().st_size for file in files if file.is_file())


def outputs_of(model: Source, inputs: Inputs, *, providers: Sequence[str] = (CPU,)) -> dict[str, Any]:
    """Run one model, in a process of its own, without optimization.

    Args:
        model: A path or a model.
        inputs: Arrays by name.
        providers: Full names; the CPU provider is the last resort.

    Returns:
        The outputs by name; bfloat16 and the like as their bits.

    Raises:
        VerificationError: It cannot be loaded or run.
    """
    with temporary_folder("ortopt-run-") as name:
        runner = ModelRunner(Path(name), tuple(dict.fromkeys((*providers, CPU))))
        with contextlib.closing(runner):
            return runner.outputs(model, inputs)
