"""Bisection: which rewrite makes a result differ; a run is replayed with limits on its rewrites.

The invariant is that the model after ``equal`` rewrites agrees with the original and the one after ``different`` does
not: where the difference appears, disappears and appears again, one of the rewrites at which it appears is found.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from ortopt.cancellation import CancellationToken
from ortopt.errors import OptimizationCancelled, OrtoptError
from ortopt.optimization.replay import NumberedRewrite
from ortopt.optimization.transformation import Transformation
from ortopt.verification.inputs import Inputs
from ortopt.verification.verify import Reference, Verification


@dataclass(frozen=True, slots=True)
class Culprit:
    """The rewrite after which the outputs differ.

    Attributes:
        rewrite: The rewrite.
        verification: How the model after it compares with the original.
        error_before: The worst error of the same outputs before it, relative to their scale.
        probes: Number of models that were compared to find it.
        outputs: The outputs that were compared; None is all.
        sets: The input sets that they were compared on; None is all.
    """

    rewrite: NumberedRewrite
    verification: Verification
    error_before: float
    probes: int
    outputs: frozenset[str] | None
    sets: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class Blame:
    """A culprit, the models around it, and inputs that show it.

    Attributes:
        culprit: The culprit.
        before: The model before it.
        after: The model after it.
        inputs: Inputs of the model on which the difference shows.
    """

    culprit: Culprit
    before: ir.Model
    after: ir.Model
    inputs: Inputs


class NotFound(Exception):  # noqa: N818 -- an answer
    """No rewrite is to blame; the message says why."""


class Bisection:
    """Finds culprits in the runs of a transformation.

    Args:
        transformation: The transformation; its latest run is searched.
        reference: The original; its outputs are computed once.
        token: Cancellation token, with the deadline for all of the search.

    Attributes:
        equal: The largest number of rewrites, in the latest search, after which the outputs are known to agree.
    """

    def __init__(self, transformation: Transformation, reference: Reference, token: CancellationToken) -> None:
        self._transformation = transformation
        self._reference = reference
        self._token = token
        self.equal = self._probes = 0

    def find(self, outcome: Verification) -> Culprit:
        """Search the latest run, whose result differs.

        Args:
            outcome: How its result compares with the original; the last comparison of `reference`.

        Returns:
            The culprit.

        Raises:
            NotFound: The result differs for another reason, or cannot be reproduced.
            DeadlinePassed: There is no time left.
            OptimizationCancelled: The token was set.
        """
        wrong = frozenset(row.name for row in outcome.outputs if not row.agrees) or None
        sets = frozenset(self._reference.differing) or None
        probe_at = functools.partial(self._probe, outputs=wrong, sets=sets, where=outcome.where)
        self.equal = self._probes = 0
        before: Verification | None = None
        different, after = self._transformation.state.offered, None
        while different - self.equal > 1:
            middle = (self.equal + different) // 2
            probe = probe_at(middle)
            if probe[1].status == "differs":
                different, after = middle, probe
            else:
                self.equal, before = middle, probe[1]
        if before is None and probe_at(0)[1].status == "differs":
            raise NotFound("it differs before the first rewrite: what was loaded or converted is not the original")
        if after is None:
            after = probe_at(different)
            if after[1].status != "differs":
                raise NotFound("it did not come out again: a transformer does not do the same each time")
        run, verification = after
        if run.last is None or run.last.number != different:
            raise NotFound(f"it comes with rewrite {different}, which nobody made")
        error_before = 0.0 if before is None else before.worst
        return Culprit(run.last, verification, error_before, self._probes, wrong, sets)

    def _probe(
        self, limit: int, *, outputs: Collection[str] | None, sets: Collection[int] | None, where: str
    ) -> tuple[Transformation, Verification]:
        """The model after some rewrites, and how it compares."""
        self._token.check()
        self._probes += 1
        try:
            run = self.replay(limit)
        except OptimizationCancelled:
            raise
        except OrtoptError as error:
            raise NotFound(f"the run could not be repeated: {error}") from error
        return run, self.compare(run, outputs, sets, where=where)

    def show(self, culprit: Culprit) -> Blame:
        """The models around a culprit, and inputs that tell them apart.

        Args:
            culprit: From `find`.

        Raises:
            NotFound: It did not come out again.
        """
        number = culprit.rewrite.number
        before, after = self.replay(number - 1), self.replay(number)
        where = culprit.verification.where
        if self.compare(after, culprit.outputs, culprit.sets, where=where).status != "differs":
            raise NotFound("it did not come out again: a transformer does not do the same each time")
        inputs = self._reference.inputs_of(self._reference.differing[0])
        return Blame(culprit, before.model, after.model, inputs)

    def replay(self, limit: int) -> Transformation:
        """The model after some rewrites."""
        return self._transformation.replay(limit=limit, token=self._token)

    def compare(
        self,
        run: Transformation,
        outputs: Collection[str] | None,
        sets: Collection[int] | None,
        *,
        where: str | None = None,
    ) -> Verification:
        """Compare what a replay has reached with the original.

        Args:
            run: The replay.
            outputs: The outputs to compare; all if None.
            sets: The input sets to compare on; all if None.
            where: As `Reference.compare` takes it: what differs in one place is searched there.

        Raises:
            DeadlinePassed: It took longer than there is time.
            NotFound: It cannot be compared.
        """
        outcome = self._reference.compare(
            run.model,
            outputs=outputs,
            sets=sets,
            timeout=self._token.left,
            spreading=run.state.is_for_finite_numbers,
            where=where,
        )
        if outcome.status == "impossible":
            self._token.check()
            raise NotFound(f"after {run.state.offered} rewrites it cannot be compared: {outcome.reason}")
        return outcome
