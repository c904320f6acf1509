"""The original of a verification: what must be known of its graph, the input sets on which it runs, its outputs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from ortopt.cancellation import CancellationToken
from ortopt.errors import UsageError
from ortopt.terminal_text import quoted
from ortopt.verification.comparison import Comparison
from ortopt.verification.draws import Draw
from ortopt.verification.input_search import MAX_CRASHES, Search
from ortopt.verification.input_sets import InputSet
from ortopt.verification.inputs import Inputs, Interface, Recorded
from ortopt.verification.kernel_steps import kernel_steps
from ortopt.verification.process import WorkerError
from ortopt.verification.quantizers import quantized_outputs, quantizers
from ortopt.verification.randomness import random_outputs
from ortopt.verification.runner import ModelRunner, Source
from ortopt.verification.tolerances import TOLERANCES, tolerances
from ortopt.verification.verdict import Verification


class OriginalFacts:
    """What must be known of the original's graph to run it and to compare with it; the graph may change afterwards.

    Args:
        model: The original.
        seed: The seed of what is drawn.
        sizes: Sizes of symbolic dimensions.
        rtol: As `Comparison` takes it.
        atol: As `Comparison` takes it.
        interface: Its inputs before it was given the sizes; None if the sizes are not its own.
        nonempty: Symbols that are not 0.
        token: Cancellation token.

    Attributes:
        quantized: The outputs that depend on a node that rounds to few bits; none where the caller has chosen the
            tolerance.
        quantizers: How many such nodes there are.
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
        nonempty: Collection[str] = (),
    ) -> None:
        self.interface = Interface(model, token) if interface is None else interface
        random, steps = random_outputs(model, token), kernel_steps(model)
        self.comparison = Comparison(tolerances(model, token), random, rtol, atol, steps=steps)
        self.quantized = quantized_outputs(model, token) if rtol is None and atol is None else frozenset()
        self.quantizers = sum(1 for _ in quantizers(model, token)) if self.quantized else 0
        self.seed = seed
        self.sizes = dict(sizes)
        self.nonempty = frozenset(nonempty)

    @property
    def is_fine(self) -> bool:
        """Whether nothing is computed in less than single precision, which large numbers would overflow.

        Where the caller has chosen the tolerance, no large numbers are drawn either: it is meant for ordinary ones.
        """
        if self.comparison.rtol is not None or self.comparison.atol is not None:
            return False
        return max(self.comparison.tolerances.values(), default=0.0) <= TOLERANCES[ir.DataType.FLOAT]

    def draw(self, how: Draw) -> Inputs:
        """Inputs, drawn in a certain way."""
        return self.interface.draw(seed=self.seed, sizes=self.sizes, how=how)


@dataclass(frozen=True, slots=True)
class ReferenceOutputs:
    """The outputs of the original, on all input sets.

    Attributes:
        names: The outputs' names.
        types: Their types, in ONNX's spelling.
        sets: Input sets with the original's outputs, by number.
        reference_seconds: Seconds that the original took.
        comparison: How results are compared.
        wanted: The outputs to compare.
        quantized: Those that depend on a node that rounds to few bits.
        quantizers: How many such nodes the original has.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    sets: Mapping[int, InputSet]
    reference_seconds: float
    comparison: Comparison
    wanted: frozenset[str]
    quantized: frozenset[str] = frozenset()
    quantizers: int = 0

    def only(self, outputs: Collection[str] | None, sets: Collection[int] | None) -> ReferenceOutputs:
        """The same with fewer outputs and input sets; those of no such name are ignored."""
        wanted = self.wanted if outputs is None else self.wanted & set(outputs)
        chosen = {number: input_set for number, input_set in self.sets.items() if sets is None or number in sets}
        return dataclasses.replace(self, wanted=wanted, sets=chosen)


def run_original(
    runner: ModelRunner, original: Source, facts: OriginalFacts, inputs: Inputs | None, *, thorough: bool
) -> ReferenceOutputs | Verification:
    """Run the original.

    Args:
        runner: Runs it.
        original: A path or a model.
        facts: What must be known of it.
        inputs: Its inputs; None draws them.
        thorough: Whether many more input sets are drawn.

    Returns:
        Its outputs; or the verdict that nothing can be verified, with the reason.

    Raises:
        UsageError: The inputs lack one of the model, or have other sizes than the caller has chosen.
    """
    if inputs is not None:
        missing = [name for name in facts.interface.names if name not in inputs]
        if missing:
            raise UsageError(f"the inputs do not contain {', '.join(quoted(name) for name in missing)}")
        if not isinstance(inputs, Recorded):
            facts.interface.check(inputs, facts.sizes)
    search = Search(
        facts.interface,
        facts.draw,
        runner.attempt,
        fine=facts.is_fine,
        given=facts.sizes,
        nonempty=facts.nonempty,
        thorough=thorough,
    )
    while True:
        start, crashes = time.monotonic(), search.crashes
        try:
            with runner.worker(original, "original") as worker:
                worker.wait()
                sets = [] if inputs is None else [runner.attempt(worker, inputs)]
                sets += search.run(worker) if inputs is None or thorough else []
                names, types = tuple(worker.names), tuple(worker.types)
                break
        except WorkerError as error:
            if isinstance(inputs, Recorded):
                inputs = None
                continue
            if inputs is not None and not error.late:
                reason = f"the original does not run on the inputs that were given: {error}"
                return Verification("impossible", reason, attempts=runner.attempts)
            if not crashes < search.crashes < MAX_CRASHES:
                reason = f"the original does not run here: {search.error or error}"
                return Verification("impossible", reason, attempts=runner.attempts)
        except UsageError as error:
            return Verification("impossible", f"no inputs can be drawn: {error}", attempts=runner.attempts)
    seconds = time.monotonic() - start
    return ReferenceOutputs(
        names,
        types,
        dict(enumerate(sets)),
        seconds,
        facts.comparison,
        frozenset(names),
        facts.quantized,
        facts.quantizers,
    )
