"""``ortopt bench``: a model as it is, optimized, and grouped, side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortopt.cli.option_groups import THREADS, Finite, count_option, inputs_option, memory_option
from ortopt.cli.run_options import run_option

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortopt.cli.models import ModelArgument
    from ortopt.instrumentation.explanation import Explanation
    from ortopt.measurement.asking import MeasurementBudget
    from ortopt.measurement.in_turns import Figures, Spread, Version
    from ortopt.measurement.inputs import StoredInputs


@click.command("bench", short_help="Time a model against what levels make of it.")
@click.argument("model_names", metavar="MODEL...", nargs=-1, required=True)
@click.option(
    "--levels",
    metavar="0,3,4",
    default="0,3,4",
    help="Versions to measure: 0 is the original, 1 to 3 are levels, 4 runs in groups.  [default: 0,3,4]",
)
@inputs_option("Input arrays by name; only for a single model.  [default: random inputs]")
@count_option("--seed", 0, "Seed of the random inputs.", least=0)
@run_option("dims", help_="The size of a symbolic dimension in drawn inputs.")
@run_option("dim_hints")
@run_option("input_shapes", help_="The shape of a drawn input.")
@run_option("providers")
@run_option("custom_op_libraries")
@click.option("--threads", type=THREADS, default=0, help="Threads that one op may use.  [default: ONNX Runtime's]")
@count_option("--rounds", 5, "Number of processes that measure each version.")
@count_option("--repeat", 50, "Timed calls in each process.")
@click.option(
    "--seconds", type=Finite(min=0), default=2.0, show_default=True, help="Most seconds of timed calls in each process."
)
@click.option(
    "--verify/--no-verify", default=True, show_default=True, help="Verify the optimized models before they are timed."
)
@click.option("--profile", is_flag=True, help="Show where the time goes, by op, and why it is not less.")
@memory_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--trace", "trace_file", metavar="FILE", help="Write a timeline for ui.perfetto.dev; only for a single model."
)
def command(model_names: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Compare models with what -O3 makes of them under ONNX Runtime, and -O4 under ortopt.InferenceSession.

    Each version is measured in processes of its own, in turn, on the same inputs: calls, creation, memory. Where sizes
    are open, they are representative: a table for each way to call the model, e.g. with 16 and with 128 tokens. Models
    of one interface share a table. MODEL is a file, "-" for stdin, or zoo:NAME.
    """
    from ortopt.cli import files, models
    from ortopt.errors import UsageError
    from ortopt.serialization.load import load

    for option in ("inputs", "trace_file"):
        if flags[option] is not None and len(model_names) > 1:
            raise UsageError(f"--{option.removesuffix('_file')} is for one model at a time")
    if flags["trace_file"] == files.STREAM:
        raise UsageError("--trace takes a file")
    if model_names.count(files.STREAM) > 1:
        raise UsageError("only one of the models can come from stdin")
    levels, budget = _levels(flags["levels"]), _budget(flags)
    arguments = [models.resolve(name) for name in model_names]
    outputs = {"--trace": flags["trace_file"]}
    files.check_outputs(outputs, {"the model": arguments[0].path, "the inputs": flags["inputs"]})
    tables: dict[object, list[ModelArgument]] = {}
    for argument in arguments:
        loaded = load(argument.source)  # a broken model is reported before anything is measured
        files.check_not_read(outputs, {"external data of the model": models.external_data(loaded)})
        tables.setdefault(_interface(loaded), []).append(argument)
    rows = []
    measured = (table for together in tables.values() for table in _compared(together, levels, budget, flags))
    for number, compared in enumerate(measured, 1):
        for row in compared:
            versions = [version.as_dict() for version in row["figures"]]
            own = {"model": row["label"], "table": number, **row["place"], "versions": versions}
            rows.append({**own, "profile": row["profile"]})
        if not as_json:
            _show(compared, budget)
    if as_json:
        how = {"rounds": budget.rounds, "repeat": budget.repeat, "seconds": budget.seconds, "threads": budget.threads}
        data = {"schema": 1, "providers": list(budget.providers), "effort": how, "models": rows}
        click.echo(json.dumps(data, indent=2))


