"""The result against the original: both run by ONNX Runtime without optimization, on the same seeded inputs.

A result is *verified* when on every input set that was run its outputs agree with the original's, by the measure of
`ortopt.verification_comparison`: floats within a tolerance by dtype, scaled to the output; all else exactly.

The models run in processes of their own (`ortopt.verification_worker`): one that kills its process is a finding.
"""

from __future__ import annotations

import functools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis.providers import CPU, check_distributions, usable
from ortopt.errors import UsageError
from ortopt.evaluate import BIG_GRAPH, count_nodes
from ortopt.graph.load import load
from ortopt.graph.save import save
from ortopt.verification_comparison import Comparison, OutputRow, tolerances, worst_of
from ortopt.verification_inputs import Inputs, attempts, draw_inputs
from ortopt.verification_worker import open_session, restore, run_stored, store

Source = str | os.PathLike[str] | ir.Model

_SECOND_SET_WITHIN = 3.0  # seconds that the first may take for another set, of other sizes, to be run too


@dataclass(frozen=True, slots=True)
class Verification:
    """How a result compares with its original.

    Attributes:
        status: ``impossible`` where the original cannot be run here.
        reason: Why it differs or is impossible, and what was left out of the comparison; one line.
        worst: The worst error of all outputs, relative to the output's scale.
        worst_output: The name of that output.
        outputs: A row for each output.
        input_sets: How many input sets were compared.
        attempts: How many were tried on the original.
        random: Whether the model is random, so that only dtypes and shapes were compared.
        seconds: How long it took.
    """

    status: Literal["verified", "differs", "impossible"]
    reason: str = ""
    worst: float = 0.0
    worst_output: str = ""
    outputs: tuple[OutputRow, ...] = ()
    input_sets: int = 0
    attempts: int = 0
    random: bool = False
    seconds: float = 0.0


_TRIES_FOR_A_SECOND_SET = 3
_TOGETHER_BYTES = 1 << 29

_PATIENCE = 120.0  # seconds that any model may take to be loaded and run
_BYTES_PER_SECOND = 10e6  # that large weights may take longer
_NODES_PER_SECOND = 100.0  # that large graphs may take longer
_TIMES_THE_ORIGINAL = 20.0  # that the result may take longer


class _WorkerError(Exception):
    """A model that could not be loaded or run; ``died`` if it took its process with it."""

    def __init__(self, message: str, *, died: bool = False, late: bool = False) -> None:
        self.died = died
        self.late = late
        super().__init__(" ".join(message.split())[:500])


def verify(
    original: Source,
    result: Source,
    *,
    inputs: Mapping[str, Any] | None = None,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    providers: Sequence[str] = (CPU,),
    timeout: float | None = None,
    in_process: bool = False,
) -> Verification:
    """Run both models on the same inputs and compare.

    Args:
        original: A path or a model.
        result: A path or a model, with the same inputs and outputs.
        inputs: Arrays by input name; None draws them (see `ortopt.verification_inputs`).
        seed: The seed of what is drawn.
        sizes: Sizes of symbolic dimensions of the inputs.
        providers: Full names; the CPU provider is the last resort.
        timeout: Seconds after which it is given up as impossible. None gives the original 120 s and more if it is
            large, and the result 20 times longer than the original took besides: one that takes longer differs if the
            original was quick.
        in_process: Run in this process: quicker, but a model that kills its process kills this one, and nothing can
            stop it. For models that one has written oneself.

    Raises:
        UsageError: A provider does not work here, or ``inputs`` lacks an input of the model.
        InvalidModelError: A path holds no model.
    """
    for provider in providers:
        works, reason = usable(provider)
        if not works:
            raise UsageError(f"{provider} does not work here: {reason}")
    check_distributions()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ortopt-verify-") as name:
        run = _Run(Path(name), tuple(dict.fromkeys((*providers, CPU))), timeout)
        run.in_process = in_process
        found = run.compare(original, result, None if inputs is None else dict(inputs), seed, dict(sizes or {}))
    return _with_seconds(found, time.monotonic() - start)


def _with_seconds(found: Verification, seconds: float) -> Verification:
    values = {field: getattr(found, field) for field in Verification.__dataclass_fields__}
    return Verification(**{**values, "seconds": seconds})


