"""`optimize`: a model in, an optimized and verified model out."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias

import onnx_ir as ir

from ortopt import registry, semantics
from ortopt.analysis import dimensions, releases
from ortopt.analysis import providers as execution
from ortopt.cancellation import NEVER, CancellationToken, DeadlinePassed
from ortopt.errors import InvalidModelError, OptimizationCancelled, TransformerError, UsageError, VerificationError
from ortopt.graph import scope
from ortopt.instrumentation.check_each import CheckEach
from ortopt.observers import HistoryEntry, Observer, RetryRequested, RewriteLimit
from ortopt.onnx_ir_internals import initializers_of
from ortopt.optimization.pipeline import NumberedRewrite, Pipeline, Replay, RewriteKey, StopPointReached
from ortopt.options import Options, Target, whole_number
from ortopt.transformer import GraphTransformer

if TYPE_CHECKING:
    import numpy as np
    import onnx

    from ortopt.optimization.bisection import Bisection, Blame, Culprit
    from ortopt.verification.verify import Reference, Verification

Source: TypeAlias = "str | os.PathLike[str] | bytes | BinaryIO | onnx.ModelProto | ir.Model"

MAX_REPAIRS = 30
"""How often a run whose result differs is repeated without what made it differ."""

MAX_REWRITES_LEFT_OUT = 8
"""How many single rewrites of one transformer are left out (`Options.keep_pass`) before all of it is."""

TIME_TO_CHECK = 60.0
"""Seconds that verification and repair of a run with a timeout may take at least."""


@dataclasses.dataclass(frozen=True, slots=True)
class ModelFigures:
    """The size of a model.

    Attributes:
        ops: Node count by op, as ``Add`` or ``com.microsoft::Gelu``; subgraphs and functions included.
        initializers: How many constants, Constant nodes apart.
        nbytes: Bytes of all constants, Constant nodes included.
        functions: How many local functions.
    """

    ops: Mapping[str, int]
    initializers: int
    nbytes: int
    functions: int

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return sum(self.ops.values())


@dataclasses.dataclass(frozen=True, slots=True)
class PassTotal:
    """What one transformer did in a whole run.

    Attributes:
        transformer: Its name.
        rewrites: How many rewrites it made.
        seconds: How long it ran.
        visits: How many nodes a rule was offered.
    """

    transformer: str
    rewrites: int
    seconds: float
    visits: int


@dataclasses.dataclass(frozen=True, slots=True)
class SizeRefusal:
    """What one transformer left as it is because the file would have grown by more than it may.

    Attributes:
        transformer: Its name.
        count: How many candidates.
        nbytes: What they would have added in all.
    """

    transformer: str
    count: int
    nbytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
    """What a run did.

    Attributes:
        before: The size of the original.
        after: The size of the result.
        passes: Totals by transformer, the most rewrites first; those that did nothing left out.
        seconds: Seconds by phase: ``load``, ``optimize``, ``verify``.
        bound_reached: The levels whose fixed-point loop ended at its bound.
        failures: Transformers that raised and were left out, with the reasons.
        rewrites: How many rewrites were offered.
        too_large: What transformers left as it is because the file would have grown too much.
        requires: What the result needs to be loaded.
    """

    before: ModelFigures
    after: ModelFigures
    passes: tuple[PassTotal, ...]
    seconds: Mapping[str, float]
    bound_reached: tuple[int, ...]
    failures: tuple[TransformerError, ...]
    rewrites: int
    too_large: tuple[SizeRefusal, ...] = ()
    requires: releases.Requirement = releases.UNKNOWN


@dataclasses.dataclass(frozen=True, slots=True)
class Repair:
    """A rewrite that made the result differ from the original, and what was left out for it.

    Attributes:
        rewrite: Its number, its transformer, where it was, its nodes.
        left_out: ``"pass"``, or ``"rewrite"`` where the transformer was kept.
        reason: How the outputs differ, in words.
        output: The output that differs most.
        error: Its error after the rewrite, relative to its scale; infinite where it is not comparable.
        error_before: The worst error before it.
        probes: How many models were compared to find it.
        seconds: How long that took.
    """

    rewrite: NumberedRewrite
    left_out: Literal["pass", "rewrite"]
    reason: str
    output: str
    error: float
    error_before: float
    probes: int
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class OptimizeResult:
    """What `optimize` returns.

    Attributes:
        model: The optimized model.
        history: Every run of every transformer.
        summary: What changed.
        verification: How the result compares with the original; None if it was not asked for.
        stopped: Whether the deadline cut the run short.
        repairs: What was left out because the result differed from the original, in the order in which it was found.
    """

    model: ir.Model
    history: tuple[HistoryEntry, ...]
    summary: Summary
    verification: Verification | None = None
    stopped: bool = False
    repairs: tuple[Repair, ...] = ()

    @property
    def verified(self) -> bool:
        """Whether the result has been run against the original and agrees."""
        return self.verification is not None and self.verification.status == "verified"

    def save(
        self, path: str | os.PathLike[str], *, external_data: Literal["auto", "inline", "copy", "reuse"] = "auto"
    ) -> None:
        """Write the model, atomically.

        Args:
            path: Where to.
            external_data: Where weights go: inside the file, copied beside it, or left in the original's files.

        Raises:
            OutputError: If it cannot be written.
        """
        from ortopt.serialization.save import save

        save(self.model, Path(path), external_data=external_data)


def optimize(
    model: Source,
    *,
    level: int = 3,
    providers: Sequence[str] = ("cpu",),
    target: Literal["onnx", "ort"] = "ort",
    native: bool = False,
    opset: int | None = None,
    min_onnxruntime: str | None = None,
    dims: Mapping[str, int] | None = None,
    disable: Sequence[str] = (),
    enable: Sequence[str] = (),
    only: Sequence[str] = (),
    passes: str | None = None,
    settings: Mapping[str, Mapping[str, object]] | None = None,
    limit: int | None = None,
    max_growth: int | None = None,
    steps: int = 10,
    timeout: float | None = None,
    verify: bool | Literal["thorough"] = True,
    inputs: Mapping[str, np.ndarray] | None = None,
    strict: bool = True,
    check_each: bool = False,
    repair: bool = True,
    keep_pass: bool = False,
    provenance: bool = False,
    keep_functions: bool = False,
    transformers: Iterable[GraphTransformer] = (),
    observers: Iterable[Observer] = (),
    cancellation: CancellationToken | None = None,
) -> OptimizeResult:
    """Optimize a model; what was given is never changed.

    Args:
        model: A path, the bytes of a file, a binary stream, an `onnx.ModelProto` or an `ir.Model`.
        level: 0 to 4.
        providers: Execution providers in order of preference: ``"cpu"``, ``"cuda"``, or ONNX Runtime's names.
        target: ``"onnx"`` keeps to the official opsets, ``"ort"`` may use contrib ops.
        native: Whether the result may be tied to this very processor.
        opset: Raise the opset of ai.onnx to this version, and no further.
        min_onnxruntime: The oldest version of ONNX Runtime that the result must run on, e.g. ``"1.20"``: no newer opset
            and no newer op comes into the model. None is the installed version.
        dims: Values for symbolic input dimensions, by name or denotation.
        disable: Transformers to leave out: ``NAME``, or ``NAME@LEVEL``.
        enable: Transformers to put in that are off unless asked for.
        only: If given, nothing else runs.
        passes: A pipeline spelled out, e.g. ``"constant_folding{max_growth=1MB},matmul_add_fusion"``.
        settings: Options of single transformers.
        limit: Stop after this many rewrites.
        max_growth: Bytes by which the file may grow; None is max(1 MB, 1 %).
        steps: The bound of each level's fixed-point loop.
        timeout: Seconds until no more is done: the best verified so far is returned, marked `stopped`. Verification
            and repair may take as long again, and 60 s in any case. A transformer that loops is stopped; one that is in
            a call outside of Python is waited for.
        verify: Whether to run the result against the original; ``"thorough"`` on many more input sets.
        inputs: Inputs to verify with, by name; seeded ones if None.
        strict: Whether a transformer that raises ends the run; else it is left out.
        check_each: Whether the model is looked at after every transformer (`ortopt.instrumentation.check_each`): one
            that breaks it has failed.
        repair: Whether a result that differs from the original is repaired: the first rewrite after which it differs
            is found by replaying the run, and its transformer left out. Transformers must do the same to the same graph
            each time; instances of yours must keep no state between runs that changes what they do.
        keep_pass: Whether a repair leaves out that rewrite only.
        provenance: Whether a saved file says which transformer made each node.
        keep_functions: Whether local functions stay functions.
        transformers: Transformers of your own, instances, beside the installed ones.
        observers: Who watches.
        cancellation: Cancellation token.

    Returns:
        The optimized model and what was done.

    Raises:
        UsageError: If an option makes no sense.
        InvalidModelError: If the model is broken.
        TransformerError: If a transformer raised, with `strict`.
        VerificationError: If the result differs from the original, and could not be repaired.
        OptimizationCancelled: If it was stopped; ``.result`` holds what was reached: before verification, all that was
            done, else the model as it came.
    """
    for option, names in {"providers": providers, "disable": disable, "enable": enable, "only": only}.items():
        if isinstance(names, str):  # whose letters would be taken for names
            raise UsageError(f"{option} takes a list of names, not {names!r}")
    if dims is not None and not isinstance(dims, Mapping):
        raise UsageError(f"dims maps names of dimensions to sizes, e.g. {{'batch': 1}}, not {dims!r}")
    if verify not in (True, False, "thorough"):
        raise UsageError(f"verify takes True, False or 'thorough', not {verify!r}")
    options = make_options(
        level=level,
        providers=tuple(providers),
        target=target,
        native=native,
        opset=opset,
        min_onnxruntime=min_onnxruntime,
        dims=dims or {},
        disable=tuple(disable),
        enable=tuple(enable),
        only=tuple(only),
        passes=passes,
        settings=dict(settings or {}),
        limit=limit,
        max_growth=max_growth,
        steps=steps,
        timeout=timeout,
        strict=strict,
        check_each=check_each,
        repair=repair,
        keep_pass=keep_pass,
        provenance=provenance,
        keep_functions=keep_functions,
    )
    return Optimization(model, options, transformers=transformers, observers=observers, cancellation=cancellation).run(
        verify=verify, inputs=inputs
    )


def make_options(**values: Any) -> Options:
    """Check and normalize options as `optimize` takes them.

    Raises:
        UsageError: If one makes no sense.
    """
    values["level"] = whole_number("level", values["level"])
    if values["level"] not in range(5):
        raise UsageError(f"the level must be 0 to 4, not {values['level']}")
    if values["target"] not in ("onnx", "ort"):
        raise UsageError(f"the target must be onnx or ort, not {values['target']!r}")
    values["steps"] = whole_number("steps", values["steps"], least=1)
    for option, least in (("limit", 0), ("opset", 1), ("max_growth", 0)):
        if values.get(option) is not None:
            values[option] = _size_or_count(option, values[option], least)
    values["dims"] = _sizes(values.get("dims") or {})
    oldest = values.get("min_onnxruntime")
    values["min_onnxruntime"] = None if oldest is None else releases.parse_release(oldest)
    timeout = values.get("timeout")
    if timeout is not None and not (isinstance(timeout, int | float) and 0 < timeout < math.inf):
        raise UsageError(f"the timeout must be a positive number of seconds, not {timeout!r}")
    if values["passes"] is not None and values["only"]:
        raise UsageError("give either a pipeline or a selection (only), not both")
    values["target"] = Target(values["target"])
    values["providers"] = tuple(dict.fromkeys(execution.normalize(name) for name in values["providers"]))
    if not values["providers"]:
        raise UsageError("at least one execution provider is needed")
    return Options(**values)


def _size_or_count(option: str, value: object, least: int) -> int:
    if option == "max_growth" and isinstance(value, str):
        raise UsageError(f"max_growth is a number of bytes, e.g. {registry.parse_size(value)}, not the text {value!r}")
    return whole_number(option, value, least=least)


def _sizes(dims: Mapping[str, int]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for name, size in dims.items():
        if not isinstance(name, str):
            raise UsageError(f"dims maps names of dimensions to sizes, e.g. {{'batch': 1}}; {name!r} is no name")
        sizes[name] = whole_number(f"the size of dimension {name}", size)
    return sizes


class Optimization:
    """One run, phase by phase; `optimize` in pieces for those who want to do something in between.

    Args:
        source: The model.
        options: What is wanted.
        transformers: Transformers beside the installed ones.
        observers: Who watches.
        cancellation: Cancellation token.

    Raises:
        UsageError: If a name or a pipeline makes no sense.
        InvalidModelError: If the model is broken.
        OptimizationCancelled: If it was stopped while it loaded.
    """

    def __init__(
        self,
        source: Source,
        options: Options,
        *,
        transformers: Iterable[GraphTransformer] = (),
        observers: Iterable[Observer] = (),
        cancellation: CancellationToken | None = None,
    ) -> None:
        self.options = options
        self.selected = registry.select(options, transformers)
        self.token = cancellation or CancellationToken()
        if options.timeout is not None:
            self.token = _with_deadline(self.token, options.timeout)
        self.observers = tuple(observers)
        if options.limit is not None:
            self.observers += (RewriteLimit(options.limit),)
        if options.check_each:
            self.observers += (CheckEach(token=self.token),)
        self.seconds: dict[str, float] = {}
        # A stream can be read once only, but verification wants the original again.
        self._original: Source = source.read() if hasattr(source, "read") else source
        self._pipeline = Pipeline(self._original, options, self.selected)
        with self._timed("load"):
            began = self.token.with_timeout(
                None
            )  # a passed deadline is for `transform`: there is nothing to return yet
            self._attempt = self._pipeline.attempt(self._pipeline.load(began), self.observers)
            self.before = figures(self.model, began)
        self._pipeline.original_bytes = self.before.nbytes
        self.verification: Verification | None = None
        self.repairs: list[Repair] = []
        self._left_out: set[str] = set()
        self._without: set[RewriteKey] = set()
        self._failures: list[TransformerError] = []
        self._bisection: Bisection | None = None
        self._not_repaired = ""
        self._begun: Reference | None = None
        self.is_thorough = False

    @property
    def model(self) -> ir.Model:
        """What has been reached so far."""
        return self._attempt.model

    @property
    def stopped(self) -> bool:
        """Whether the deadline cut the run short."""
        return self._attempt.stopped

    def run(
        self, *, verify: bool | Literal["thorough"] = True, inputs: Mapping[str, np.ndarray] | None = None
    ) -> OptimizeResult:
        """Transform, validate, verify.

        Args:
            verify: Whether to run the result against the original, and how thoroughly.
            inputs: Inputs to verify with.

        Returns:
            The result.
        """
        with contextlib.closing(self):
            self.is_thorough = verify == "thorough"
            if verify:
                self.begin_verification(inputs)
            return self._run(verify=bool(verify), inputs=inputs)

    def begin_verification(self, inputs: Mapping[str, np.ndarray] | None = None) -> None:
        """Let the original run, in a process of its own, while it is transformed here: `verify` has less to do then.

        Nothing happens, and nothing is lost, where that cannot be; whoever calls this calls `close` in the end.

        Args:
            inputs: As `verify` takes them.
        """
        usable = all(execution.usable(provider)[0] for provider in self.options.providers)
        if self.options.dims or not isinstance(self._original, str | os.PathLike) or not usable:
            return
        self._begun = self.reference(inputs)
        self._begun.begin(self.model)

    def close(self) -> None:
        """End what `begin_verification` began, if nobody has verified."""
        if self._begun is not None:
            self._begun.close()
            self._begun = None

    def _run(self, *, verify: bool, inputs: Mapping[str, np.ndarray] | None) -> OptimizeResult:
        try:
            self.transform()
            if not verify:
                return self.result(None, self.token.with_timeout(None))
        except OptimizationCancelled as cancelled:
            cancelled.leave(lambda: self.result(None))
            raise
        try:
            return self.result(self.verify(inputs), self.token.with_timeout(None))
        except OptimizationCancelled as cancelled:  # what is not verified may be wrong: the model as it came is not
            cancelled.leave(self._result_as_it_came)
            raise

    def _result_as_it_came(self) -> OptimizeResult:
        self._attempt = self._pipeline.replay(self.observers, limit=0)
        return self.result(None)

    def transform(self) -> None:
        """Apply the levels, in place.

        Raises:
            TransformerError: If a transformer raised, with `Options.strict`.
            OptimizationCancelled: If it was stopped; `model` is valid and holds what was completed.
        """
        with self._timed("optimize"):
            self._transform(self.token, self.observers)

    def _transform(self, token: CancellationToken, observers: tuple[Observer, ...]) -> None:
        """Run what is ready; where the graph comes out torn or broken, find who did it, and run again without."""
        while True:
            watchers = observers if not self._without else (*observers, Replay(without=self._without))
            if watchers != self._attempt.observers or self._left_out != self._attempt.left_out:
                self._attempt = self._pipeline.attempt(self._attempt.model, watchers, self._left_out)
            try:
                self._pipeline.run(self._attempt, token)
            except TransformerError as error:
                if not error.corrupted:
                    raise
                self._start_again()
                if isinstance(error.__cause__, RetryRequested):  # it was one of several rules
                    observers = (*_without_checks(observers), CheckEach(closely=True, token=token))
                    continue
                if self.options.strict:
                    raise
                self._left_out.add(error.transformer)
                self._failures.append(error)
            except InvalidModelError:
                self._start_again()
                if any(isinstance(observer, CheckEach) for observer in observers) or self.options.level == 0:
                    raise
                observers = (*observers, CheckEach(token=token))
            else:
                return

    def _start_again(self) -> None:
        """The model as it came, in place of what has been reached."""
        original = self._pipeline.load(self.token.with_timeout(None))
        self._attempt = self._pipeline.attempt(original, self._attempt.observers, self._left_out)

    def verify(self, inputs: Mapping[str, np.ndarray] | None = None) -> Verification:
        """Run the result against the original under ONNX Runtime without optimization, and repair it if it differs.

        Args:
            inputs: Inputs by name; seeded ones if None.

        Returns:
            How they compare.

        Raises:
            VerificationError: If they differ, and what was tried did not repair it.
            OptimizationCancelled: If it was stopped while it was repaired.
        """
        for provider in self.options.providers:
            works, reason = execution.usable(provider)
            if not works:
                raise VerificationError(f"a result for {provider} cannot be verified here: {reason}")
        with self._timed("verify"), self.reference(inputs) as reference:
            outcome = self._verified(reference)
        self.verification = outcome
        if outcome.status == "differs":
            raise VerificationError(f"the result differs from the original: {outcome.reason}{self._not_repaired}")
        return outcome

    def reference(self, inputs: Mapping[str, np.ndarray] | None = None) -> Reference:
        """The original, to compare results with; the caller closes it. What `begin_verification` began, once.

        Args:
            inputs: Inputs by name; seeded ones if None.
        """
        from ortopt.verification.inputs import Interface
        from ortopt.verification.verify import Reference

        begun, self._begun = self._begun, None
        if begun is not None:
            return begun
        original = self._original
        source: Path | ir.Model
        interface: Interface | None = None
        if self.options.dims or not isinstance(original, str | os.PathLike):
            source = self._pipeline.load(self.token.with_timeout(None))
            interface = Interface(source, self.token.with_timeout(None)) if self.options.dims else None
            dimensions.override(source, self.options.dims)
        elif Path(original).is_file():
            source = Path(original)
        else:
            raise InvalidModelError(f"{original}: the file has gone")
        return Reference(
            source,
            inputs=inputs,
            sizes=self.options.dims,
            interface=interface,
            thorough=self.is_thorough,
            providers=self.options.providers,
            token=self.token,
        )

    def _verified(self, reference: Reference) -> Verification:
        """Compare, repair, and in the end, or where there is no time left, have a model that can be written."""
        self._not_repaired = ""
        timeout = self.options.timeout
        token = self.token.with_timeout(None if timeout is None else max(timeout, TIME_TO_CHECK))
        try:
            outcome = reference.compare(self.model, timeout=token.left)
            if outcome.status == "impossible":
                token.check()
            if outcome.status == "differs" and self.options.repair:
                outcome = self._repaired(reference, outcome, token)
        except DeadlinePassed:
            return self._best_verified(reference)
        return outcome

    def _repaired(self, reference: Reference, outcome: Verification, token: CancellationToken) -> Verification:
        """Leave out what makes the result differ, one after the other, until it does not."""
        from ortopt.optimization.bisection import Bisection, NotFound

        bisection = self._bisection = Bisection(self._pipeline, reference, self._attempt.observers, token)
        for _ in range(MAX_REPAIRS):
            started = time.perf_counter()
            try:
                culprit = bisection.find(self._attempt.offered, outcome, self._left_out, self._without)
            except NotFound as reason:
                self._not_repaired = f"; no rewrite can be blamed: {reason}"
                return outcome
            self._leave_out(culprit, time.perf_counter() - started)
            self._start_again()
            self._transform(self._repair_token(token), self.observers)
            outcome = bisection.compare(self._attempt, None, None)
            if outcome.status != "differs":
                return outcome
        self._not_repaired = f"; it still does after {MAX_REPAIRS} repairs"
        return outcome

    def blame(self, inputs: Mapping[str, np.ndarray] | None = None) -> Blame | None:
        """Find the first rewrite after which what `transform` made differs from the original; repair nothing.

        Args:
            inputs: Inputs by name; seeded ones if None.

        Returns:
            The rewrite and the models around it; None where nothing differs (`verification` says how it compares).

        Raises:
            VerificationError: If it differs, but no rewrite can be blamed.
            OptimizationCancelled: If it was stopped.
        """
        from ortopt.optimization.bisection import Bisection, NotFound

        with self._timed("verify"), self.reference(inputs) as reference:
            timeout = self.options.timeout
            token = self.token.with_timeout(None if timeout is None else max(timeout, TIME_TO_CHECK))
            self.verification = reference.compare(self.model, timeout=token.left)
            if self.verification.status != "differs":
                return None
            bisection = Bisection(self._pipeline, reference, self._attempt.observers, token)
            try:
                culprit = bisection.find(self._attempt.offered, self.verification, self._left_out)
                return bisection.show(culprit, self._left_out)
            except (NotFound, DeadlinePassed) as error:
                reason = error if isinstance(error, NotFound) else "there was no time left to find it"
                raise VerificationError(
                    f"the result differs from the original: {self.verification.reason};"
                    f" no rewrite can be blamed: {reason}"
                ) from error

    def model_before(self, failure: TransformerError) -> ir.Model:
        """The model as a transformer found it that failed.

        Args:
            failure: From `Summary.failures`.
        """
        stop = _StopBefore(failure)
        return self._pipeline.replay((*self.observers, stop), left_out=self._left_out - {failure.transformer}).model

    def _repair_token(self, token: CancellationToken) -> CancellationToken:
        """For a run without a culprit: it may take as long as the first, but ends with the search."""
        timeout = self.options.timeout
        return token if timeout is None or token.left is None else self.token.with_timeout(min(timeout, token.left))

    def _leave_out(self, culprit: Culprit, seconds: float) -> None:
        rewrite = culprit.rewrite
        before = sum(r.left_out == "rewrite" and r.rewrite.transformer == rewrite.transformer for r in self.repairs)
        single = self.options.keep_pass and before < MAX_REWRITES_LEFT_OUT
        if single:
            self._without.add(rewrite.key)
        else:
            self._left_out.add(rewrite.transformer)
        found = culprit.verification
        self.repairs.append(
            Repair(
                rewrite,
                "rewrite" if single else "pass",
                found.reason,
                found.worst_output,
                found.worst if found.outputs else math.inf,
                culprit.error_before,
                culprit.probes,
                seconds,
            )
        )

    def _best_verified(self, reference: Reference) -> Verification:
        """Where there is no time left: the most rewrites that are known to agree, or else the model as it came."""
        from ortopt.verification.verify import Verification

        bisection = self._bisection
        for limit in (bisection.equal if bisection is not None else 0, 0):
            self._attempt = self._pipeline.replay(
                self.observers, limit=limit, left_out=self._left_out, without=self._without
            )
            self._attempt.stopped = True
            outcome = reference.compare(self.model, timeout=TIME_TO_CHECK)
            if outcome.status == "verified":
                return outcome
            if limit == 0:
                break
        if outcome.status == "differs":
            return outcome
        return Verification("impossible", f"there was no time; nothing was rewritten ({outcome.reason})")

    def result(self, verification: Verification | None, token: CancellationToken = NEVER) -> OptimizeResult:
        """What has been reached so far.

        Args:
            verification: How it compares with the original.
            token: Cancellation token.
        """
        totals: dict[str, list[float]] = {}
        for entry in self._attempt.manager.history:
            total = totals.setdefault(entry.transformer, [0, 0.0, 0])
            total[0] += entry.rewrites
            total[1] += entry.seconds
            total[2] += entry.visits
        passes = [PassTotal(name, int(t[0]), t[1], int(t[2])) for name, t in totals.items() if t[0]]
        passes.sort(key=lambda total: (-total.rewrites, total.transformer))
        summary = Summary(
            self.before,
            figures(self.model, token),
            tuple(passes),
            dict(self.seconds),
            tuple(level.value for level in self._attempt.manager.bound_reached),
            (*self._failures, *self._attempt.manager.failures),
            self._attempt.offered,
            self._size_refusals(),
            releases.requirement(self.model, token),
        )
        return OptimizeResult(
            self.model, self._attempt.manager.history, summary, verification, self.stopped, tuple(self.repairs)
        )

    def _size_refusals(self) -> tuple[SizeRefusal, ...]:
        sizes: dict[str, list[int]] = {}
        for (name, _), nbytes in self._attempt.too_large.items():
            sizes.setdefault(name, []).append(nbytes)
        return tuple(SizeRefusal(name, len(each), sum(each)) for name, each in sorted(sizes.items()))

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started


def figures(model: ir.Model, token: CancellationToken = NEVER) -> ModelFigures:
    """Count what a model holds. Linear in the nodes.

    Args:
        model: The model.
        token: Cancellation token.
    """
    ops: Counter[str] = Counter()
    initializers = nbytes = 0
    for graph in scope.graphs(model, token):
        for value in token.checked(initializers_of(graph).values()):
            initializers += 1
            nbytes += value.const_value.nbytes if value.const_value is not None else 0
        for node in token.checked(graph):
            ops[f"{node.domain}::{node.op_type}" if node.domain else node.op_type] += 1
            if node.op_type == "Constant" and not node.domain:
                tensor = semantics.constant_tensor(node.outputs[0])
                nbytes += tensor.nbytes if tensor is not None else 0
    return ModelFigures(dict(sorted(ops.items())), initializers, nbytes, len(model.functions))


def _with_deadline(token: CancellationToken, timeout: float) -> CancellationToken:
    """A token that is also expired once the timeout has passed."""
    deadline = time.monotonic() + timeout
    token.deadline = deadline if token.deadline is None else min(token.deadline, deadline)
    return token


class _StopBefore(Observer):
    """Ends a run where a transformer is about to fail.

    Args:
        failure: Which.
    """

    decides = True

    def __init__(self, failure: TransformerError) -> None:
        self._failure = failure

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """Stop, if this is it."""
        failure = self._failure
        at = transformer.name, level, step, scope.label(graph)
        if at == (failure.transformer, failure.level, failure.step, failure.graph):
            raise StopPointReached


def _without_checks(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    return tuple(observer for observer in observers if not isinstance(observer, CheckEach))


__all__ = ["Optimization", "OptimizeResult", "Summary", "optimize"]