def _budget(flags: dict[str, Any]) -> MeasurementBudget:
    """How much is measured, and where.

    Raises:
        UsageError: A provider does not work here.
    """
    from ortopt.analysis.providers import full_names, usable
    from ortopt.cli.run_options import checked_files
    from ortopt.errors import UsageError
    from ortopt.measurement.asking import MeasurementBudget
    from ortopt.option_kinds import commas

    providers = full_names(commas(flags["providers"]) or ("cpu",))
    for provider in providers:
        works, reason = usable(provider)
        if not works:
            raise UsageError(f"{provider} does not work here, and cannot be measured: {reason}")
    return MeasurementBudget(
        flags["rounds"],
        flags["repeat"],
        flags["seconds"],
        flags["threads"],
        providers,
        checked_files(flags["custom_op_libraries"]),
    )


def _levels(text: str) -> tuple[int, ...]:
    from ortopt.errors import UsageError

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or any(part not in {"0", "1", "2", "3", "4"} for part in parts):
        raise UsageError(f"--levels takes numbers from 0 to 4, not {text!r}")
    return tuple(dict.fromkeys(map(int, parts)))


def _interface(model: ir.Model) -> object:
    """What models have in common that take the same inputs and give the same outputs."""

    def described(value: ir.Value) -> tuple[object, ...]:
        dims = None if value.shape is None else tuple(str(dim) for dim in value.shape)
        return value.name, str(value.type), dims

    free = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
    return tuple(map(described, free)), tuple(value.name for value in model.graph.outputs)


def _compared(
    arguments: Sequence[ModelArgument], levels: tuple[int, ...], budget: MeasurementBudget, flags: dict[str, Any]
) -> Iterator[list[dict[str, Any]]]:
    """For each way to call several models of one interface their versions' figures, all measured in turns."""
    from ortopt.cli import files
    from ortopt.measurement.in_turns import Version, measure_in_turns, require_original, timeline
    from ortopt.system.files import temporary_folder

    with temporary_folder("ortopt-bench-") as name:
        folder = Path(name)
        originals = [one.file(folder / str(i) / "original.onnx") for i, one in enumerate(arguments)]
        places = _places(arguments[0], originals[0], folder / "inputs", budget, flags)
        made = [
            _Made(argument, Version(0, original), folder / str(i), places[0].folder, budget, flags)
            for i, (argument, original) in enumerate(zip(arguments, originals, strict=True))
        ]
        versions = [one.version(level) for one in made for level in levels]
        for number, place in enumerate(places):
            figures = measure_in_turns(versions, place.folder, budget)
            if flags["trace_file"] and number == 0:
                trace = timeline(figures, place.folder, budget, folder)
                files.write_text(flags["trace_file"], json.dumps(trace) + "\n")
            require_original(figures)
            yield [
                {
                    "label": one.argument.label,
                    "place": place.as_dict(),
                    "figures": figures[i * len(levels) : (i + 1) * len(levels)],
                    "profile": one.profile(place.folder) if flags["profile"] else None,
                }
                for i, one in enumerate(made)
            ]


def _places(
    argument: ModelArgument, original: Path, folder: Path, budget: MeasurementBudget, flags: dict[str, Any]
) -> list[StoredInputs]:
    """The inputs to measure with: the user's, else some at each representative size."""
    from ortopt.cli import arrays, models
    from ortopt.measurement.inputs import attempts, stored_inputs
    from ortopt.option_kinds import named_extents, named_shapes, named_sizes
    from ortopt.serialization.load import load

    sizes = named_sizes("--dim", flags["dims"])
    shapes = named_shapes("--input-shape", flags["input_shapes"])
    expected = named_extents("--dim-hint", flags["dim_hints"])
    loaded = load(argument.source)
    chosen = arrays.sized(loaded, sizes, shapes, expected, flags["inputs"])
    return stored_inputs(
        loaded,
        folder,
        attempts(original, budget),
        sizes=chosen,
        expected=expected,
        given=None if flags["inputs"] is None else models.verification_inputs(flags["inputs"], argument, {}),
        seed=flags["seed"],
        label=argument.label,
    )


