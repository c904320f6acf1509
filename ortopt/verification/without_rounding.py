"""A quantized original and its results side by side without rounding, where the usual tolerance holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.serialization.load import load
from ortopt.verification import noise
from ortopt.verification.comparison import Comparison
from ortopt.verification.input_sets import InputSet
from ortopt.verification.perturbed_outputs import PerturbedCopies
from ortopt.verification.process import WorkerError
from ortopt.verification.quantizers import has_biases
from ortopt.verification.reference_outputs import ReferenceOutputs
from ortopt.verification.result_comparison import ResultComparison
from ortopt.verification.runner import ModelRunner, Source
from ortopt.verification.tolerances import kernel_steps, tolerances
from ortopt.verification.unrounded import unrounded
from ortopt.verification.unrounded_ops import NoFormulaError
from ortopt.verification.verdict import Verification


class UnavailableError(Exception):
    """There is no copy without rounding, or it does not run; the message says why."""


class WithoutRounding:
    """The original without rounding, with which results without rounding are compared.

    A bias of floats beside quantized operands is rounded by the integer kernels, and by no others. So a result is right
    that agrees in either way: with such biases rounded in both models, or in none.

    Args:
        runner: Runs them.
        original: The original.
        reference: The outputs of the original as it is.
        token: Cancellation token.

    Attributes:
        differing: The input sets on which the last result differed.
    """

    def __init__(
        self, runner: ModelRunner, original: Source, reference: ReferenceOutputs, token: CancellationToken = NEVER
    ) -> None:
        self.differing: list[int] = []
        self._arguments = runner, original, reference, token
        self._ways: dict[bool, _OneWay] = {}

    def compare(self, result: Source, outputs: Collection[str] | None, sets: Collection[int] | None) -> Verification:
        """The verdict on a result without rounding.

        Args:
            result: The result as it is.
            outputs: The outputs to compare; all if None.
            sets: The input sets to compare on; all if None.

        Raises:
            UnavailableError: Nothing can be said.
        """
        first: Verification | None = None
        for rounded in (True, False):
            if rounded not in self._ways:
                self._ways[rounded] = _OneWay(*self._arguments, rounded)
            verdict = self._ways[rounded].compare(result, outputs, sets)
            self.differing = self._ways[rounded].differing
            if verdict.status != "differs" or (rounded and not self._has_biases(result)):
                return verdict
            first = first or verdict
        assert first is not None
        self.differing = self._ways[True].differing
        return first

    def _has_biases(self, result: Source) -> bool:
        _, original, _, token = self._arguments
        models = (model if isinstance(model, ir.Model) else load(model, token) for model in (original, result))
        return any(has_biases(model, token) for model in models)


class _OneWay:
    """The same, with biases rounded or not.

    Args:
        runner: See `WithoutRounding`.
        original: Likewise.
        reference: Likewise.
        token: Likewise.
        biases: Whether they are rounded.

    Attributes:
        differing: The input sets on which the last result differed.
    """

    def __init__(
        self,
        runner: ModelRunner,
        original: Source,
        reference: ReferenceOutputs,
        token: CancellationToken,
        biases: bool,
    ) -> None:
        self.differing: list[int] = []
        self._biases = biases
        self._prefix = "unrounded-" if biases else "unrounded2-"
        self._runner = runner
        self._token = token
        self._reference: ReferenceOutputs | None = None
        self._unavailable = ""
        try:
            copy = self._copy(original, "the original")
            self._reference = self._run(copy, reference)
        except UnavailableError as reason:
            self._unavailable = str(reason)
            return
        self._copies = PerturbedCopies(runner, copy, self._reference.sets, prefix=self._prefix)

    def _copy(self, model: Source, what: str) -> ir.Model:
        loaded = model if isinstance(model, ir.Model) else load(model, self._token)
        if noise.constant_bytes(loaded, self._token) > noise.LARGEST_COPY:
            raise UnavailableError(f"{what} is too large")
        try:
            return unrounded(loaded, self._token, biases_as_integers=self._biases)
        except NoFormulaError as error:
            raise UnavailableError(f"{error} of {what} has no form without rounding") from None

    def _run(self, copy: ir.Model, reference: ReferenceOutputs) -> ReferenceOutputs:
        sets: dict[int, InputSet] = {}
        try:
            with self._runner.worker(copy, f"{self._prefix}original") as worker:
                names, types = tuple(worker.names), tuple(worker.types)
                for number, input_set in reference.sets.items():
                    if not input_set.extreme:
                        target = self._runner.place(f"{self._prefix}original{number}")
                        rows = worker.run(input_set.source, target)
                        sets[number] = InputSet(
                            input_set.source, target, rows, input_set.label, worker.seconds, input_set.elements
                        )
                        sets[number].signs = input_set.signs
        except WorkerError as error:
            if not sets:
                raise UnavailableError(f"the original does not run without rounding: {error}") from None
        random, steps = reference.comparison.random, kernel_steps(copy)
        comparison = Comparison(tolerances(copy, self._token), random, steps=steps)
        return dataclasses.replace(reference, names=names, types=types, sets=sets, comparison=comparison)

    def compare(self, result: Source, outputs: Collection[str] | None, sets: Collection[int] | None) -> Verification:
        """The verdict on a result without rounding; raises `UnavailableError`."""
        if self._reference is None:
            raise UnavailableError(self._unavailable)
        copy = self._copy(result, "the result")
        reference = self._reference.only(outputs, sets)
        comparing = ResultComparison(self._runner, reference, self._copies, self._prefix)
        try:
            with self._runner.worker(copy, f"{self._prefix}loaded") as worker:
                if tuple(worker.types) != reference.types:
                    raise UnavailableError("the result has integers where the original has floats without rounding")
            verdict = comparing.verdict(copy)
        except WorkerError as error:
            raise UnavailableError(f"the result does not run without rounding: {error}") from None
        if verdict.status != "verified" and not verdict.outputs:
            raise UnavailableError(f"the result does not run without rounding: {verdict.reason}")
        self.differing = comparing.differing
        return verdict
