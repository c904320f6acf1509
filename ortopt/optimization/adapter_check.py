"""Whether a model with other inputs and outputs gives what the original gives, through the adapters of the changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ortopt.errors import VerificationError
from ortopt.interface.change import Arrays, adapted
from ortopt.terminal_text import one_line
from ortopt.verification.runner import outputs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortopt.cancellation import CancellationToken
    from ortopt.optimization.pipeline import Pipeline
    from ortopt.verification.verify import Reference

_SETS: Final = 2
"""How many input sets the original runs on."""


def check_adapters(
    reference: Reference, pipeline: Pipeline, providers: Sequence[str], token: CancellationToken
) -> None:
    """Run the original, as its file has it, through the adapters, and compare with the model that has been changed.

    Args:
        reference: The changed model, not optimized; it has run.
        pipeline: Loads the original, and knows the changes.
        providers: What runs it.
        token: Cancellation token.

    Raises:
        VerificationError: If the outputs differ, or the original does not run.
    """
    original = pipeline.resized_only(token)
    libraries = pipeline.options.custom_op_libraries

    def run(inputs: Arrays) -> Arrays:
        return outputs_of(original, inputs, providers=providers, libraries=libraries)

    for inputs, outputs, comparison in reference.kept_runs(_SETS):
        expected = adapted(pipeline.changes, run, inputs)
        if expected is None:
            continue
        for (name, type_), got in outputs.items():
            row = comparison.of(name, type_, expected[name], got)
            if not row.agrees:
                raise VerificationError(
                    f"with other inputs and outputs, the model differs from the original: {one_line(row.detail)}"
                )