@dataclass(eq=False)
class _Made:
    """What is made of one model.

    Attributes:
        argument: The model.
        original: Its original.
        folder: Where results are written.
        inputs: A folder of stored inputs, with which results are verified.
        budget: Where they run.
        flags: The command's flags.
    """

    argument: ModelArgument
    original: Version
    folder: Path
    inputs: Path
    budget: MeasurementBudget
    flags: dict[str, Any]

    def __post_init__(self) -> None:
        self._versions = {0: self.original}
        self._latest: tuple[int, ir.Model, Explanation] | None = None

    def version(self, level: int) -> Version:
        """The version of a level."""
        from ortopt import api
        from ortopt.instrumentation.explanation import Explanation
        from ortopt.measurement.in_turns import GROUPED, Version
        from ortopt.option_kinds import named_extents
        from ortopt.verification.input_sets import inputs_from

        if level in self._versions:
            return self._versions[level]
        path, listener = self.folder / f"level{level}.onnx", Explanation()
        result = api.optimize(
            self.argument.source,
            level=level,
            providers=self.budget.providers,
            custom_op_libraries=self.budget.libraries,
            verify=self.flags["verify"],
            inputs=inputs_from(self.inputs),
            dim_hints=named_extents("--dim-hint", self.flags["dim_hints"]),
            strict=False,
            observers=[listener] if self.flags["profile"] else (),
        )
        result.save(path)
        if level < GROUPED and (self._latest is None or level > self._latest[0]):
            self._latest = level, result.model, listener
        self._versions[level] = Version(level, path)
        return self._versions[level]

    def profile(self, inputs: Path) -> dict[str, Any]:
        """Where the time goes in the original and in what the highest level makes of it that runs in one session."""
        from ortopt.measurement import profiling
        from ortopt.reporting import profiles

        paths = [self._versions[0].path]
        if self._latest is None:
            (original,) = profiling.in_turns(paths, inputs, self.budget)
            return profiles.describe(original, None)
        level, model, listener = self._latest
        paths.append(self._versions[level].path)
        original, result = profiling.in_turns(paths, inputs, self.budget)
        return profiles.describe(original, result, model, listener)


def _show(compared: Sequence[dict[str, Any]], budget: MeasurementBudget) -> None:
    from ortopt.measurement.words import in_words
    from ortopt.reporting import layer_times, profiles, report, tables

    out = report.console(sys.stdout)
    for row in compared:
        tables.say(out, row["label"])
    for line in in_words(compared[0]["place"], budget.threads, budget.providers):
        tables.say(out, line)
    headers = ("version", "call, ms", "quartiles", "than the first", "open, s", "first call, ms", "memory", "peak")
    cells = [
        (
            f"{row['label']} {figures.version.name}" if len(compared) > 1 else figures.version.name,
            *_cells(figures, is_first=figures is compared[0]["figures"][0]),
        )
        for row in compared
        for figures in row["figures"]
    ]
    spare = ("peak", "memory", "first call, ms", "open, s", "quartiles")
    out.print(tables.table(headers, cells, spare=spare))
    for row in compared:
        for figures in row["figures"]:
            if figures.error:
                tables.say(out, f"{row['label']}: {figures.version.name} does not run: {figures.error}")
    out.print()
    for row in compared:
        if row["profile"] is not None:
            tables.say(out, f"where the time of {row['label']} goes:", "bold")
            profiles.show(row["profile"], out)
            out.print()
    layer_times.show([(row["label"], row["profile"]) for row in compared], out)


def _cells(figures: Figures, *, is_first: bool) -> tuple[str, ...]:
    from ortopt.reporting.report import size
    from ortopt.terminal_text import faster

    if figures.call is None or figures.open is None or figures.first is None:
        return ("",) * 7
    return (
        f"{figures.call.median * 1e3:.3g}",
        f"{figures.call.low * 1e3:.3g} to {figures.call.high * 1e3:.3g}",
        "" if figures.ratio is None or is_first else faster(1 / figures.ratio.median),
        f"{figures.open.median:.3f}",
        f"{figures.first.median * 1e3:.3g}",
        *(_bytes(spread, size) for spread in (figures.anonymous, figures.peak)),
    )


def _bytes(spread: Spread | None, size: Any) -> str:
    return "" if spread is None else str(size(max(0, int(spread.median))))
