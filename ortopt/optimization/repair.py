"""Repair: the rewrites that make a result differ from the original are found and left out until it does not."""

from __future__ import annotations

import math
import time

from ortopt.cancellation import CancellationToken, DeadlinePassed
from ortopt.errors import VerificationError
from ortopt.optimization.bisection import Bisection, Blame, Culprit, NotFound
from ortopt.optimization.result import Repair
from ortopt.optimization.transformation import Transformation
from ortopt.verification.verify import Reference, Verification

MAX_REPAIRS = 30
"""How often a run whose result differs is repeated without what made it differ."""

MAX_REWRITES_LEFT_OUT = 8
"""How many single rewrites of one transformer are left out (`Options.keep_pass`) before all of it is."""

TIME_TO_CHECK = 60.0
"""Seconds that verification and repair of a run with a timeout may take at least."""


class Repairer:
    """Compares the result of a transformation with the original, and repairs it.

    Args:
        transformation: The transformation; what is repaired is executed again in it.
        reference: The original, as `ortopt.verification` runs it.
        repairs: The repairs so far; more are appended.
        token: Cancellation token of the run.

    Attributes:
        not_repaired: Why a result still differs, to be appended to a message.
    """

    def __init__(
        self, transformation: Transformation, reference: Reference, repairs: list[Repair], token: CancellationToken
    ) -> None:
        self._transformation = transformation
        self._options = transformation.pipeline.options
        self._reference = reference
        self._repairs = repairs
        self._token = token
        timeout = self._options.timeout
        self._deadline = token.with_timeout(None if timeout is None else max(timeout, TIME_TO_CHECK))
        self._bisection: Bisection | None = None
        self.not_repaired = ""

    def verified(self) -> Verification:
        """Compare and repair; where there is no time left, go back to what is known to agree.

        Raises:
            OptimizationCancelled: If it was stopped.
        """
        try:
            outcome = self.compared()
            if outcome.status == "impossible":
                self._deadline.check()
            if outcome.status == "differs" and self._options.repair:
                outcome = self._repaired(outcome)
        except DeadlinePassed:
            return self._best_verified()
        return outcome

    def compared(self) -> Verification:
        """Compare, and repair nothing."""
        return self._compared(self._deadline.left)

    def _compared(self, timeout: float | None) -> Verification:
        result = self._transformation
        spreading = result.state.is_for_finite_numbers
        return self._reference.compare(result.model, timeout=timeout, spreading=spreading)

    def blame(self, outcome: Verification) -> Blame:
        """Find the first rewrite after which the result differs; repair nothing.

        Args:
            outcome: From `compared`; it says that the result differs.

        Raises:
            VerificationError: If no rewrite can be blamed.
            OptimizationCancelled: If it was stopped.
        """
        bisection = Bisection(self._transformation, self._reference, self._deadline)
        try:
            return bisection.show(bisection.find(outcome))
        except (NotFound, DeadlinePassed) as error:
            reason = error if isinstance(error, NotFound) else "there was no time left to find it"
            raise VerificationError(
                f"the result differs from the original: {outcome.reason}; no rewrite can be blamed: {reason}"
            ) from error

    def _repaired(self, outcome: Verification) -> Verification:
        """Leave out what makes the result differ, one culprit after the other, until it agrees."""
        transformation = self._transformation
        bisection = self._bisection = Bisection(transformation, self._reference, self._deadline)
        for _ in range(MAX_REPAIRS):
            started = time.perf_counter()
            try:
                culprit = bisection.find(outcome)
            except NotFound as reason:
                self.not_repaired = f"; no rewrite can be blamed: {reason}"
                return outcome
            self._leave_out(culprit, time.perf_counter() - started)
            transformation.restart()
            transformation.execute(self._execution_token())
            outcome = bisection.compare(transformation, None, None)
            if outcome.status != "differs":
                return outcome
        self.not_repaired = f"; it still does after {MAX_REPAIRS} repairs"
        return outcome

    def _execution_token(self) -> CancellationToken:
        """For a run without a culprit: it may take as long as the first, but ends with the search."""
        timeout, left = self._options.timeout, self._deadline.left
        return self._deadline if timeout is None or left is None else self._token.with_timeout(min(timeout, left))

    def _leave_out(self, culprit: Culprit, seconds: float) -> None:
        rewrite = culprit.rewrite
        earlier = [repair.rewrite.transformer for repair in self._repairs if repair.left_out == "rewrite"]
        single = self._options.keep_pass and earlier.count(rewrite.transformer) < MAX_REWRITES_LEFT_OUT
        if single:
            self._transformation.without.add(rewrite.key)
        else:
            self._transformation.left_out.add(rewrite.transformer)
        outcome = culprit.verification
        self._repairs.append(
            Repair(
                rewrite,
                "rewrite" if single else "pass",
                outcome.reason,
                outcome.worst_output,
                outcome.worst if outcome.outputs else math.inf,
                culprit.error_before,
                culprit.probes,
                seconds,
            )
        )

    def _best_verified(self) -> Verification:
        """Where there is no time left: the most rewrites that are known to agree, or else the original."""
        transformation = self._transformation
        for limit in (self._bisection.equal if self._bisection is not None else 0, 0):
            transformation.go_back(limit)
            transformation.stopped = True
            outcome = self._compared(TIME_TO_CHECK)
            if outcome.status == "verified":
                return outcome
            if limit == 0:
                break
        if outcome.status == "differs":
            return outcome
        return Verification("impossible", f"there was no time; nothing was rewritten ({outcome.reason})")
