"""The result against the original: both run by ONNX Runtime without optimization, on the same seeded inputs.

Then the result runs once more as people deploy it, with ONNX Runtime's own optimizations
(`ortopt.verification.deployed`).

A result is *verified* when on every input set that was run its outputs agree with the original's, by the measure of
`ortopt.verification.comparison`: floats within a tolerance by dtype, scaled to the output; all else exactly. Where an
error is neither clearly rounding nor clearly a mistake, the noise of the original decides
(`ortopt.verification.doubtful_outputs`).

The models run in processes of their own (`ortopt.verification.worker`), one after the other: a model that kills its
process is reported, and another starts. The first process starts early (`Reference.begin`), so that the original is
loaded and run while its result is still being computed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import onnx_ir as ir

from ortopt.analysis.providers import CPU, check_installation, require_usable
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.serialization.load import load
from ortopt.system.files import temporary_folder
from ortopt.system.threads import BackgroundThread
from ortopt.verification.comparison import Comparison
from ortopt.verification.deployed import DEFAULTS, FURTHER_SECONDS, PREFIX, DeployedModels, DeployedRun, on, ordinary
from ortopt.verification.doubtful_outputs import STEPS_CAP
from ortopt.verification.input_sets import in_memory, inputs_from
from ortopt.verification.inputs import Inputs, Interface, Recorded
from ortopt.verification.layer_rows import Layers
from ortopt.verification.layers import LayerComparison
from ortopt.verification.near_ties import NearTies, with_given_places
from ortopt.verification.perturbed_outputs import PerturbedCopies
from ortopt.verification.process import Deadline
from ortopt.verification.randomness import GivenValues
from ortopt.verification.reference_outputs import OriginalFacts, ReferenceOutputs, run_original
from ortopt.verification.result_comparison import ResultComparison, load_failure
from ortopt.verification.runner import ModelRunner, Source, nbytes, outputs_of
from ortopt.verification.start import Runtime
from ortopt.verification.verdict import Elsewhere, Verification
from ortopt.verification.without_rounding import UnavailableError, WithoutRounding
from ortopt.verification.worker import restore

_EARLY_BYTES: Final = 1 << 28
"""Bytes of weights from which the original is not run early."""

_BETWEEN_STOPS: Final = 0.1
"""Seconds between two attempts to end what runs in another thread."""

DEPLOYED: Final = "deployed"
"""With ONNX Runtime's own optimizations."""

_BETWEEN_LOOKS: Final = 0.05
"""Seconds for which another thread is waited for before the token is asked again."""


def verify(
    original: Source,
    result: Source,
    *,
    inputs: Mapping[str, Any] | None = None,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    interface: Interface | None = None,
    providers: Sequence[str] = (CPU,),
    timeout: float | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    thorough: bool = False,
    finite_math: bool = False,
    in_process: bool = False,
    libraries: Sequence[str] = (),
    runtimes: Sequence[Runtime] = (),
    layers: bool = False,
) -> Verification:
    """Run both models on the same inputs and compare.

    Args:
        original: A path or a model.
        result: A path or a model, with the same inputs and outputs.
        inputs: Arrays by input name; None draws them (see `ortopt.verification.inputs`).
        seed: The seed of what is drawn.
        sizes: Sizes of symbolic dimensions of the inputs.
        interface: The original's inputs with shapes that the caller has chosen.
        providers: Full names; the CPU provider is the last resort.
        timeout: Seconds after which it is given up as impossible. None gives the original 120 s and more if it is
            large, and the result 20 times longer than the original took besides: one that takes longer differs if the
            original was quick.
        rtol: With ``atol``, what floats may differ by as in numpy's ``allclose``; alone, relative to the output's
            scale where that is greater than the number; if both are None, see `ortopt.verification.comparison`.
        atol: See ``rtol``.
        thorough: Whether many more input sets are drawn, as long as the original takes less than a minute for them.
        finite_math: Whether NaN and infinities may have spread to their neighbours
            (`ortopt.verification.result_comparison`).
        in_process: Run in this process: quicker, but a model that kills its process kills this one, and nothing can
            stop it. For models that one has written oneself; nothing is run as it is deployed.
        libraries: Shared libraries of ops that the models need.
        runtimes: Other runtimes on which the result must agree, too (`ortopt.verification.runtimes`).
        layers: Whether intermediate values are compared, too: `Verification.layers` has them. They do not change the
            verdict.

    Raises:
        UsageError: A provider does not work here, ``inputs`` lacks an input of the model, or ``inputs`` and
            ``thorough`` are both given.
        InvalidModelError: A path holds no model.
    """
    with Reference(
        original,
        inputs=inputs,
        seed=seed,
        sizes=sizes,
        interface=interface,
        providers=providers,
        rtol=rtol,
        atol=atol,
        thorough=thorough,
        in_process=in_process,
        libraries=libraries,
        runtimes=runtimes,
    ) as reference:
        outcome = reference.compare(result, timeout=timeout, spreading=finite_math)
        return dataclasses.replace(outcome, layers=reference.layers(result, outcome)) if layers else outcome


