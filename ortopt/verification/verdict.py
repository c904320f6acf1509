"""The verdict of a verification: whether a result computes what its original computes, and how it was found out."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from ortopt.terminal_text import quoted
from ortopt.verification.comparison import OutputRow, worst_of
from ortopt.verification.layer_rows import Layers


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """How a result compares with its original on another runtime.

    Attributes:
        runtime: Its name, with its release.
        agrees: Whether the result runs and agrees there; None where that is not shown.
        reason: Why not; one line.
    """

    runtime: str
    agrees: bool | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    """How a result compares with its original.

    Attributes:
        status: ``not shown`` where both run and no output shows anything: each is NaN everywhere, or random;
            ``impossible`` where the original cannot be run here.
        reason: Why it differs or is impossible, and which outputs show nothing; one line.
        worst: The worst error of all outputs, relative to the output's scale.
        worst_output: The name of that output.
        outputs: A row for each output.
        input_sets: How many input sets were compared.
        attempts: How many input sets were tried on the original.
        random: Whether outputs are random, so that only their dtypes and shapes were compared; ``reason`` names them.
        seconds: How long the verification took.
        quantizers: How many nodes of the original round to integers of few bits.
        unrounded: The worst error where nothing is rounded (`ortopt.verification.without_rounding`), as `worst` has it;
            None where that was not compared.
        not_unrounded: Why it was not, of a quantized original.
        spread: At how many places of the outputs, at most, the result is NaN or infinite beside such numbers of the
            original, where that is finite (`ortopt.verification.result_comparison`).
        as_deployed: Whether the result also runs and agrees as it is loaded by default, which is with ONNX Runtime's
            own optimizations (`ortopt.verification.deployed`); None where that was not compared.
        not_as_deployed: Why it was not, or what these optimizations break of the original, too.
        where: Where it differs: empty without optimizations, else as `Reference.compare` takes it.
        elsewhere: How it compares on other runtimes that were asked for.
        layers: How intermediate values compare; None where that was not asked for, or the original does not run.
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
    quantizers: int = 0
    unrounded: float | None = None
    not_unrounded: str = ""
    spread: int = 0
    as_deployed: bool | None = None
    not_as_deployed: str = ""
    where: str = ""
    elsewhere: tuple[Elsewhere, ...] = ()
    layers: Layers | None = None


def verdict_of(
    rows: Sequence[OutputRow],
    *,
    random: Collection[str],
    hidden: Collection[str],
    input_sets: int,
    attempts: int,
    spread: int = 0,
) -> Verification:
    """The verdict that follows from a comparison of all outputs.

    Args:
        rows: A row for each output, of the input set on which it differs most.
        random: The outputs that are random.
        hidden: The outputs that are NaN on every input set.
        input_sets: As `Verification` has it.
        attempts: As `Verification` has it.
        spread: As `Verification` has it.
    """
    rows = [dataclasses.replace(row, shown=row.name not in random and row.name not in hidden) for row in rows]
    worst = worst_of(rows, "")
    reasons = {
        "random, so compared by dtype and shape only": [row for row in rows if row.name in random],
        "NaN on every input set": [row for row in rows if row.name in hidden and row.name not in random],
    }
    notes = [f"{', '.join(quoted(row.name) for row in some)} ({reason})" for reason, some in reasons.items() if some]
    reason = f"not shown: {'; '.join(notes)}" if notes else ""
    status: Literal["verified", "differs", "not shown"] = "verified"
    if not all(row.agrees for row in rows):
        status, reason = "differs", f"output {quoted(worst.name)}: {worst.detail}"
    elif rows and not any(row.shown for row in rows):
        status = "not shown"
    is_random = any(row.name in random for row in rows)
    return Verification(
        status, reason, worst.worst, worst.name, tuple(rows), input_sets, attempts, is_random, spread=spread
    )