class _Run:
    """One verification: its folder, its deadline."""

    def __init__(self, folder: Path, providers: tuple[str, ...], timeout: float | None) -> None:
        self._folder = folder
        self._providers = providers
        self._deadline = None if timeout is None else _Deadline(timeout)
        self._tried = 0
        self.in_process = False

    def compare(
        self, original: Source, result: Source, inputs: Inputs | None, seed: int, sizes: dict[str, int]
    ) -> Verification:
        model = original if isinstance(original, ir.Model) else load(original)
        random = _is_random(model)
        if inputs is not None:
            missing = [one.name for one in model.graph.inputs if not one.is_initializer() and one.name not in inputs]
            if missing:
                raise UsageError(f"the inputs lack {', '.join(str(one) for one in missing)}")
        with ExitStack() as stack:
            try:
                start = time.monotonic()
                before = stack.enter_context(self._worker(original, "original"))
                # The result's session is made while the original runs, unless both together are large.
                after = stack.enter_context(self._worker(result, "result")) if self._small(original, result) else None
                sets = self._run_original(before, model, inputs, seed, sizes)
                if after is None:
                    before.close()
                    after = stack.enter_context(self._worker(result, "result"))
            except _WorkerError as error:
                return Verification("impossible", f"the original does not run here: {error}", attempts=self._tried)
            except UsageError as error:
                return Verification("impossible", f"no inputs can be drawn: {error}", attempts=self._tried)
            took = time.monotonic() - start
            if self._deadline is None:
                after.deadline = _Deadline(after.patience + _TIMES_THE_ORIGINAL * took)
            return self._against(after, before, sets, took, Comparison(tolerances(model), not random))

    def _against(
        self, after: _Worker, before: _Worker, sets: list[_Set], took: float, comparison: Comparison
    ) -> Verification:
        """The result on the input sets on which the original has run."""
        try:
            if after.names != before.names:
                return Verification("differs", f"the outputs are {after.names} instead of {before.names}")
            rows = self._compare_sets(after, sets, before.types, comparison)
        except _WorkerError as error:
            if error.late and (self._deadline is not None or took * _TIMES_THE_ORIGINAL > _PATIENCE):
                return Verification("impossible", f"the result: {error}", attempts=self._tried)
            if error.late:
                reason = f"the original ran in {took:.1f} s, the result: {error}"
                return Verification("differs", reason, attempts=self._tried)
            return Verification("differs", f"the original runs, the result does not: {error}", attempts=self._tried)
        return self._verdict(rows, not comparison.contents, len(sets))

    @staticmethod
    def _small(*sources: Source) -> bool:
        return sum(_nbytes(source) for source in sources) < _TOGETHER_BYTES

    def _verdict(self, rows: list[OutputRow], random: bool, sets: int) -> Verification:
        worst = worst_of(rows, "")
        note = "the model is random: only dtypes and shapes were compared" if random else ""
        wrong = [row for row in rows if not row.agrees]
        reason = f"output {worst.name!r}: {worst.detail}" if wrong else note
        status: Literal["verified", "differs"] = "differs" if wrong else "verified"
        return Verification(status, reason, worst.worst, worst.name, tuple(rows), sets, self._tried, random)

    def _worker(self, source: Source, label: str) -> _Worker:
        if isinstance(source, ir.Model):
            path = self._folder / f"{label}.onnx"
            save(source, path)
        else:
            path = Path(source)
        if self.in_process:
            return _Here(path, self._folder, self._providers, self._deadline)
        return _Worker(path, self._folder, self._providers, self._deadline)

    def _run_original(
        self, worker: _Worker, model: ir.Model, inputs: Inputs | None, seed: int, sizes: dict[str, int]
    ) -> list[_Set]:
        """Input sets on which the original runs, with its outputs: the first that works, and one of other sizes."""
        worker.wait()
        if inputs is not None:
            return [self._try(worker, inputs)]
        found: list[_Set] = []
        poor: list[_Set] = []
        first_error: _WorkerError | None = None
        seen: set[tuple[Any, ...]] = set()
        first = 0
        for how in attempts():
            drawn = draw_inputs(model, seed=seed, sizes=sizes, how=how)
            contents = tuple(_digest(value) for value in drawn.values())
            if contents in seen:
                continue
            seen.add(contents)
            if found and self._tried >= first + _TRIES_FOR_A_SECOND_SET:
                break
            start = time.monotonic()
            try:
                one = self._try(worker, drawn)
            except _WorkerError as error:
                first_error = first_error or error
                if error.died or error.late:
                    raise
                continue
            (found if one.says_something else poor).append(one)
            first = first or self._tried
            quick = time.monotonic() - start < _SECOND_SET_WITHIN
            if len(found) == 2 or (found and not quick):
                break
            if len(poor) > 3:
                break
        if not found and not poor:
            raise first_error or _WorkerError("no inputs")
        return found or poor[:1]

    def _try(self, worker: _Worker, inputs: Inputs) -> _Set:
        source = self._folder / f"in{self._tried}"
        target = self._folder / f"original{self._tried}"
        self._tried += 1
        source.mkdir()
        rows = {name: store(source, f"in{i}", value) for i, (name, value) in enumerate(inputs.items())}
        (source / "values.json").write_text(json.dumps(rows), encoding="utf-8")
        outputs = worker.run(source, target)
        return _Set(source, target, outputs)

    def _compare_sets(
        self, worker: _Worker, sets: list[_Set], types: Sequence[str], comparison: Comparison
    ) -> list[OutputRow]:
        """A row for each output, of the input set on which it differs most."""
        compared: dict[str, list[OutputRow]] = {name: [] for name in worker.names}
        for i, one in enumerate(sets):
            target = self._folder / f"result{i}"
            rows = worker.run(one.source, target)
            for name, type_, expected, got in zip(worker.names, types, one.rows, rows, strict=True):
                row = comparison.of(name, type_, restore(one.target, expected), restore(target, got))
                compared[name].append(row)
        for name, type_, other in zip(worker.names, types, worker.types, strict=True):
            if type_ != other:
                detail = f"the type is {other} instead of {type_}"
                compared[name].append(OutputRow(name, math.inf, 0.0, False, detail))
        return [worst_of(rows, name) for name, rows in compared.items()]


