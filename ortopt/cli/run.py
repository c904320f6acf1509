"""``ortopt run``: one model under `ortopt.InferenceSession`, what its outputs hold and what it took."""

from __future__ import annotations

import functools
import json
import sys
import time
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from ortopt.cli.option_groups import THREADS, count_option, inputs_option, memory_option
from ortopt.cli.run_options import run_option

if TYPE_CHECKING:
    from rich.console import Console

    from ortopt.cli.models import ModelArgument
    from ortopt.runtime.session import InferenceSession

RUN_TYPES = ("ort", "reference", "host", "debug")
_INPUTS, _OUTPUTS = 4, 12
"""Inputs and outputs that are shown unless all are asked for: a decoder has dozens."""


@click.command("run", short_help="Run a model; show what its outputs hold.")
@click.argument("model")
@inputs_option("Input arrays by name.  [default: random inputs]")
@count_option("--seed", 0, "Seed of the random inputs.", least=0)
@run_option("dims", help_="The size of a symbolic dimension in drawn inputs.")
@run_option("dim_hints", help_="Sizes that symbolic dimensions are expected to have: inputs are drawn at the least.")
@run_option("input_shapes", help_="The shape of a drawn input.")
@run_option("providers")
@run_option("custom_op_libraries")
@click.option(
    "--run-type", type=click.Choice(RUN_TYPES), help="What executes a group.  [default: ORTOPT_RUN_TYPE, ort]"
)
@click.option("--threads", type=THREADS, default=0, help="Threads that one op may use.  [default: one for each core]")
@count_option("--repeat", 1, "Number of calls; the time of the first is shown separately.")
@count_option(
    "--specialize", None, "Compile a group for its input sizes once it has seen the same sizes N times.", metavar="N"
)
@click.option(
    "--specialize-constants", is_flag=True, help="With --specialize: also fold small inputs that never changed."
)
@click.option(
    "--export-specialized",
    metavar="FILE.onnx",
    help="Write a model with the specialised groups, which any runtime can run.",
)
@click.option("--outputs", metavar="FILE.npz", help="Write the outputs by name.")
@click.option("-v", "--verbose", is_flag=True, help="Show all inputs and outputs, and what the session counted.")
@memory_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--trace", "trace_file", metavar="FILE", help="Write a timeline of the run, for ui.perfetto.dev.")
def command(model: str, as_json: bool, **flags: Any) -> None:
    """Run a model, and show shape, dtype, extremes, mean and NaN of its outputs, and how long it took.

    MODEL is a file, "-" for stdin, or zoo:NAME, plain or grouped. Inputs that do not fit it are a usage error (1), a
    model that cannot be run is bad input (2), and with --run-type debug a group that differs is a wrong result (3).
    """
    from ortopt.cli import arrays, files, models
    from ortopt.cli.interaction import answer, warn
    from ortopt.errors import UsageError
    from ortopt.option_kinds import commas, named_extents, named_shapes, named_sizes
    from ortopt.serialization.load import load

    if flags["export_specialized"] == files.STREAM:
        raise UsageError("--export-specialized cannot write to stdout")
    if [flags["outputs"], flags["trace_file"], files.STREAM if as_json else None].count(files.STREAM) > 1:
        raise UsageError("only one of --outputs, --json and --trace can go to stdout")
    argument = models.resolve(model)
    written = {
        "--outputs": flags["outputs"],
        "--trace": flags["trace_file"],
        "--export-specialized": flags["export_specialized"],
    }
    files.check_outputs(written, {"the model": argument.path, "the inputs": flags["inputs"]})
    loaded = load(argument.source)
    files.check_not_read(written, {"external data of the model": models.external_data(loaded)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        run = _Run(argument, commas(flags["providers"]), flags)
        sizes = named_sizes("--dim", flags["dims"])
        shapes = named_shapes("--input-shape", flags["input_shapes"])
        expected = named_extents("--dim-hint", flags["dim_hints"])
        given, seed = flags["inputs"], flags["seed"]
        outputs = run.first(arrays.candidates(argument, loaded, given, seed, sizes, shapes, expected))
        run.again(flags["repeat"] - 1)
    for text in dict.fromkeys(
        str(warning.message) for warning in caught if issubclass(warning.category, RuntimeWarning)
    ):
        warn(text)
    if flags["export_specialized"]:
        run.export(flags["export_specialized"])
    data = run.describe(outputs)
    if flags["outputs"]:
        files.write_bytes(flags["outputs"], arrays.archive(outputs))
    if flags["trace_file"]:
        files.write_text(flags["trace_file"], json.dumps(run.session.trace()) + "\n")
    is_taken = files.STREAM in (flags["outputs"], flags["trace_file"])
    show = functools.partial(_show, verbose=flags["verbose"])
    answer(data, show, as_json=as_json, stream=sys.stderr if is_taken else None)


class _Run:
    """A session, and the runs of it.

    Args:
        argument: The model.
        providers: As the user named them; none leaves it to the session.
        flags: The command's flags, by name.

    Raises:
        OrtoptError: An option makes no sense, or the model cannot be run.
    """

    def __init__(self, argument: ModelArgument, providers: tuple[str, ...], flags: dict[str, Any]) -> None:
        from ortopt.analysis.providers import check_installation
        from ortopt.cli.run_options import checked_files
        from ortopt.errors import InvalidModelError, OrtoptError
        from ortopt.evaluation.sessions import quiet_options, register_libraries
        from ortopt.runtime.session import InferenceSession

        check_installation()
        options, self._quiet = quiet_options(flags["threads"])
        self._label = argument.label
        libraries = checked_files(flags["custom_op_libraries"])
        start = time.perf_counter()
        try:
            register_libraries(options, libraries)
            self.session: InferenceSession = InferenceSession(
                argument.source,
                options,
                list(providers) or None,
                run_type=flags["run_type"],
                trace=flags["trace_file"] is not None,
                specialize_after=flags["specialize"]
                or (1 if flags["export_specialized"] or flags["specialize_constants"] else None),
                specialize_constants=flags["specialize_constants"],
            )
        except (OrtoptError, MemoryError):
            raise
        except Exception as error:  # whatever ONNX Runtime raises: there are a dozen classes
            raise InvalidModelError(f"{self._label} cannot be run: {error}") from error
        self._opened = time.perf_counter() - start
        self._feeds: dict[str, Any] = {}
        self._seconds: list[float] = []
        self._exported: dict[str, Any] | None = None

    def first(self, candidates: Any) -> dict[str, Any]:
        """Run on the first inputs that the model accepts; the outputs by name.

        Raises:
            UsageError: The user's inputs do not fit the model.
            InvalidModelError: It cannot be run on any.
        """
        from ortopt.errors import InvalidModelError, OrtoptError, UsageError
        from ortopt.measurement.inputs import HINT, UNFIT

        first: Exception | None = None
        for feeds, drawn in candidates:
            self._feeds = feeds
            try:
                return self._run()
            except (OrtoptError, MemoryError):
                raise
            except Exception as error:  # as above
                if not drawn and type(error).__name__ in UNFIT:
                    raise UsageError(f"the inputs do not fit {self._label}: {error}") from error
                first = first or error
        hint = f" ({HINT})" if drawn else ""
        raise InvalidModelError(f"{self._label} cannot be run: {first}{hint}") from first

    def again(self, times: int) -> None:
        """Run on the same inputs."""
        for _ in range(times):
            self._run()

    def export(self, path: str) -> None:
        """Write what the session has been specialised for.

        Raises:
            OrtoptError: It has not been, or the file cannot be written.
        """
        written = self.session.export_specialized(path)
        self._exported = {"path": written.path, "versions": list(written.versions), "skipped": list(written.skipped)}

    def _run(self) -> dict[str, Any]:
        start = time.perf_counter()
        outputs = self.session.run(None, self._feeds, self._quiet)
        self._seconds.append(time.perf_counter() - start)
        return dict(zip((output.name for output in self.session.get_outputs()), outputs, strict=True))

    def describe(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """What happened, as data that json can write."""
        import dataclasses

        from ortopt.reporting import values

        first, *later = self._seconds
        low, middle, high = _quartiles(later)
        return {
            "schema": 1,
            "model": self._label,
            "providers": self.session.get_providers(),
            "groups": [{"name": group.spec.name, "provider": group.provider} for group in self.session.groups],
            "inputs": [row for name, value in self._feeds.items() for row in values.describe(name, value)],
            "outputs": [row for name, value in outputs.items() for row in values.describe(name, value)],
            "seconds": {
                "open": self._opened,
                "first": first,
                "later": len(later),
                "median": middle,
                "quartiles": [low, high],
            },
            "statistics": dataclasses.asdict(self.session.statistics),
            "exported": self._exported,
        }


def _quartiles(samples: list[float]) -> list[float | None]:
    """The quartiles and the median between them."""
    if len(samples) > 1:
        import statistics

        return [*statistics.quantiles(samples, n=4, method="inclusive")]
    return [samples[0] if samples else None] * 3


def _show(data: dict[str, Any], out: Console, *, verbose: bool = False) -> None:
    """Print what came of a run.

    Args:
        data: What happened.
        out: The console to print to.
        verbose: Whether all inputs and outputs are shown, and what the session counted.
    """
    from ortopt.reporting import tables, values

    rows = [(kind, row) for kind in ("input", "output") for row in data[f"{kind}s"]]
    shown = [
        (kind, row)
        for kind, most in (("input", _INPUTS), ("output", _OUTPUTS))
        for row in (data[f"{kind}s"] if verbose else data[f"{kind}s"][:most])
    ]
    left_out = len(rows) - len(shown)
    out.print(values.values_table(shown))
    if left_out:
        out.print(f"and {left_out} more inputs and outputs (-v)")
    for line in values.small_values([row for kind, row in shown if kind == "output"]):
        tables.say(out, line)
    out.print()
    seconds = data["seconds"]
    out.print(f"opened in {seconds['open']:.3f} s, first run {_milliseconds(seconds['first'])}")
    if seconds["later"]:
        low, high = seconds["quartiles"]
        tables.say(
            out,
            f"{seconds['later']} more runs: median {_milliseconds(seconds['median'])},"
            f" quartiles {_milliseconds(low)} to {_milliseconds(high)}",
        )
    tables.say(out, _where(data))
    if data["exported"]:
        versions = ", ".join(data["exported"]["versions"])
        tables.say(out, f"wrote {data['exported']['path']}: {versions}")
    if verbose or data["groups"]:
        tables.say(out, _counted(data["statistics"]))


def _counted(statistics: dict[str, int]) -> str:
    """What the session counted."""
    shown = ("runs", "group_runs", "hits", "misses", "compiles", "copies", "fallbacks")
    rest = [name for name, count in statistics.items() if count and name not in shown]
    return ", ".join(f"{name.replace('_', ' ')} {statistics[name]}" for name in (*shown, *rest))


def _where(data: dict[str, Any]) -> str:
    """What ran where."""
    if not data["groups"]:
        return f"one session on {', '.join(data['providers'])}"
    ran = Counter(group["provider"] or "no provider, for they were not needed" for group in data["groups"])
    count = len(data["groups"])
    places = [provider if len(ran) == 1 else f"{provider} ({number})" for provider, number in ran.most_common()]
    return f"{count} group{'' if count == 1 else 's'} on {', '.join(places)}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
