"""The result against the original: both run by ONNX Runtime without optimization, on the same seeded inputs.

A result is *verified* when on every input set that was run its outputs agree with the original's, by the measure of
`ortopt.verification_comparison`: floats within a tolerance by dtype, scaled to the output; all else exactly.

The models run in processes of their own (`ortopt.verification_worker`): one that kills its process is a finding.
"""

from __future__ import annotations

import dataclasses
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
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis.providers import CPU, check_distributions, usable
from ortopt.errors import UsageError, VerificationError
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
    with Reference(
        original, inputs=inputs, seed=seed, sizes=sizes, providers=providers, in_process=in_process
    ) as reference:
        return reference.compare(result, timeout=timeout)


class Reference:
    """An original with which several results are compared: it runs once, and what it answered is kept until the end.

    Args:
        original: A path or a model.
        inputs: As `verify` takes them, and the others too.
        seed: The seed of what is drawn.
        sizes: Sizes of symbolic dimensions of the inputs.
        providers: Full names.
        in_process: Run in this process.

    Raises:
        UsageError: A provider does not work here.
    """

    def __init__(
        self,
        original: Source,
        *,
        inputs: Mapping[str, Any] | None = None,
        seed: int = 0,
        sizes: Mapping[str, int] | None = None,
        providers: Sequence[str] = (CPU,),
        in_process: bool = False,
    ) -> None:
        for provider in providers:
            works, reason = usable(provider)
            if not works:
                raise UsageError(f"{provider} does not work here: {reason}")
        check_distributions()
        self._original = original
        self._inputs = None if inputs is None else dict(inputs)
        self._seed = seed
        self._sizes = dict(sizes or {})
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="ortopt-verify-")))
        self._run = _Run(self._folder, tuple(dict.fromkeys((*providers, CPU))))
        self._run.in_process = in_process

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def differing(self) -> tuple[int, ...]:
        """The input sets, from 0, on which the last result differed or did not run."""
        return tuple(self._run.differing)

    def compare(
        self,
        result: Source,
        *,
        outputs: Collection[str] | None = None,
        sets: Collection[int] | None = None,
        timeout: float | None = None,
    ) -> Verification:
        """Run a result, and the original if it has not run yet, and compare.

        Args:
            result: A path or a model, with the same inputs and outputs.
            outputs: The outputs to compare; all if None.
            sets: The input sets to compare on (see `differing`); all if None.
            timeout: Seconds, as `verify` takes them.

        Raises:
            UsageError: The inputs lack one of the model.
            InvalidModelError: A path holds no model.
        """
        start = time.monotonic()
        run = self._run
        run.deadline = None if timeout is None else _Deadline(timeout)
        if run.kept is None:
            found = run.compare(self._original, result, self._inputs, self._seed, self._sizes)
        else:
            found = run.again(result, run.kept.only(outputs, sets))
        return _with_seconds(found, time.monotonic() - start)

    def inputs_of(self, number: int) -> Inputs:
        """An input set that was compared."""
        assert self._run.kept is not None
        source = self._run.kept.sets[number].source
        rows = json.loads((source / "values.json").read_bytes())
        return {name: _typed(restore(source, row), row) for name, row in rows.items()}


def _typed(value: Any, row: Any) -> Any:
    """A stored input as it was given: bits of bfloat16 and the like as what they stand for."""
    exotic = row.get("exotic") if row else 0
    return value.view(ir.DataType(exotic).numpy()) if exotic else _in_memory(value)


def outputs_of(
    model: Source, inputs: Inputs, *, providers: Sequence[str] = (CPU,), timeout: float | None = None
) -> dict[str, Any]:
    """Run one model, in a process of its own, without optimization.

    Args:
        model: A path or a model.
        inputs: Arrays by name.
        providers: Full names; the CPU provider is the last resort.
        timeout: Seconds; None gives it time by its size.

    Returns:
        The outputs by name; bfloat16 and the like as their bits.

    Raises:
        VerificationError: It cannot be loaded or run.
    """
    with tempfile.TemporaryDirectory(prefix="ortopt-run-") as name:
        run = _Run(Path(name), tuple(dict.fromkeys((*providers, CPU))))
        run.deadline = None if timeout is None else _Deadline(timeout)
        try:
            with run.worker(model, "model") as worker:
                one = run.attempt(worker, inputs)
                names = worker.names
        except _WorkerError as error:
            raise VerificationError(str(error)) from error
        return {name: _in_memory(restore(one.target, row)) for name, row in zip(names, one.rows, strict=True)}


def _in_memory(value: Any) -> Any:
    if isinstance(value, list):
        return [_in_memory(one) for one in value]
    return np.array(value) if isinstance(value, np.memmap) else value


def _with_seconds(found: Verification, seconds: float) -> Verification:
    return dataclasses.replace(found, seconds=seconds)