class _Set:
    """An input set on disk, and what the original answered."""

    def __init__(self, source: Path, target: Path, rows: list[Any]) -> None:
        self.source = source
        self.target = target
        self.rows = rows

    @functools.cached_property
    def says_something(self) -> bool:
        """Whether most numbers of the outputs are numbers: NaN against NaN proves little."""
        arrays = [one for row in self.rows if isinstance(one := restore(self.target, row), np.ndarray)]
        floats = [one for one in arrays if one.dtype.kind == "f" and one.size]
        return all(float(np.isnan(one).mean()) <= 0.5 for one in floats)


class _Deadline:
    """Some seconds from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds; never quite 0."""
        return max(self._end - time.monotonic(), 0.001)


class _Worker:
    """A child process with a session of one model.

    Attributes:
        patience: Seconds that it may take, by its size.
        deadline: When it is ended.
    """

    def __init__(self, model: Path, folder: Path, providers: Sequence[str], deadline: _Deadline | None) -> None:
        nodes = count_nodes(model)
        self.patience = _PATIENCE + _nbytes(model) / _BYTES_PER_SECOND + nodes / _NODES_PER_SECOND
        self.deadline = deadline or _Deadline(self.patience)
        big = "1" if nodes > BIG_GRAPH else "0"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ortopt.verification_worker", model, folder, ",".join(providers), big],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )

    @functools.cached_property
    def _outputs(self) -> list[tuple[str, str]]:
        """Waits for the session."""
        return [(name, type_) for name, type_ in self._answer()["outputs"]]

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

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # what was not written has nowhere to go
                    continue

    def run(self, source: Path, target: Path) -> list[Any]:
        """Run the inputs in one folder; the outputs are stored in the other."""
        stdin = self._process.stdin
        assert stdin is not None
        self.wait()
        try:
            stdin.write(json.dumps([source.name, target.name]) + "\n")
            stdin.flush()
        except OSError as error:
            raise self._death() from error
        rows: list[Any] = self._answer()["rows"]
        return rows

    def _answer(self) -> dict[str, Any]:
        late = threading.Event()

        def stop() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(self.deadline.left, stop)
        timer.daemon = True
        timer.start()
        try:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if late.is_set():
            raise _WorkerError(f"it took longer than {self.deadline.seconds:.0f} s", died=True, late=True)
        if not line:
            raise self._death()
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise _WorkerError(answer["failed"])
        return answer

    def _death(self) -> _WorkerError:
        status = self._process.wait()
        if status < 0:
            try:
                return _WorkerError(f"it ended its process with {signal.Signals(-status).name}", died=True)
            except ValueError:
                pass
        return _WorkerError(f"its process ended with status {status}", died=True)


class _Here(_Worker):
    """A session of one model in this process."""

    def __init__(self, model: Path, folder: Path, providers: Sequence[str], deadline: _Deadline | None) -> None:
        self.patience = float(_PATIENCE)
        self.deadline = deadline or _Deadline(self.patience)
        self._model = model
        self._session: Any = None
        self._providers = list(providers)

    @functools.cached_property
    def _outputs(self) -> list[tuple[str, str]]:
        try:
            self._session = open_session(str(self._model), self._providers, count_nodes(self._model) > BIG_GRAPH)
        except Exception as error:
            raise _WorkerError(str(error)) from error
        return [(one.name, one.type) for one in self._session.get_outputs()]

    def close(self) -> None:
        """Let go of the session."""
        self._session = None

    def run(self, source: Path, target: Path) -> list[Any]:
        """Run the inputs in one folder; the outputs are stored in the other."""
        self.wait()
        try:
            return run_stored(self._session, source, target)
        except Exception as error:
            raise _WorkerError(str(error)) from error


def _is_random(model: ir.Model) -> bool:
    return any(semantics.is_random(node, model.functions) for node in model.graph)


def _nbytes(source: Source) -> int:
    """About how large a model is: its file, or its weights."""
    if isinstance(source, ir.Model):
        return sum(one.const_value.nbytes for one in source.graph.initializers.values() if one.const_value is not None)
    path = Path(source)
    return sum(one.stat().st_size for one in (path, *path.parent.glob(f"{path.stem}*.data")) if one.is_file())


def _digest(value: Any) -> Any:
    """What tells drawn inputs apart."""
    if isinstance(value, list):
        return tuple(_digest(one) for one in value)
    data = repr(value.tolist()).encode() if value.dtype.kind == "O" else value.tobytes()
    return value.shape, zlib.crc32(data)


__all__ = ["OutputRow", "Verification", "draw_inputs", "verify"]
