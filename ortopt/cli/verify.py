"""``ortopt verify``: two models on the same inputs, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from ortopt.cli.option_groups import Finite, count_option, inputs_option, memory_option
from ortopt.cli.run_options import run_option

if TYPE_CHECKING:
    from rich.console import Console

    from ortopt.verification.comparison import OutputRow
    from ortopt.verification.verify import Verification

_MAX_OUTPUTS: Final = 3
"""Outputs that are shown beside layers."""


@click.command("verify", short_help="Compare two models on the same inputs.")
@click.argument("original", metavar="A")
@click.argument("result", metavar="B")
@inputs_option("Input arrays by name.  [default: several sets of random inputs]")
@run_option("dims", help_="The size of a symbolic dimension in drawn inputs.")
@run_option("input_shapes", help_="The shape of a drawn input.")
@count_option("--seed", 0, "Seed of the random inputs.", least=0)
@click.option("--thorough", is_flag=True, help="Compare on many more sets of random inputs.")
@run_option("rtol", help_="Relative tolerance, as in numpy.allclose.  [default: from dtype, scale and noise]")
@run_option("atol", help_="Absolute tolerance, as in numpy.allclose.  [default: from dtype, scale and noise]")
@run_option("finite_math", help_="Allow B NaN and infinities beside those of A, as optimize does.")
@run_option("providers")
@run_option("custom_op_libraries")
@run_option(
    "verify_with", help_="Compare on another runtime, too: a Python that has one, openvino, or a package for node."
)
@click.option(
    "--timeout", type=Finite(min=0, min_open=True), metavar="SECONDS", help="Give up after this time, with exit code 2."
)
@click.option("--layers", is_flag=True, help="Compare intermediate values, too: where B begins to differ from A.")
@click.option("-v", "--verbose", is_flag=True, help="With --layers: show all values that are compared.")
@memory_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(original: str, result: str, as_json: bool, **flags: Any) -> None:
    """Run model B against model A under ONNX Runtime without optimization.

    Exits with 0 if every output of B is what A gives, with 3 if one is not, and with 2 if A cannot be run here. A and B
    are files, zoo:NAME, or, one of them, "-" for stdin.
    """
    from ortopt.verification import start

    click.get_current_context().with_resource(start.early())
    from ortopt.analysis.providers import full_names, here, in_place_of
    from ortopt.cli import arrays, files, models
    from ortopt.cli.interaction import answer, warn
    from ortopt.cli.run_options import checked_files
    from ortopt.errors import InvalidModelError, UsageError, VerificationError
    from ortopt.option_kinds import commas, named_shapes, named_sizes
    from ortopt.serialization.load import load
    from ortopt.verification import runtimes
    from ortopt.verification.verify import verify

    if original == result == files.STREAM:
        raise UsageError("only one of the models can come from stdin")
    providers = full_names(commas(flags["providers"]) or ("cpu",))
    first, second = models.resolve(original), models.resolve(result)
    elsewhere = [runtimes.find(text, providers=providers) for text in flags["verify_with"]]
    if absent := in_place_of(providers):
        warn(absent)
    providers = here(providers)
    sizes: Mapping[str, int] = named_sizes("--dim", flags["dims"])
    loaded, _ = [load(argument.source) for argument in (first, second)]  # errors name the broken file
    shapes = named_shapes("--input-shape", flags["input_shapes"])
    interface, sizes = arrays.sized_interface(loaded, sizes, shapes, flags["inputs"])
    inputs = models.verification_inputs(flags["inputs"], first, sizes)
    outcome = verify(
        first.source,
        second.source,
        inputs=inputs,
        seed=flags["seed"],
        sizes=sizes,
        interface=interface,
        providers=list(providers),
        timeout=flags["timeout"],
        rtol=flags["rtol"],
        atol=flags["atol"],
        thorough=flags["thorough"],
        finite_math=flags["finite_math"],
        libraries=checked_files(flags["custom_op_libraries"]),
        runtimes=elsewhere,
        layers=flags["layers"],
    )
    data = describe(outcome, first.label, second.label, providers)
    answer(data, lambda _, out: _show(outcome, out, is_verbose=flags["verbose"]), as_json=as_json)
    if outcome.status in ("impossible", "not shown"):
        raise InvalidModelError(f"the models could not be compared: {outcome.reason}")
    if outcome.status == "differs":
        raise VerificationError(f"the models differ: {outcome.reason}")


def describe(outcome: Verification, original: str, result: str, providers: Sequence[str]) -> dict[str, Any]:
    """How two models compare, as data that json can write.

    Args:
        outcome: The comparison.
        original: The first, as the user named it.
        result: The second.
        providers: Full names of those that both ran on.
    """
    from ortopt.reporting import report

    return {
        "schema": 1,
        "original": original,
        "result": result,
        **report.plain(outcome),
        "verified_on": list(providers),
    }


def _show(outcome: Verification, out: Console, *, is_verbose: bool) -> None:
    from ortopt.reporting import layers, report, tables
    from ortopt.verification.verify import DEPLOYED

    headers = ["output", "agrees", "worst element", "absolute", "relative", "of scale", "allowed", "noise"]
    is_short = outcome.layers is not None and not is_verbose
    outputs = _worst(outcome.outputs) if is_short else outcome.outputs
    rows = [_cells(row) for row in outputs]
    if any(row.zeros for row in outputs):
        headers.append("zeros of the other sign")
        rows = [(*cells, str(row.zeros)) for cells, row in zip(rows, outputs, strict=True)]
    if rows:
        out.print(tables.table(headers, rows, text=3))
        if len(outputs) < len(outcome.outputs):
            tables.say(out, f"{len(outcome.outputs) - len(outputs)} more outputs with smaller errors (-v shows all)")
        out.print()
    sets = f"{outcome.input_sets} input set{'' if outcome.input_sets == 1 else 's'}"
    reason = f", {outcome.reason}" if outcome.status == "verified" and outcome.reason else ""
    tables.say(out, f"{outcome.status}: {sets}, {outcome.seconds:.2f} s{reason}")
    if outcome.spread:
        tables.say(out, f"{report.spread_text(outcome.spread)} (--no-finite-math allows none)")
    for line in report.beside_verdict(report.plain(outcome)):
        tables.say(out, line)
    if outcome.layers is not None:
        layers.show(outcome.layers, out, every=is_verbose)
        if outcome.where:
            where = "ONNX Runtime's own optimizations" if outcome.where == DEPLOYED else outcome.where
            tables.say(out, f"the outputs differ with {where} only: intermediate values are compared without")


def _worst(rows: Sequence[OutputRow]) -> list[OutputRow]:
    """The few outputs that differ most, in their order."""
    chosen = sorted(rows, key=lambda row: (row.agrees, -row.worst))[:_MAX_OUTPUTS]
    return [row for row in rows if row in chosen]


def _cells(row: OutputRow) -> tuple[str, ...]:
    where = f"{row.got} at {list(row.index)}" if row.got == row.expected else f"{row.got} instead of {row.expected}"
    if row.index and row.got != row.expected:
        where += f" at {list(row.index)}"
    return (
        row.name,
        "yes" if row.agrees else "no",
        where if row.expected else "",
        _number(row.absolute),
        _number(row.relative),
        _number(row.worst),
        _number(row.tolerance),
        "" if row.noise is None else _number(row.noise),
    )


def _number(number: float) -> str:
    return "" if math.isinf(number) else f"{number:.2g}"