class _Run:
    """One verification: its folder, its deadline."""

    def __init__(self, folder: Path, providers: tuple[str, ...]) -> None:
        self._folder = folder
        self._providers = providers
        self.deadline: _Deadline | None = None
        self._tried = 0
        self.in_process = False
        self.kept: _Kept | None = None
        self.differing: list[int] = []

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
                before = stack.enter_context(self.worker(original, "original"))
                # The result's session is made while the original runs, unless both together are large.
                after = stack.enter_context(self.worker(result, "result")) if self._small(original, result) else None
                sets = self._run_original(before, model, inputs, seed, sizes)
                if after is None:
                    before.close()
                    after = stack.enter_context(self.worker(result, "result"))
            except _WorkerError as error:
                return Verification("impossible", f"the original does not run here: {error}", attempts=self._tried)
            except UsageError as error:
                return Verification("impossible", f"no inputs can be drawn: {error}", attempts=self._tried)
            took = time.monotonic() - start
            names, comparison = tuple(before.names), Comparison(tolerances(model), not random)
            self.kept = _Kept(names, tuple(before.types), dict(enumerate(sets)), took, comparison, frozenset(names))
            return self._against(after, self.kept)

    def again(self, result: Source, kept: _Kept) -> Verification:
        """Another result against what the original has answered."""
        with self.worker(result, "result") as after:
            return self._against(after, kept)

    def _against(self, after: _Worker, kept: _Kept) -> Verification:
        """The result on the input sets on which the original has run."""
        took, comparison = kept.took, kept.comparison
        if self.deadline is None:
            after.deadline = _Deadline(after.patience + _TIMES_THE_ORIGINAL * took)
        self.differing = list(kept.sets)
        try:
            if tuple(after.names) != kept.names:
                return Verification("differs", f"the outputs are {after.names} instead of {list(kept.names)}")
            rows = self._compare_sets(after, kept)
        except _WorkerError as error:
            if error.late and (self.deadline is not None or took * _TIMES_THE_ORIGINAL > _PATIENCE):
                return Verification("impossible", f"the result: {error}", attempts=self._tried)
            if error.late:
                reason = f"the original ran in {took:.1f} s, the result: {error}"
                return Verification("differs", reason, attempts=self._tried)
            return Verification("differs", f"the original runs, the result does not: {error}", attempts=self._tried)
        return self._verdict(rows, not comparison.contents, len(kept.sets))

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

    def worker(self, source: Source, label: str) -> _Worker:
        if isinstance(source, ir.Model):
            path = self._folder / f"{label}.onnx"
            save(source, path)
        else:
            path = Path(source)
        if self.in_process:
            return _Here(path, self._folder, self._providers, self.deadline)
        return _Worker(path, self._folder, self._providers, self.deadline)

    def _run_original(
        self, worker: _Worker, model: ir.Model, inputs: Inputs | None, seed: int, sizes: dict[str, int]
    ) -> list[_Set]:
        """Input sets on which the original runs, with its outputs: the first that works, and one of other sizes."""
        worker.wait()
        if inputs is not None:
            return [self.attempt(worker, inputs)]
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
                one = self.attempt(worker, drawn)
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

    def attempt(self, worker: _Worker, inputs: Inputs) -> _Set:
        source = self._folder / f"in{self._tried}"
        target = self._folder / f"original{self._tried}"
        self._tried += 1
        source.mkdir()
        rows = {name: store(source, f"in{i}", value) for i, (name, value) in enumerate(inputs.items())}
        (source / "values.json").write_text(json.dumps(rows), encoding="utf-8")
        outputs = worker.run(source, target)
        return _Set(source, target, outputs)

    def _compare_sets(self, worker: _Worker, kept: _Kept) -> list[OutputRow]:
        """A row for each output, of the input set on which it differs most."""
        compared: dict[str, list[OutputRow]] = {name: [] for name in worker.names if name in kept.wanted}
        wrong: list[int] = []
        for number, one in kept.sets.items():
            self.differing = [*wrong, number]  # in case that it does not run
            target = self._folder / f"result{number}"
            rows = worker.run(one.source, target)
            for name, type_, expected, got in zip(worker.names, kept.types, one.rows, rows, strict=True):
                if name in kept.wanted:
                    row = kept.comparison.of(name, type_, restore(one.target, expected), restore(target, got))
                    compared[name].append(row)
            if any(not rows[-1].agrees for rows in compared.values()):
                wrong.append(number)
        self.differing = wrong
        for name, type_, other in zip(worker.names, kept.types, worker.types, strict=True):
            if type_ != other and name in kept.wanted:
                detail = f"the type is {other} instead of {type_}"
                compared[name].append(OutputRow(name, math.inf, 0.0, False, detail))
                self.differing = list(kept.sets)
        return [worst_of(rows, name) for name, rows in compared.items()]


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is known of the original once it has run.

    Attributes:
        names: Its outputs.
        types: Their types.
        sets: Input sets with its answers, by number.
        took: Seconds that it took.
        comparison: How results are compared.
        wanted: The outputs to compare.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    sets: Mapping[int, _Set]
    took: float
    comparison: Comparison
    wanted: frozenset[str]

    def only(self, outputs: Collection[str] | None, sets: Collection[int] | None) -> _Kept:
        """The same with fewer outputs and input sets; those of no such name are ignored."""
        wanted = self.wanted if outputs is None else self.wanted & set(outputs)
        chosen = {number: one for number, one in self.sets.items() if sets is None or number in sets}
        return dataclasses.replace(self, wanted=wanted, sets=chosen)


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


__all__ = ["OutputRow", "Reference", "Verification", "draw_inputs", "outputs_of", "verify"]
