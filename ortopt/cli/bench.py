"""``ortopt bench``: a model as it is, optimized, and grouped, side by side."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortopt.cli.limits import memory_option
from ortopt.cli.numbers import THREADS, Finite
from ortopt.cli.run_options import run_option

if TYPE_CHECKING:
    from ortopt.cli.models import ModelArgument
    from ortopt.measurement.in_turns import Effort, Figures, Spread, Version


@click.command("bench", short_help="Time a model against what levels make of it.")
@click.argument("model_names", metavar="MODEL...", nargs=-1, required=True)
@click.option(
    "--levels",
    metavar="0,3,4",
    default="0,3,4",
    help="Versions to measure: 0 is the original, 1 to 3 are levels, 4 runs in groups.  [default: 0,3,4]",
)
@click.option(
    "--inputs", metavar="FILE.npz", help="Input arrays by name; only for a single model.  [default: random inputs]"
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the random inputs.")
@run_option("dims", help_="The size of a symbolic dimension in drawn inputs.")
@run_option("providers")
@click.option("--threads", type=THREADS, default=0, help="Threads that one op may use.  [default: one for each core]")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of processes that measure each version.",
)
@click.option(
    "--repeat", type=click.IntRange(min=1), default=50, show_default=True, help="Timed calls in each process."
)
@click.option(
    "--seconds", type=Finite(min=0), default=2.0, show_default=True, help="Most seconds of timed calls in each process."
)
@click.option(
    "--verify/--no-verify", default=True, show_default=True, help="Verify the optimized models before they are timed."
)
@memory_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--trace", "trace_file", metavar="FILE", help="Write a timeline for ui.perfetto.dev; only for a single model."
)
def command(model_names: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Compare models with what -O3 makes of them under ONNX Runtime, and -O4 under ortopt.InferenceSession.

    Each version is measured in processes of its own, in turn, on the same inputs: calls, creation, memory. MODEL is a
    file, "-" for stdin, or zoo:NAME.
    """
    from ortopt.analysis.providers import normalize, usable
    from ortopt.benchmarking import benchmark
    from ortopt.cli import files, models
    from ortopt.errors import UsageError
    from ortopt.measurement.in_turns import Effort
    from ortopt.option_kinds import commas
    from ortopt.serialization.load import load

    for option in ("inputs", "trace_file"):
        if flags[option] is not None and len(model_names) > 1:
            raise UsageError(f"--{option.removesuffix('_file')} is for one model at a time")
    if flags["trace_file"] == files.STREAM:
        raise UsageError("--trace takes a file")
    if model_names.count(files.STREAM) > 1:
        raise UsageError("only one of the models can come from stdin")
    levels = _levels(flags["levels"])
    effort = Effort(
        flags["rounds"],
        flags["repeat"],
        flags["seconds"],
        flags["threads"],
        tuple(dict.fromkeys(normalize(name) for name in commas(flags["providers"]) or ("cpu",))),
    )
    for provider in effort.providers:
        works, reason = usable(provider)
        if not works:
            raise UsageError(f"{provider} does not work here, and cannot be measured: {reason}")
    arguments = [models.resolve(name) for name in model_names]
    outputs = {"--trace": flags["trace_file"]}
    files.check_outputs(outputs, {"the model": arguments[0].path, "the inputs": flags["inputs"]})
    for argument in arguments:
        loaded = load(argument.source)  # a broken model is reported before anything is measured
        files.check_not_read(outputs, {"external data of the model": models.external_data(loaded)})
    rows = []
    for argument in arguments:
        figures = _compared(argument, levels, effort, flags)
        rows.append({"model": argument.label, "versions": [benchmark.as_row(version) for version in figures]})
        if not as_json:
            _show(argument.label, figures)
    if as_json:
        how = {"rounds": effort.rounds, "repeat": effort.repeat, "seconds": effort.seconds, "threads": effort.threads}
        data = {"schema": 1, "providers": list(effort.providers), "effort": how, "models": rows}
        click.echo(json.dumps(data, indent=2))


def _levels(text: str) -> tuple[int, ...]:
    from ortopt.errors import UsageError

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or any(part not in {"0", "1", "2", "3", "4"} for part in parts):
        raise UsageError(f"--levels takes numbers from 0 to 4, not {text!r}")
    return tuple(dict.fromkeys(map(int, parts)))