class _Question(NamedTuple):
    """What of a result is compared, and with what.

    Attributes:
        result: The result.
        file: What is run of it: the same, or its file.
        reference: The outputs of the original.
        outputs: The outputs; all if None.
        sets: The input sets; all if None.
        where: As `Reference.compare` takes it.
    """

    result: Source
    file: Source
    reference: ReferenceOutputs
    outputs: Collection[str] | None
    sets: Collection[int] | None
    where: str | None

    def with_reference(self, **changes: Any) -> _Question:
        """The same with other facts of the original's outputs."""
        return self._replace(reference=dataclasses.replace(self.reference, **changes))


class Reference:
    """An original with which several results are compared: it runs once, and its outputs are kept until the end.

    Args:
        original: A path or a model.
        inputs: As `verify` takes them.
        seed: The seed of what is drawn.
        sizes: Sizes of symbolic dimensions of the inputs.
        interface: The original's inputs before it was given these sizes, where they are fixed in it by now: the names
            of dimensions that are gone show which sizes belong together.
        providers: Full names.
        rtol: As `verify` takes it.
        atol: As `verify` takes it.
        nonempty: Symbolic dimensions of the inputs that are not 0.
        thorough: As `verify` takes it.
        in_process: Run in this process.
        libraries: Shared libraries of ops that the models need.
        runtimes: Other runtimes on which results must agree, too.
        token: Cancellation token for all that it does; a deadline of the token has no effect.

    Raises:
        UsageError: A provider does not work here, inputs are given that `thorough` would have to draw, or there are
            other runtimes and it is to run in this process.
    """

    _is_deployable = True

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
        nonempty: Collection[str] = (),
        thorough: bool = False,
        in_process: bool = False,
        libraries: Sequence[str] = (),
        runtimes: Sequence[Runtime] = (),
        token: CancellationToken = NEVER,
    ) -> None:
        check_installation()
        require_usable(providers)
        if in_process and runtimes:
            raise UsageError("in this process there is no other runtime")
        if thorough and inputs is not None and not isinstance(inputs, Recorded):
            raise UsageError("--thorough uses random inputs, --inputs uses yours: leave out one of them")
        self._original = self._as_given = original
        self._inputs = inputs if inputs is None or isinstance(inputs, Recorded) else dict(inputs)
        self._token = token.with_timeout(None)
        self._facts_of = functools.partial(
            OriginalFacts,
            seed=seed,
            sizes=dict(sizes or {}),
            rtol=rtol,
            atol=atol,
            interface=interface,
            nonempty=nonempty,
            token=self._token,
        )
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(temporary_folder("ortopt-verify-")))
        names = tuple(dict.fromkeys((*providers, CPU)))
        self._runner = ModelRunner(folder, names, self._token, in_process=in_process, libraries=tuple(libraries))
        self._stack.callback(self._runner.close)
        self._runners = {DEPLOYED: self._runner}
        self._elsewhere = [runtime.name for runtime in runtimes]
        for runtime in runtimes:
            names = (*runtime.providers, CPU)
            elsewhere = ModelRunner(folder / f"runtime{len(self._runners)}", names, self._token, runtime=runtime)
            elsewhere.folder.mkdir()
            self._runners[runtime.name] = elsewhere
            self._stack.callback(elsewhere.close)
        self._deployed: dict[str, DeployedModels] = {}
        self._thorough = thorough
        self._spreading = False
        self._early: Future[ReferenceOutputs | Verification] | None = None
        self._early_thread: BackgroundThread | None = None
        self._outputs: ReferenceOutputs | Verification | None = None
        self._copies: PerturbedCopies | None = None
        self._without_rounding: WithoutRounding | None = None
        self._near_ties: dict[ModelRunner, NearTies] = {}
        self._differing: list[int] = []
        self._given_values: GivenValues | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, and remove what was kept.

        After a cancellation a thread of its own waits for their end; the interpreter does not end before it.
        """
        for runner in self._runners.values():
            runner.stop()
        if self._token.is_cancelled:
            BackgroundThread(self._clean_up, "ortopt-verify-end").join_at_exit()
        else:
            self._clean_up()

    def _clean_up(self) -> None:
        while self._early_thread is not None and not self._early_thread.join(_BETWEEN_STOPS):
            self._runner.stop()  # the process that takes the place of one that has died
        self._stack.close()

    def begin(self, model: ir.Model | None = None) -> None:
        """Run the original while the caller does something else; `compare` waits for it.

        A large original is not begun: it would take memory for longer.

        Args:
            model: The original, where it is a path that has been loaded already; it may change after this call.
        """
        if self._early is not None or self._runner.in_process or nbytes(self._original) > _EARLY_BYTES:
            return
        facts = self._facts_without_randomness(model if model is not None else self._loaded())
        self._early = Future()
        self._runner.start()
        self._early_thread = BackgroundThread(functools.partial(self._run_early, facts, self._early), "ortopt-verify")

    def _facts_without_randomness(self, model: ir.Model) -> OriginalFacts:
        """What must be known of the original; where it gives random values, fixed ones take their place from now on."""
        if GivenValues.are_needed(model, self._token):
            self._given_values = GivenValues(model, self._token)
            self._original = model = self._given_values.original
        return self._facts_of(model)

    def _run_early(self, facts: OriginalFacts, answer: Future[ReferenceOutputs | Verification]) -> None:
        try:
            answer.set_result(self._run_original(facts))
        except BaseException as error:
            answer.set_exception(error)

    def _run_original(self, facts: OriginalFacts) -> ReferenceOutputs | Verification:
        return run_original(self._runner, self._original, facts, self._inputs, thorough=self._thorough)

    def _loaded(self) -> ir.Model:
        return self._original if isinstance(self._original, ir.Model) else load(self._original, self._token)

    @property
    def differing(self) -> tuple[int, ...]:
        """The input sets, from 0, on which the last result differed or did not run."""
        return tuple(self._differing)

    def compare(
        self,
        result: Source,
        *,
        outputs: Collection[str] | None = None,
        sets: Collection[int] | None = None,
        timeout: float | None = None,
        spreading: bool = False,
        where: str | None = None,
    ) -> Verification:
        """Run a result, and the original if it has not run yet, and compare.

        Args:
            result: A path or a model, with the same inputs and outputs.
            outputs: The outputs to compare; all if None.
            sets: The input sets to compare on (see `differing`); all if None.
            timeout: Seconds, as `verify` takes them.
            spreading: Whether NaN and infinities may have spread (`ortopt.verification.result_comparison`).
            where: `DEPLOYED`, with ONNX Runtime's own optimizations, where that is possible; empty, without them; or
                the name of another runtime; everywhere if None.

        Raises:
            UsageError: The inputs lack one of the model.
            InvalidModelError: A path holds no model.
            OptimizationCancelled: The token was set.
        """
        start = time.monotonic()
        deadline = None if timeout is None else Deadline(timeout)
        reference = self._reference(deadline)
        if isinstance(reference, ReferenceOutputs):
            self._spreading = spreading
            verification = self._compare(_Question(result, result, reference, outputs, sets, where))
        else:
            verification = reference
        return dataclasses.replace(verification, seconds=time.monotonic() - start)

    def layers(self, result: Source, outcome: Verification) -> Layers | None:
        """Compare the intermediate values of the result that was compared last; None where the original does not run.

        They are compared on the first input set on which it differs, else on the first.

        Args:
            result: The result.
            outcome: How its outputs compare.
        """
        reference = self._outputs
        if not isinstance(reference, ReferenceOutputs):
            return None
        if self._given_values is not None:
            result, _ = self._given_values.of(result if isinstance(result, ir.Model) else load(result, self._token))
        reference = reference.only(None, [next(iter(self._differing), min(reference.sets))])
        has_steps = outcome.unrounded is not None and outcome.status != "differs"
        comparing = LayerComparison(
            self._runner, self._original, result, reference, self._token, spreading=self._spreading, has_steps=has_steps
        )
        return comparing.run()

    def run(self) -> Verification | None:
        """Run the original, unless it has run: the verdict that it does not, with the reason; None where it does.

        Raises:
            UsageError: The inputs lack one of the model, or do not fit it.
            OptimizationCancelled: The token was set.
        """
        reference = self._reference(None)
        return None if isinstance(reference, ReferenceOutputs) else reference

    def _reference(self, deadline: Deadline | None) -> ReferenceOutputs | Verification:
        """The outputs of the original, which runs if it has not; or why there are none."""
        if self._early is not None:
            try:
                self._outputs = self._await_early(deadline)
            except TimeoutError:
                assert deadline is not None
                self._runner.stop()
                assert self._early_thread is not None
                self._early_thread.join()
                reason = f"the original does not run here: it took longer than {deadline.seconds:.0f} s"
                self._outputs = Verification("impossible", reason)
        self._runner.deadline = deadline
        if not isinstance(self._outputs, ReferenceOutputs) and self._early is None:
            self._outputs = self._run_original(self._facts_without_randomness(self._loaded()))
        assert self._outputs is not None
        return self._outputs

    def _copies_with(self, reference: ReferenceOutputs) -> PerturbedCopies:
        if self._copies is None:
            is_quantized = bool(reference.quantized)
            self._copies = PerturbedCopies(self._runner, self._original, reference.sets, is_quantized=is_quantized)
        return self._copies

    def _compare(self, asked: _Question) -> Verification:
        """The verdict on a result; one that may be random is loaded, and its copy with fixed values is compared."""
        result, loaded = asked.result, list[Source]()
        if self._given_values is not None:
            failure = load_failure(self._runner, result)
            if failure is not None:
                return failure
            model = result if isinstance(result, ir.Model) else load(result, self._token)
            loaded.append(self._runner.written(result, f"{PREFIX}loaded"))
            result, random = self._given_values.of(model)
            comparison = asked.reference.comparison
            random |= frozenset(comparison.random)
            asked = asked.with_reference(comparison=dataclasses.replace(comparison, random=random))
        if not self._is_deployable or self._runner.in_process or asked.where == "":
            told = tuple(Elsewhere(name, None, "it was compared as copies") for name in self._elsewhere)
            verdict, _ = self._verdict_without(asked._replace(result=result, file=result), None)
            return dataclasses.replace(verdict, elsewhere=told)
        asked = asked._replace(result=result, file=self._runner.written(result, "result"))

        def run_of(where: str) -> DeployedRun:
            every = self._deployed_sets(where, asked.reference)
            return self._deployed_models(where).run_of([*loaded, asked.file], every.only(asked.outputs, asked.sets))

        if asked.where is not None and not (asked.where == DEPLOYED and asked.reference.quantized):
            return self._deployed_verdict(asked.where, run_of(asked.where), asked)
        run = run_of(DEPLOYED)
        verdict, asked = self._verdict_without(asked, run)
        if verdict.status not in ("verified", "not shown"):
            return verdict
        deployed = self._deployed_verdict(DEPLOYED, run, asked)
        if deployed.status == "differs":
            return deployed
        elsewhere: list[Elsewhere] = []
        for name in self._elsewhere if asked.where is None else ():
            there = self._deployed_verdict(name, run_of(name), asked)
            if there.status == "differs":
                rest = (*elsewhere, Elsewhere(name, False, there.reason))
                return dataclasses.replace(there, as_deployed=deployed.as_deployed, elsewhere=rest)
            elsewhere.append(Elsewhere(name, there.as_deployed, there.not_as_deployed))
        agrees, why_not = deployed.as_deployed, deployed.not_as_deployed
        return dataclasses.replace(verdict, as_deployed=agrees, not_as_deployed=why_not, elsewhere=tuple(elsewhere))

    def _deployed_sets(self, where: str, reference: ReferenceOutputs) -> ReferenceOutputs:
        """The input sets that are compared: one elsewhere, where new sizes may take a runtime seconds to compile."""
        further = FURTHER_SECONDS if where == DEPLOYED else 0.0
        return ordinary(reference, thorough=self._thorough, further_seconds=further)

    def _deployed_models(self, where: str) -> DeployedModels:
        if where not in self._deployed:
            originals = list(dict.fromkeys((self._as_given, self._original)))
            deployment = DEFAULTS if where == DEPLOYED else on(where)
            self._deployed[where] = DeployedModels(self._runners[where], originals, deployment)
        return self._deployed[where]

    def _deployed_verdict(self, where: str, run: DeployedRun, asked: _Question) -> Verification:
        """The verdict on a result that ONNX Runtime optimizes, or another runtime runs."""
        every, models = self._deployed_sets(where, asked.reference), self._deployed_models(where)
        copies = self._copies_with(asked.reference)
        wanted = every.only(asked.outputs, asked.sets)
        verdict = models.verdict(run, wanted, copies, every, spreading=self._spreading)
        if verdict.status == "differs":
            self._differing = models.differing
            verdict = dataclasses.replace(verdict, where=where)
        elif not verdict.not_as_deployed:
            return verdict
        if asked.reference.quantized:
            return verdict
        apart = dataclasses.replace(verdict, status="differs")  # the original may be, too, and by ties alone
        given = self._near_ties_verdict(apart, asked, models.runner, optimize=True)
        return verdict if given is apart else dataclasses.replace(given, as_deployed=True, not_as_deployed="")

    def _verdict_without(self, asked: _Question, behind: DeployedRun | None) -> tuple[Verification, _Question]:
        """The verdict without optimizations, and the question with what steps of quantizers may excuse.

        Args:
            asked: What is compared.
            behind: What runs behind it, where it agrees.
        """
        if asked.reference.quantized:
            return self._quantized_verdict(asked, behind)
        return self._near_ties_verdict(self._verdict(asked, behind), asked, self._runner), asked

    def _verdict(self, asked: _Question, behind: DeployedRun | None) -> Verification:
        wanted, copies = asked.reference.only(asked.outputs, asked.sets), self._copies_with(asked.reference)
        comparing = ResultComparison(self._runner, wanted, copies, spreading=self._spreading)
        try:
            return comparing.verdict(asked.file, behind=behind)
        finally:
            self._differing = comparing.differing

    def _near_ties_verdict(
        self, verdict: Verification, asked: _Question, runner: ModelRunner, *, optimize: bool = False
    ) -> Verification:
        """The verdict on a result that may differ because a TopK chooses otherwise among what is nearly as good."""
        is_by_numbers = verdict.status == "differs" and bool(verdict.outputs)
        if not is_by_numbers or not math.isfinite(verdict.worst) or self._given_values is not None:
            return verdict
        if runner not in self._near_ties:
            self._near_ties[runner] = NearTies(runner, self._original, asked.reference, self._token)
        given = self._near_ties[runner].compare(asked.result, asked.outputs, asked.sets, optimize=optimize)
        if given is None:
            return verdict
        self._differing = []
        return with_given_places(verdict, given)

    def _quantized_verdict(self, asked: _Question, behind: DeployedRun | None) -> tuple[Verification, _Question]:
        """The verdict on a result of a quantized model: as it is, and without rounding.

        Where it is right without rounding, steps of quantizers may excuse more of what it gives as it is.
        """
        reference = asked.reference
        if self._without_rounding is None:
            self._without_rounding = WithoutRounding(self._runner, self._original, reference, self._token)
        facts: dict[str, Any] = {"quantizers": reference.quantizers}
        try:
            smooth = self._without_rounding.compare(asked.result, asked.outputs, asked.sets)
        except UnavailableError as reason:
            facts["not_unrounded"] = str(reason)
        else:
            facts["unrounded"] = smooth.worst
            if smooth.status == "differs":
                self._differing = self._without_rounding.differing
                return dataclasses.replace(smooth, reason=f"without rounding, {smooth.reason}", **facts), asked
            caps = dict.fromkeys(reference.quantized, STEPS_CAP)
            asked = asked.with_reference(comparison=dataclasses.replace(reference.comparison, caps=caps))
        return dataclasses.replace(self._verdict(asked, behind), **facts), asked

    def _await_early(self, deadline: Deadline | None) -> ReferenceOutputs | Verification:
        """What came of `begin`.

        Raises:
            TimeoutError: It takes too long.
            MemoryError: There was not even enough memory to answer.
        """
        assert self._early is not None
        assert self._early_thread is not None
        while True:
            self._token.check()
            ended = not self._early_thread.is_alive
            left = _BETWEEN_LOOKS if deadline is None else min(_BETWEEN_LOOKS, deadline.left)
            try:
                return self._early.result(left)
            except TimeoutError:
                if self._early.done():  # it ended between the end of the wait and this question
                    return self._early.result()
                if deadline is not None and deadline.is_over:
                    raise
                if ended:
                    raise MemoryError from None

    def inputs_of(self, number: int) -> Inputs:
        """An input set that was compared."""
        assert isinstance(self._outputs, ReferenceOutputs)
        return inputs_from(self._outputs.sets[number].source)

    def kept_runs(self, most: int) -> Iterator[tuple[Inputs, dict[tuple[str, str], Any], Comparison]]:
        """The first ordinary input sets that the original has run on.

        Args:
            most: How many, at most.

        Yields:
            The inputs, the outputs by name and type in ONNX's spelling, and how outputs are compared.
        """
        if not isinstance(self._outputs, ReferenceOutputs):
            return
        kept = self._outputs
        keys = list(zip(kept.names, kept.types, strict=True))
        for one in [each for each in kept.sets.values() if each.is_ordinary][:most]:
            arrays = [in_memory(restore(one.target, row)) for row in one.rows]
            yield inputs_from(one.source), dict(zip(keys, arrays, strict=True)), kept.comparison


__all__ = ["DEPLOYED", "Reference", "Verification", "outputs_of", "verify"]
