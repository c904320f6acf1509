"""Whether a model with other inputs and outputs gives what the original gives, through the adapters of the changes."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ortopt.analysis import dimensions
from ortopt.analysis.providers import CPU
from ortopt.errors import VerificationError
from ortopt.interface.change import adapted, variants
from ortopt.system.files import temporary_folder
from ortopt.terminal_text import one_line, quoted
from ortopt.verification.runner import ModelRunner

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ortopt.cancellation import CancellationToken
    from ortopt.optimization.pipeline import Pipeline
    from ortopt.verification.comparison import OutputRow
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
    original, changed = pipeline.unchanged(token), pipeline.original(token)
    for model in (original, changed) if pipeline.options.input_shapes else ():
        dimensions.override(model, {}, pipeline.options.input_shapes)
    names = tuple(dict.fromkeys((*providers, CPU)))
    with temporary_folder("ortopt-adapters-") as folder:
        runner = ModelRunner(Path(folder), names, token, libraries=pipeline.options.custom_op_libraries)
        with contextlib.closing(runner):
            for drawn, outputs, comparison in reference.kept_runs(_SETS):
                for inputs in variants(pipeline.changes, drawn):
                    expected = adapted(pipeline.changes, functools.partial(runner.outputs, original), inputs)
                    if expected is not None:
                        got = runner.outputs(changed, inputs)
                        _check([comparison.of(name, type_, expected[name], got[name]) for name, type_ in outputs])


def _check(rows: Iterable[OutputRow]) -> None:
    """Refuse outputs that differ."""
    for row in rows:
        if not row.agrees:
            raise VerificationError(
                "with other inputs and outputs, the model differs from the original:"
                f" output {quoted(row.name)}: {one_line(row.detail)}"
            )
