"""The result against the original: both run by ONNX Runtime without optimization, on the same seeded inputs.

A result is *verified* when on every input set that was run its outputs agree with the original's, by the measure of
`ortopt.verification.comparison`: floats within a tolerance by dtype, scaled to the output; all else exactly. Where an
error is neither clearly rounding nor clearly wrong, the noise of the original decides (`ortopt.verification.noise`).

The models run in a process of their own (`ortopt.verification.worker`), one after the other: one that kills it is a
finding, and another starts then. It starts early (`Reference.begin`), so that the original is loaded and run while its
result is still being made.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import operator
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

import numpy as np
import onnx_ir as ir

from ortopt.analysis.providers import CPU, check_distributions, usable
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import OptimizationCancelled, UsageError, VerificationError
from ortopt.serialization.load import load
from ortopt.serialization.save import save
from ortopt.system.temporary_files import temporary_folder
from ortopt.terminal_text import quoted
from ortopt.verification import noise as verification_noise
from ortopt.verification.comparison import (
    TOLERANCES,
    Comparison,
    OutputRow,
    allowing_elsewhere,
    are_cancelled,
    expected_elsewhere,
    expected_nearby,
    is_float,
    random_outputs,
    regardless_of_signs,
    settled,
    tolerances,
    worst_of,
)
from ortopt.verification.input_search import (
    MAX_DEATHS,
    InputSet,
    Search,
    elements,
    in_memory,
    inputs_from,
    store_inputs,
)
from ortopt.verification.inputs import Draw, Inputs, Interface, Recorded, draw_inputs
from ortopt.verification.process import PATIENCE, Deadline, Here, Worker, WorkerError
from ortopt.verification.randomness import GivenValues
from ortopt.verification.worker import restore

Source = str | os.PathLike[str] | ir.Model


@dataclass(frozen=True, slots=True)
class Verification:
    """How a result compares with its original.

    Attributes:
        status: ``not shown`` where both run and no output tells anything: NaN everywhere, or random; ``impossible``
            where the original cannot be run here.
        reason: Why it differs or is impossible, and which outputs tell nothing; one line.
        worst: The worst error of all outputs, relative to the output's scale.
        worst_output: The name of that output.
        outputs: A row for each output.
        input_sets: How many input sets were compared.
        attempts: How many were tried on the original.
        random: Whether outputs are random, so that only their dtypes and shapes were compared; ``reason`` names them.
        seconds: How long it took.
    """

    status: Literal["verified", "differs", "not shown", "impossible"]
    reason: str = ""
    worst: float = 0.0
    worst_output: str = ""
    outputs: tuple[OutputRow, ...] = ()
    input_sets: int = 0
    attempts: int = 0
    random: bool = False
    seconds: float = 0.0


_EARLY_BYTES = 1 << 28
_TIMES_THE_ORIGINAL = 20.0  # that the result may take longer
_SHAKES = 6  # copies that may tell why an integer came out differently
_ONE_FILE = 3 << 29


def verify(
    original: Source,
    result: Source,
    *,
    inputs: Mapping[str, Any] | None = None,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    providers: Sequence[str] = (CPU,),
    timeout: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    thorough: bool = False,
    in_process: bool = False,
) -> Verification:
    """Run both models on the same inputs and compare.

    Args:
        original: A path or a model.
        result: A path or a model, with the same inputs and outputs.
        inputs: Arrays by input name; None draws them (see `ortopt.verification.inputs`).
        seed: The seed of what is drawn.
        sizes: Sizes of symbolic dimensions of the inputs.
        providers: Full names; the CPU provider is the last resort.
        timeout: Seconds after which it is given up as impossible. None gives the original 120 s and more if it is
            large, and the result 20 times longer than the original took besides: one that takes longer differs if the
            original was quick.
        rtol: With ``atol``, what floats may differ by as in numpy's ``allclose``; if both are None, see
            `ortopt.verification.comparison`.
        atol: See ``rtol``.
        thorough: Whether many more input sets are drawn, as long as the original takes less than a minute for them.
        in_process: Run in this process: quicker, but a model that kills its process kills this one, and nothing can
            stop it. For models that one has written oneself.

    Raises:
        UsageError: A provider does not work here, ``inputs`` lacks an input of the model, or it is given and
            ``thorough`` too.
        InvalidModelError: A path holds no model.
    """
    with Reference(
        original,
        inputs=inputs,
        seed=seed,
        sizes=sizes,
        providers=providers,
        rtol=rtol,
        atol=atol,
        thorough=thorough,
        in_process=in_process,
    ) as reference:
        return reference.compare(result, timeout=timeout)


_BETWEEN_STOPS: Final = 0.1
"""Seconds between two attempts to end what runs in another thread."""

_BETWEEN_LOOKS: Final = 0.05
"""Seconds for which another thread is waited for without asking the token."""


class Reference:
    """An original with which several results are compared: it runs once, and what it answered is kept until the end.

    Args:
        original: A path or a model.
        inputs: As `verify` takes them, and the others too.
        seed: The seed of what is drawn.
        sizes: Sizes of symbolic dimensions of the inputs.
        interface: What the original took before it was given these sizes, where they are its own by now: which sizes
            belong together is told by the names that have gone.
        providers: Full names.
        rtol: As `verify` takes it.
        atol: As `verify` takes it.
        thorough: As `verify` takes it.
        in_process: Run in this process.
        token: Who may stop whatever it does; a deadline of the token counts for nothing.

    Raises:
        UsageError: A provider does not work here, or inputs are given that `thorough` would have to draw.
    """

    def __init__(
        self,
        original: Source,
        *,
        inputs: Mapping[str, Any] | None = None,
        seed: int = 0,
        sizes: Mapping[str, int] | None = None,
        providers: Sequence[str] = (CPU,),
        rtol: float | None = None,
        atol: float | None = None,
        interface: Interface | None = None,
        thorough: bool = False,
        in_process: bool = False,
        token: CancellationToken = NEVER,
    ) -> None:
        for provider in providers:
            works, reason = usable(provider)
            if not works:
                raise UsageError(f"{provider} does not work here: {reason}")
        check_distributions()
        if thorough and inputs is not None and not isinstance(inputs, Recorded):
            raise UsageError("a thorough verification draws inputs: none can be given")
        self._original = original
        self._inputs = inputs if inputs is None or isinstance(inputs, Recorded) else dict(inputs)
        self._token = token.with_timeout(None)
        self._plan_of = functools.partial(
            _Plan,
            seed=seed,
            sizes=dict(sizes or {}),
            rtol=rtol,
            atol=atol,
            interface=interface,
            token=self._token,
        )
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(temporary_folder("ortopt-verify-")))
        self._run = _Run(self._folder, tuple(dict.fromkeys((*providers, CPU))), self._token)
        self._stack.callback(self._run.close)
        self._run.in_process = in_process
        self._run.thorough = thorough
        self._early: Future[Verification | None] | None = None
        self._given_values: GivenValues | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, and forget what was kept.

        After a cancellation a thread of its own waits for their end; the interpreter does not end before it.
        """
        self._run.stop()
        if self._token.is_cancelled:
            threading.Thread(target=self._clean_up, name="ortopt-verify-end").start()
        else:
            self._clean_up()

    def _clean_up(self) -> None:
        while self._early is not None and not self._early.done():
            with contextlib.suppress(CancelledError, TimeoutError):
                self._early.exception(_BETWEEN_STOPS)
            self._run.stop()  # the process that takes the place of one that has died
        self._stack.close()

    def begin(self, model: ir.Model | None = None) -> None:
        """Run the original while the caller does something else; `compare` waits for it.

        A large original is not begun: it would take memory for longer.

        Args:
            model: The original, where it is a path that has been loaded already; it may change after this call.
        """
        if self._early is not None or self._run.in_process or _nbytes(self._original) > _EARLY_BYTES:
            return
        plan = self._plan_without_randomness(model if model is not None else self._loaded())
        self._early = Future()
        self._run.start()
        thread = threading.Thread(target=self._run_early, args=(plan, self._early), name="ortopt-verify", daemon=True)
        thread.start()

    def _plan_without_randomness(self, model: ir.Model) -> _Plan:
        """What is to be known of the original, which gives given values from now on where it gave random ones."""
        if GivenValues.are_needed(model, self._token):
            self._given_values = GivenValues(model, self._token)
            self._original = model = self._given_values.original
        return self._plan_of(model)

    def _run_early(self, plan: _Plan, answer: Future[Verification | None]) -> None:
        try:
            answer.set_result(self._run.prepare(self._original, plan, self._inputs))
        except BaseException as error:
            answer.set_exception(error)

    def _loaded(self) -> ir.Model:
        return self._original if isinstance(self._original, ir.Model) else load(self._original, self._token)

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
            OptimizationCancelled: The token was set.
        """
        start = time.monotonic()
        run = self._run
        deadline = None if timeout is None else Deadline(timeout)
        impossible = None
        if self._early is not None:
            try:
                impossible = self._await_early(deadline)
            except TimeoutError:
                run.stop()
                self._early.exception()
                reason = f"the original does not run here: it took longer than {timeout:.0f} s"
                impossible = Verification("impossible", reason)
        run.deadline = deadline
        if self._early is None and run.kept is None:
            plan = self._plan_without_randomness(self._loaded())
            impossible = run.prepare(self._original, plan, self._inputs)
        if impossible is None:
            assert run.kept is not None
            kept = run.kept.only(outputs, sets)
            found = run.against(result, kept) if self._given_values is None else self._against(result, kept)
        else:
            found = impossible
        return _with_seconds(found, time.monotonic() - start)

    def _against(self, result: Source, kept: _Kept) -> Verification:
        """A result that may be random: whether it loads, and what it does with given values."""
        assert self._given_values is not None
        if (unfit := self._run.loads(result)) is not None:
            return unfit
        model = result if isinstance(result, ir.Model) else load(result, self._token)
        copy, random = self._given_values.of(model)
        comparison = dataclasses.replace(kept.comparison, random=frozenset(kept.comparison.random) | random)
        return self._run.against(copy, dataclasses.replace(kept, comparison=comparison))

    def _await_early(self, deadline: Deadline | None) -> Verification | None:
        """What `begin` has found out.

        Raises:
            TimeoutError: It takes too long.
        """
        assert self._early is not None
        while True:
            self._token.check()
            left = _BETWEEN_LOOKS if deadline is None else min(_BETWEEN_LOOKS, deadline.left)
            try:
                return self._early.result(left)
            except TimeoutError:
                if self._early.done() or (deadline is not None and deadline.is_over):
                    raise

    def inputs_of(self, number: int) -> Inputs:
        """An input set that was compared."""
        assert self._run.kept is not None
        return inputs_from(self._run.kept.sets[number].source)


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
    with temporary_folder("ortopt-run-") as name:
        run = _Run(Path(name), tuple(dict.fromkeys((*providers, CPU))))
        run.deadline = None if timeout is None else Deadline(timeout)
        try:
            with run.worker(model, "model") as worker:
                one = run.attempt(worker, inputs)
                names = worker.names
        except WorkerError as error:
            raise VerificationError(str(error)) from error
        finally:
            run.close()
        return {name: in_memory(restore(one.target, row)) for name, row in zip(names, one.rows, strict=True)}


def _with_seconds(found: Verification, seconds: float) -> Verification:
    return dataclasses.replace(found, seconds=seconds)


class _Run:
    """One verification: its folder, its deadline, its processes."""

    def __init__(self, folder: Path, providers: tuple[str, ...], token: CancellationToken = NEVER) -> None:
        self.token = token
        self._folder = folder
        self._providers = providers
        self.deadline: Deadline | None = None
        self._tried = 0
        self.in_process = False
        self.thorough = False
        self.kept: _Kept | None = None
        self.differing: list[int] = []
        self.hidden: set[str] = set()
        self._idle: Worker | None = None
        self._running: Worker | None = None
        self._stopped = False
        self._label = ""
        self._evidence: dict[tuple[str, int], _Evidence | None] = {}
        self._original: Source | None = None

    def start(self) -> None:
        """Let the process start, unless there is one: in a thread beside busy ones that takes ten times as long."""
        if self._idle is None:
            self._idle = (Here if self.in_process else Worker)(self._providers, self.token)

    def stop(self) -> None:
        """End what runs in another thread."""
        self._stopped = True
        if self._running is not None:
            self._running.stop()

    def close(self) -> None:
        """End the process."""
        if self._idle is not None:
            self._idle.close()
            self._idle = None

    def prepare(self, original: Source, plan: _Plan, inputs: Inputs | None) -> Verification | None:
        """Run the original; the reason if that cannot be, else None.

        Args:
            original: A path or a model.
            plan: What is to be known of it.
            inputs: What it is given; None draws it.

        Raises:
            UsageError: The inputs lack one of the model, or have other sizes than the caller has chosen.
        """
        if inputs is not None:
            missing = [name for name in plan.interface.names if name not in inputs]
            if missing:
                raise UsageError(f"the inputs lack {', '.join(quoted(one) for one in missing)}")
            if not isinstance(inputs, Recorded):
                plan.interface.check(inputs, plan.sizes)
        self._original = original
        search = Search(
            plan.interface, plan.draw, self.attempt, fine=plan.is_fine, given=plan.sizes, thorough=self.thorough
        )
        while True:
            start, deaths = time.monotonic(), search.deaths
            try:
                with self.worker(original, "original") as before:
                    before.wait()
                    sets = [] if inputs is None else [self.attempt(before, inputs)]
                    sets += search.run(before) if inputs is None or self.thorough else []
                    names, types = tuple(before.names), tuple(before.types)
                    break
            except WorkerError as error:
                if isinstance(inputs, Recorded):
                    inputs = None
                    continue
                if inputs is not None and not error.late:
                    reason = f"the original does not run on the inputs that were given: {error}"
                    return Verification("impossible", reason, attempts=self._tried)
                if not deaths < search.deaths < MAX_DEATHS:
                    reason = f"the original does not run here: {search.error or error}"
                    return Verification("impossible", reason, attempts=self._tried)
            except UsageError as error:
                return Verification("impossible", f"no inputs can be drawn: {error}", attempts=self._tried)
        took = time.monotonic() - start
        self.kept = _Kept(names, types, dict(enumerate(sets)), took, plan.comparison, frozenset(names))
        return None

    def loads(self, result: Source) -> Verification | None:
        """None if ONNX Runtime makes a session of a result, else what it is."""
        try:
            with self.worker(result, "loaded") as after:
                after.wait()
        except WorkerError as error:
            if error.late:
                return Verification("impossible", f"the result: {error}", attempts=self._tried)
            reason = f"the original runs, the result does not: {error}"
            return Verification("differs", reason, attempts=self._tried)
        return None

    def against(self, result: Source, kept: _Kept) -> Verification:
        """A result on the input sets on which the original has run."""
        with self.worker(result, "result") as after:
            return self._against(after, kept)

    def _against(self, after: Worker, kept: _Kept) -> Verification:
        took = kept.took
        if self.deadline is None:
            after.deadline = Deadline(after.patience + _TIMES_THE_ORIGINAL * took)
        self.differing = list(kept.sets)
        self._label = ""
        try:
            if tuple(after.names) != kept.names:
                return Verification("differs", f"the outputs are {after.names} instead of {list(kept.names)}")
            rows = self._compare_sets(after, kept)
        except WorkerError as error:
            where = f" where {self._label}" if self._label else ""
            if error.late and (self.deadline is not None or took * _TIMES_THE_ORIGINAL > PATIENCE):
                return Verification("impossible", f"the result: {error}", attempts=self._tried)
            if error.late:
                reason = f"the original ran in {took:.1f} s, the result: {error}"
                return Verification("differs", reason, attempts=self._tried)
            reason = f"the original runs{where}, the result does not: {error}"
            return Verification("differs", reason, attempts=self._tried)
        return self._verdict(rows, kept.comparison.random, len(kept.sets))

    def _verdict(self, rows: list[OutputRow], random: Collection[str], sets: int) -> Verification:
        rows = [dataclasses.replace(row, shown=row.name not in random and row.name not in self.hidden) for row in rows]
        worst = worst_of(rows, "")
        whys = {
            "random, so compared by dtype and shape only": [row for row in rows if row.name in random],
            "NaN on every input set": [row for row in rows if row.name in self.hidden and row.name not in random],
        }
        notes = [f"{', '.join(quoted(row.name) for row in hidden)} ({why})" for why, hidden in whys.items() if hidden]
        reason = f"not shown: {'; '.join(notes)}" if notes else ""
        status: Literal["verified", "differs", "not shown"] = "verified"
        if not all(row.agrees for row in rows):
            status, reason = "differs", f"output {quoted(worst.name)}: {worst.detail}"
        elif rows and not any(row.shown for row in rows):
            status = "not shown"
        found_random = any(row.name in random for row in rows)
        return Verification(status, reason, worst.worst, worst.name, tuple(rows), sets, self._tried, found_random)

    @contextlib.contextmanager
    def worker(self, source: Source, label: str, *, optimize: bool = False) -> Iterator[Worker]:
        """A process that makes a session of a model: the last one, if it is well."""
        if isinstance(source, ir.Model):
            path = self._folder / f"{label}.onnx"
            _write(source, path, self.token)
        else:
            path = Path(source)
        self.start()
        worker, self._idle = self._idle, None
        assert worker is not None
        self._running = worker
        try:
            worker.open(path, _nbytes(source), self.deadline, optimize=optimize)
            if self._stopped:
                worker.stop()
            yield worker
        except OptimizationCancelled:
            worker.stop()
            self._idle = worker  # `close` waits for its end
            raise
        except BaseException:
            worker.close()
            raise
        if self._idle is not None or worker.dead:
            worker.close()
        else:
            self._idle = worker

    def attempt(self, worker: Worker, inputs: Inputs, label: str = "") -> InputSet:
        """Run inputs."""
        source = self._folder / f"in{self._tried}"
        target = self._folder / f"original{self._tried}"
        self._tried += 1
        store_inputs(inputs, source)
        rows = worker.run(source, target)
        return InputSet(source, target, rows, label, worker.seconds, elements(inputs))

    def _compare_sets(self, worker: Worker, kept: _Kept) -> list[OutputRow]:
        """A row for each output, of the input set on which it differs most."""
        compared: dict[str, list[OutputRow]] = {name: [] for name in worker.names if name in kept.wanted}
        wrong: list[int] = []
        shown: set[str] = set()
        hidden: set[str] = set()  # NaN everywhere
        for number, one in kept.sets.items():
            self.differing, self._label = [*wrong, number], one.label  # in case that it does not run
            target = self._folder / f"result{number}"
            rows = worker.run(one.source, target)
            for i, (name, type_, got) in enumerate(zip(worker.names, kept.types, rows, strict=True)):
                if name in kept.wanted:
                    expected, given = restore(one.target, one.rows[i]), restore(target, got)
                    row = kept.comparison.of(name, type_, expected, given, extreme=one.extreme)
                    row = row if one.signs else regardless_of_signs(row)
                    compared[name].append(self._settled(row, number, i, given, kept) if row.doubtful else row)
                    (shown if row.shown and np.size(expected) else hidden if not row.shown else set()).add(name)
            if any(not rows[-1].agrees for rows in compared.values()):
                wrong.append(number)
        self.differing = wrong
        self.hidden = hidden - shown
        for name, type_, other in zip(worker.names, kept.types, worker.types, strict=True):
            if type_ != other and name in kept.wanted:
                detail = f"the type is {other} instead of {type_}"
                compared[name].append(OutputRow(name, math.inf, 0.0, False, detail))
                self.differing = list(kept.sets)
        return [worst_of(rows, name) for name, rows in compared.items()]

    # The model's own noise

    def _settled(self, row: OutputRow, number: int, i: int, given: Any, kept: _Kept) -> OutputRow:
        """A row that is neither clearly right nor clearly wrong, by what copies of the original give."""
        one, type_ = kept.sets[number], kept.types[i]
        expected = restore(one.target, one.rows[i])
        if math.isinf(row.worst) and not (one.extreme and is_float(expected, type_)):
            copies = [self._copy(kind, number) for kind in (*(f"shake{n}" for n in range(_SHAKES)), "wide")]
            others = [restore(copy.folder, copy.rows[i]) for copy in copies if copy is not None]
            found = expected_elsewhere(row, expected, given, others)
            return found if found.agrees or not one.extreme else expected_nearby(row, expected, given, others)
        if math.isinf(row.worst):
            others = [other for _, other in self._copies(number, i, expected, type_)]
            row = kept.comparison.of(row.name, type_, allowing_elsewhere(expected, given, others), given, extreme=True)
            if math.isinf(row.worst) or not row.doubtful:
                return dataclasses.replace(row, doubtful=False)
        spread: dict[str, OutputRow] = {}
        others = []
        zeros = 0
        for kind, other in self._copies(number, i, expected, type_):
            if kind != "optimized":
                others.append(other)
            compared = kept.comparison.of(row.name, type_, expected, other)
            if math.isfinite(compared.worst):
                zeros = max(zeros, compared.zeros)
                spread[kind] = compared
            if row.zeros and are_cancelled(expected, given, others):
                zeros = max(zeros, row.zeros)
            found = _by_noise(row, spread, zeros, extreme=one.extreme)
            if found.agrees and not found.doubtful:  # another copy could only allow more
                return found
        return _by_noise(row, spread, zeros, extreme=one.extreme)

    def _copies(self, number: int, i: int, expected: Any, type_: str) -> Iterable[tuple[str, Any]]:
        """By their kinds, what copies of the original give for an output: each is run when it is asked for."""
        for kind in ("jitter0", "jitter1", "wide", "optimized"):
            copy = self._copy(kind, number)
            if copy is not None:
                yield kind, _in_dtype_of(restore(copy.folder, copy.rows[i]), expected, type_)

    def _copy(self, kind: str, number: int) -> _Evidence | None:
        """What a copy of the original gives for an input set; None where there is none, or it does not run."""
        if (kind, number) not in self._evidence:
            try:
                self._evidence[kind, number] = self._run_copy(kind, number)
            except (WorkerError, UsageError, TypeError, ValueError):
                self._evidence[kind, number] = None
        return self._evidence[kind, number]

    def _run_copy(self, kind: str, number: int) -> _Evidence | None:
        assert self._original is not None
        assert self.kept is not None
        source, target = self._folder / f"{kind}-in{number}", self._folder / f"{kind}-out{number}"
        if kind == "optimized":
            with self.worker(self._original, kind, optimize=True) as worker:
                return _Evidence(target, worker.run(self.kept.sets[number].source, target))
        model = self._original if isinstance(self._original, ir.Model) else load(self._original, self.token)
        if verification_noise.constant_bytes(model, self.token) > verification_noise.LARGEST_COPY:
            return None
        inputs, extreme = inputs_from(self.kept.sets[number].source), self.kept.sets[number].extreme
        if kind == "wide":
            wide = verification_noise.widened(model, self.token)
            if wide is None:
                return None
            copy, given = wide, verification_noise.widened_inputs(inputs, wide)
        else:
            units = verification_noise.SHAKEN_BY if kind.startswith("shake") else 1
            seed = int(kind[-1])
            copy = verification_noise.jittered(model, seed, units, self.token)
            given = verification_noise.jittered_inputs(inputs, seed, units, self.token, small=extreme)
        store_inputs(given, source)
        with self.worker(copy, kind) as worker:
            return _Evidence(target, worker.run(source, target))


def _by_noise(row: OutputRow, spread: Mapping[str, OutputRow], zeros: int, *, extreme: bool) -> OutputRow:
    """A doubtful row by how copies of the original compare with it."""
    if not spread:
        return row
    own = [one for kind, one in spread.items() if kind != "optimized"]
    noise = max((one.worst for one in own), default=0.0)
    optimized = spread.get("optimized")
    if optimized is not None and (not own or optimized.worst <= verification_noise.TRUSTED_TIMES * noise):
        own.append(optimized)
    noise, mean, local = (max((get(one) for one in own), default=0.0) for get in _MEASURES)
    return settled(row, noise, mean, zeros, local=local, extreme=extreme)


_MEASURES: Final = (
    operator.attrgetter("worst"),
    operator.attrgetter("mean"),
    operator.attrgetter("local"),
)


class _Evidence(NamedTuple):
    """What a copy of the original gave.

    Attributes:
        folder: Where its outputs are stored.
        rows: How to find them there.
    """

    folder: Path
    rows: list[Any]


class _Plan:
    """What must be known of the original's graph to run it and to compare with it; afterwards it may change.

    Args:
        model: The original.
        seed: The seed of what is drawn.
        sizes: Sizes of symbolic dimensions.
        rtol: As `Comparison` takes it.
        atol: As `Comparison` takes it.
        interface: What it took before it was given the sizes; None if they are not its own.
        token: Cancellation token from being made.
    """

    def __init__(
        self,
        model: ir.Model,
        seed: int,
        sizes: Mapping[str, int],
        rtol: float | None,
        atol: float | None,
        interface: Interface | None,
        token: CancellationToken,
    ) -> None:
        self.interface = Interface(model, token) if interface is None else interface
        self.comparison = Comparison(tolerances(model, token), random_outputs(model, token), rtol, atol)
        self.seed = seed
        self.sizes = dict(sizes)

    @property
    def is_fine(self) -> bool:
        """Whether nothing is computed in less than single precision, which large numbers would overflow.

        Nor are there large numbers where the caller says what floats may differ by: ordinary ones are meant.
        """
        if self.comparison.rtol is not None or self.comparison.atol is not None:
            return False
        return max(self.comparison.tolerances.values(), default=0.0) <= TOLERANCES[ir.DataType.FLOAT]

    def draw(self, how: Draw) -> Inputs:
        """Inputs."""
        return self.interface.draw(seed=self.seed, sizes=self.sizes, how=how)


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
    sets: Mapping[int, InputSet]
    took: float
    comparison: Comparison
    wanted: frozenset[str]

    def only(self, outputs: Collection[str] | None, sets: Collection[int] | None) -> _Kept:
        """The same with fewer outputs and input sets; those of no such name are ignored."""
        wanted = self.wanted if outputs is None else self.wanted & set(outputs)
        chosen = {number: one for number, one in self.sets.items() if sets is None or number in sets}
        return dataclasses.replace(self, wanted=wanted, sets=chosen)


def _in_dtype_of(value: Any, expected: Any, type_: str) -> Any:
    """What a widened model gave, rounded to the dtype of the original's output."""
    if isinstance(value, list):
        return [_in_dtype_of(one, other, type_) for one, other in zip(value, expected, strict=False)]
    if not isinstance(value, np.ndarray) or not isinstance(expected, np.ndarray) or value.dtype == expected.dtype:
        return value
    with np.errstate(over="ignore"):
        if "bfloat16" in type_ and expected.dtype == np.uint16:
            return value.astype(ir.DataType.BFLOAT16.numpy()).view(np.uint16)
        return value.astype(expected.dtype) if value.dtype.kind == expected.dtype.kind == "f" else value


def _write(model: ir.Model, path: Path, token: CancellationToken) -> None:
    """Write a model that is read once: what is not too large for one file, without waiting for the disk."""
    if _nbytes(model) > _ONE_FILE:
        save(model, path, token=token)
        return
    with path.open("wb") as file:
        save(model, file, token=token)


def _nbytes(source: Source) -> int:
    """About how large a model is: its file, or its weights."""
    if isinstance(source, ir.Model):
        return sum(one.const_value.nbytes for one in source.graph.initializers.values() if one.const_value is not None)
    path = Path(source)
    return sum(one.stat().st_size for one in (path, *path.parent.glob(f"{path.stem}*.data")) if one.is_file())


__all__ = ["OutputRow", "Reference", "Verification", "draw_inputs", "outputs_of", "verify"]