def _compared(argument: ModelArgument, levels: tuple[int, ...], effort: Effort, flags: dict[str, Any]) -> list[Figures]:
    from ortopt.benchmarking import benchmark
    from ortopt.cli import arrays, files
    from ortopt.option_kinds import named_sizes
    from ortopt.serialization.load import load
    from ortopt.system.temporary_files import temporary_folder

    loaded = load(argument.source)
    candidates = arrays.candidates(
        argument, loaded, flags["inputs"], flags["seed"], named_sizes("--dim", flags["dims"])
    )
    with temporary_folder("ortopt-bench-") as name:
        folder = Path(name)
        inputs = folder / "inputs.npz"
        original = _original(argument, folder)
        feeds = _accepted(argument, original, candidates, inputs, effort)
        versions = [
            _optimized(argument, level, folder, feeds, effort, verify=flags["verify"]) if level else original
            for level in levels
        ]
        figures, trace = benchmark.compare(versions, inputs, effort, folder if flags["trace_file"] else None)
    benchmark.require_original(figures)
    if trace is not None:
        files.write_text(flags["trace_file"], json.dumps(trace) + "\n")
    return figures


def _accepted(
    argument: ModelArgument, original: Version, candidates: Any, path: Path, effort: Effort
) -> dict[str, Any]:
    """The first inputs that the model runs on; they are in the file then.

    Raises:
        UsageError: The user's do not fit it.
        InvalidModelError: It runs on none.
    """
    import numpy as np

    from ortopt.cli import arrays
    from ortopt.errors import InvalidModelError, UsageError
    from ortopt.measurement.in_turns import Failure, attempt

    first: Failure | None = None
    for feeds, drawn in candidates:
        for name, value in feeds.items():
            if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufcOU":
                raise UsageError(f"input {name!r} has a type that numpy does not have, so bench cannot use it")
        path.write_bytes(arrays.archive(feeds))
        failure = attempt(original, path, effort)
        if failure is None:
            return dict(feeds)
        if not drawn and failure.kind in arrays.UNFIT:
            raise UsageError(f"the inputs do not fit {argument.label}: {failure.reason}")
        first = first or failure
        if not failure.opens or not drawn:
            raise InvalidModelError(f"{argument.label} cannot be run: {failure.reason}")
    reason = "" if first is None else first.reason
    raise InvalidModelError(f"{argument.label} cannot be run: {reason} ({arrays.HINT})")


def _original(argument: ModelArgument, folder: Path) -> Version:
    """The model as it is: its file, or one for what came through a stream."""
    from ortopt.benchmarking.benchmark import version_of
    from ortopt.serialization.save import save

    if isinstance(argument.source, Path):
        return version_of(0, argument.source)
    save(argument.source, folder / "original.onnx")
    return version_of(0, folder / "original.onnx")


def _optimized(
    argument: ModelArgument, level: int, folder: Path, feeds: dict[str, Any], effort: Effort, *, verify: bool
) -> Version:
    from ortopt import api
    from ortopt.benchmarking.benchmark import version_of

    path = folder / f"level{level}.onnx"
    result = api.optimize(
        argument.source, level=level, providers=effort.providers, verify=verify, inputs=feeds, strict=False
    )
    result.save(path)
    return version_of(level, path)


def _show(label: str, versions: list[Figures]) -> None:
    from ortopt.reporting import report

    out = report.console(sys.stdout)
    out.print(label, soft_wrap=True)
    headers = ("version", "call, ms", "quartiles", "of the first", "open, s", "first call, ms", "memory", "peak")
    out.print(report.table(headers, [_cells(figures) for figures in versions]))
    for figures in versions:
        if figures.error:
            out.print(f"{figures.version.name} does not run: {figures.error}", soft_wrap=True)
    out.print()


def _cells(figures: Figures) -> tuple[str, ...]:
    from ortopt.reporting.report import size

    if figures.call is None or figures.open is None or figures.first is None:
        return (figures.version.name, *("",) * 7)
    return (
        figures.version.name,
        f"{figures.call.median * 1e3:.3g}",
        f"{figures.call.low * 1e3:.3g} to {figures.call.high * 1e3:.3g}",
        "" if figures.ratio is None else f"{figures.ratio.median:.2f}",
        f"{figures.open.median:.3f}",
        f"{figures.first.median * 1e3:.3g}",
        *(_bytes(spread, size) for spread in (figures.anonymous, figures.peak)),
    )


def _bytes(spread: Spread | None, size: Any) -> str:
    return "" if spread is None else str(size(max(0, int(spread.median))))
