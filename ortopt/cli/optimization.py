"""One run of ``ortopt optimize``, from its arguments to the report."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import onnx_ir as ir

from ortopt._version import __version__
from ortopt.analysis.providers import check_installation, in_place_of
from ortopt.api import OptimizeResult, new_optimization
from ortopt.cancellation import CancellationToken
from ortopt.cli import files, models
from ortopt.cli.interaction import cancels, tell, warn, warning
from ortopt.cli.models import MARK
from ortopt.errors import MissingRuntimeError, OptimizationCancelled, OrtoptError, UsageError, VerificationError
from ortopt.graph import scope
from ortopt.observers import Observer
from ortopt.optimization import formats
from ortopt.options import Options
from ortopt.reporting import report
from ortopt.serialization.save import Saved
from ortopt.terminal_text import quoted
from ortopt.transformer import GraphTransformer

if TYPE_CHECKING:
    from rich.console import Console

    from ortopt.instrumentation.dump import Trace
    from ortopt.instrumentation.explanation import Explanation
    from ortopt.measurement.tune import Tuning


_IN_WORDS: Final = {
    "load": "loading",
    "verify": "verifying: the result runs beside the original",
    "save": "writing",
    "profile": "profiling the original and the result",
}
_PERIOD = 0.05  # seconds between two updates; the terminal is drawn ten times a second


class Progress(Observer):
    """Shows the progress of a run.

    Args:
        out: A console on a terminal.
    """

    def __init__(self, out: Console) -> None:
        from rich import progress

        self._bar = progress.Progress(
            progress.SpinnerColumn("line"),
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=20),
            progress.TextColumn("{task.fields[nodes]}", markup=False),
            progress.TimeElapsedColumn(),
            console=out,
            transient=True,
        )
        self._task = self._bar.add_task("loading", total=None, nodes="")
        self._begun: set[tuple[int, str]] = set()
        self._due = 0.0

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def expect(self, runs: int) -> None:
        """Set the number of transformers, those of several levels counted at each."""
        self._begun.clear()
        self._bar.reset(self._task, total=max(runs, 1), description="optimizing")

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Show a phase of unknown length, within a ``with`` block: the bar moves to and fro."""
        self._bar.remove_task(self._task)  # neither `update` nor `reset` makes a known total unknown
        self._task = self._bar.add_task(_IN_WORDS.get(name, name), total=None, nodes="")
        yield

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """Show the transformer that runs."""
        self._begun.add((level, transformer.name))
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _PERIOD
        self._bar.update(
            self._task,
            description=f"level {level}, step {step}: {transformer.name}",
            completed=len(self._begun),
            nodes=f"{len(scope.of(graph).model.graph)} nodes",
        )


def _check_flags(flags: Mapping[str, Any]) -> None:
    """Refuse flags that contradict each other."""
    verified, tuned = flags["verify"], flags["tune"]
    refused = {
        "--verbose and --quiet contradict each other": flags["verbose"] and flags["quiet"],
        "--keep-pass has no effect with --no-repair or --no-verify: leave them out": flags["keep_pass"]
        and not (flags["repair"] and verified),
        "--inputs has no effect with --no-verify: leave out one of them": flags["inputs"] is not None
        and not (verified or tuned or flags["profile"]),
        "--thorough has no effect with --no-verify: leave out one of them": flags["thorough"] and not verified,
        "--thorough uses random inputs, --inputs uses yours: leave out one of them": flags["thorough"]
        and flags["inputs"] is not None,
        "--tune-seconds says how long --tune may take: add --tune": flags["tune_seconds"] is not None and not tuned,
        "--tune-threads says with how many threads --tune measures: add --tune": flags["tune_threads"] is not None
        and not tuned,
        "--choices are what --tune finds: leave out one of them": tuned and flags["choices_file"] is not None,
        "the name after --dump-dir is empty": flags["dump_dir"] == "",
        "--html writes a page for a browser into a file: give its name": flags["html_file"] == files.STREAM,
    }
    for message, is_so in refused.items():
        if is_so:
            raise UsageError(message)


class Run:
    """A run from the model to the report.

    Args:
        model: The model argument.
        options: Options of the run.
        flags: The command's flags, by name.

    Attributes:
        data: The report as data, once there is one.

    Raises:
        OrtoptError: If a flag makes no sense; nothing has been written then.
    """

    def __init__(self, model: str, options: Options, **flags: Any) -> None:
        _check_flags(flags)
        self._options = options
        self._flags = flags
        self._reports = {"--json": flags["json_file"], "--trace": flags["trace_file"], "--html": flags["html_file"]}
        written = {"-o": flags["output"], **self._reports}
        files.check_outputs(written, {"the inputs": flags["inputs"]}, in_new_folders={"-o"})
        self._argument = models.resolve(model)
        self._target: str = flags["output"] or self._argument.output
        self._check_target()
        written = {"the result": self._target, **self._reports}
        files.check_outputs(written, {"the inputs": flags["inputs"]}, in_new_folders={"the result"})
        files.check_outputs(self._reports, {"the model": self._argument.path})
        self._check_dumps(path for path in (self._argument.path, flags["inputs"]) if path is not None)
        self._inputs = None
        if flags["verify"] or flags["inputs"] is not None:
            self._inputs = models.verification_inputs(flags["inputs"], self._argument, options.dims)
        self._observe()
        self._tuning: Tuning | None = None
        self._seconds: dict[str, float] = {}
        self._warnings: list[object] = []
        self.data: dict[str, Any] | None = None

    def _check_target(self) -> None:
        where, streams = self._flags["external_data"], [self._target, *self._reports.values()].count(files.STREAM)
        self._report_stream = sys.stderr if streams else sys.stdout
        if streams > 1:
            raise UsageError("only one of the model, --json and --trace can go to stdout")
        if self._target != files.STREAM:
            formats.check(Path(self._target), where)
        elif sys.stdout.isatty():
            raise UsageError("a model is no text for a terminal: name a file with -o, or lead stdout into one")
        elif where in {"copy", "reuse"}:
            raise UsageError(f"--external-data {where} needs a file as output, not stdout")

    def _observe(self) -> None:
        """Make what listens to the run: loaded only where it is asked for."""
        self._listener: Explanation | None = None
        self._trace: Trace | None = None
        self._observers: list[Observer] = []
        if self._flags["trace_file"]:
            from ortopt.instrumentation.dump import Trace

            self._trace = Trace()
            self._observers.append(self._trace)
        if self._flags["html_file"]:
            from ortopt.instrumentation.lineage import Lineage

            self._observers.append(Lineage())
        if self._flags["profile"]:
            from ortopt.instrumentation.explanation import Explanation

            self._listener = Explanation()
            self._observers.append(self._listener)

    def all(self) -> None:
        """Transform, verify, write, report.

        Raises:
            OrtoptError: If it fails; the output file is as it was before.
        """
        early = self._told_of_the_runtime()
        if self._flags["verify"] and (absent := in_place_of(self._options.providers)):
            early.append(absent)
        for message in early:  # at once: the run takes longer
            warn(message)
        try:
            with self._progress() as progress:
                result, saved, error = self._work(progress)
        except (OptimizationCancelled, UsageError):
            raise
        except OrtoptError:
            self._write_trace()
            raise
        self._write_trace()
        profile = self._profiled(result, saved) if self._listener is not None and error is None else None
        data = report.as_dict(
            result,
            source=self._argument.label,
            options=self._options,
            saved=saved,
            seconds=self._seconds,
            error=None if error is None else str(error),
            profile=profile,
        )
        from ortopt.reporting.tuning import tuning_fields

        data |= tuning_fields(self._options, self._tuning)
        self.data = data
        if self._flags["json_file"]:
            files.write_text(self._flags["json_file"], json.dumps(data, indent=2, allow_nan=False) + "\n")
        if self._flags["html_file"]:
            self._write_page(result, data)
        if error is not None:
            for text in (*self._warnings, *map(report.describe_repair, data["repairs"])):
                warn(text)
            raise error
        self._warn_of(result, data)
        self._show(data, early)

    def _told_of_the_runtime(self) -> list[str]:
        """What is wrong with the installed ONNX Runtime, or that there is none.

        Raises:
            MissingRuntimeError: There is none, and models have to run.
        """
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                check_installation()
        except MissingRuntimeError as error:
            if self._flags["tune"] or self._flags["profile"] or Path(self._target).suffix.lower() == formats.ORT:
                raise
            if self._flags["verify"]:
                raise MissingRuntimeError(f"{error}; or --no-verify, which runs nothing") from None
            return [f"{error}; without it, constants stay that only ONNX Runtime computes"]
        return [str(one.message) for one in caught]

    def _work(self, progress: Progress | None) -> tuple[OptimizeResult, Saved | None, VerificationError | None]:
        if self._flags["tune"]:
            self._tune(progress)
        token = CancellationToken()
        observers = self._observers if progress is None else [progress, *self._observers]
        if self._flags["dump_dir"]:
            from ortopt.instrumentation.dump import Dump

            observers = [*observers, Dump(self._flags["dump_dir"])]
        with self._span("load", progress):
            run = new_optimization(self._argument.source, self._options, observers=observers, cancellation=token)
        self._check_external_data(models.external_data(run.model))

        @contextlib.contextmanager
        def phase(name: str) -> Iterator[None]:
            if name == "save" and not self._flags["quiet"]:
                report.import_early()
            if name != "optimize":
                with self._span(name, progress):
                    yield
                return
            if progress is not None:
                progress.expect(sum(len(chosen.levels) for chosen in run.selected))
            with self._span(name), cancels(token):
                yield

        error: VerificationError | None = None
        try:
            result = run.run(
                verify=self._flags["verify"] and ("thorough" if self._flags["thorough"] else True),
                require_verified=self._options.strict,
                inputs=self._inputs,
                save_to=sys.stdout.buffer if self._target == files.STREAM else self._target,
                external_data=self._flags["external_data"],
                metadata={MARK: __version__},
                phase=phase,
            )
        except VerificationError as differs:
            result, error = run.result(run.verification), differs
        self._warnings += run.warnings
        return result, run.saved, error

    def _tune(self, progress: Progress | None) -> None:
        """Choose between forms by their speed here; Ctrl-C keeps the best so far."""
        from ortopt.measurement.tune import SECONDS, tune

        seconds = self._flags["tune_seconds"]
        token = CancellationToken()
        with self._span("tune", progress), contextlib.suppress(OptimizationCancelled), cancels(token):
            self._tuning = tune(
                self._argument.source,
                self._options,
                seconds=SECONDS if seconds is None else seconds,
                threads=self._flags["tune_threads"],
                inputs=self._inputs if self._flags["inputs"] is not None else None,
                cancellation=token,
            )
        if self._tuning is not None:
            self._options = self._tuning.choices.applied_to(self._options)

    def _check_external_data(self, data: tuple[str, ...]) -> None:
        """Refuse to write over the weights of the model."""
        files.check_not_read({"-o": self._target, **self._reports}, {"external data of the model": data})
        self._check_dumps(data)

    def _check_dumps(self, read: Iterable[str | Path]) -> None:
        """Refuse to write dumps over inputs, e.g. a dump of an earlier run."""
        folder = self._flags["dump_dir"]
        if not folder:
            return
        from ortopt.instrumentation.dump import is_dump

        for path in read:
            if is_dump(path, folder):
                raise UsageError(f"--dump-dir would write over {quoted(str(path))}, which is read")

    def _profiled(self, result: OptimizeResult, saved: Saved | None) -> dict[str, Any] | None:
        """Where the time goes; None, with a warning, where that cannot be measured: the result is written."""
        from ortopt.cli import profiled

        assert self._listener is not None
        path, started = None if saved is None else saved.path, time.perf_counter()
        if path is not None and formats.is_other_format(path):
            path = None  # the result is profiled as ONNX
        try:
            with self._progress() as progress, self._span("profile", progress):
                data = profiled.profile(
                    self._argument, result.model, path, self._flags["inputs"], self._options, self._listener
                )
        except OptimizationCancelled:
            raise
        except OrtoptError as failure:
            self._warnings.append(f"there is no profile: {failure}")
            return None
        self._seconds["profile"] = time.perf_counter() - started
        return data

    def _warn_of(self, result: OptimizeResult, data: dict[str, Any]) -> None:
        """Note what the user should know of a result that is written."""
        told: list[object] = [f"{failure}; the run went on without it" for failure in result.summary.failures]
        told += map(report.describe_repair, data["repairs"])
        if result.verification is not None and not result.verified:
            told.append(f"the result could not be verified: {result.verification.reason}")
        half = result.half_precision
        if half is not None and half.error is not None and half.error > half.tolerance:
            told.append(f"16 bits change an output by {half.error:.2g} of its scale, and no layer in float32 helps")
        if result.stopped:
            told.append("stopped by the time limit; the result so far has been written")
        self._warnings += told

    def _show(self, data: dict[str, Any], early: Sequence[str]) -> None:
        """Print warnings and the report; by default no more of them than a screen holds.

        Args:
            data: The report as data.
            early: Warnings that have been printed.
        """
        messages = [warning(text) for text in self._warnings]
        if self._flags["quiet"]:  # what reports are printed with is not even imported
            for message in messages:
                tell(message)
            return
        out, short = report.console(self._report_stream), not self._flags["verbose"]
        if short:
            from ortopt.reporting import short_report

            screen, messages = short_report.with_warnings(data, messages, [warning(text) for text in early], out)
        for message in messages:
            tell(message)
        if short:
            screen.show(out)
        self._show_recipe(data, out)
        if short:
            if data["profile"] is not None:
                from ortopt.reporting import profiles

                out.print()
                profiles.show(data["profile"], out)
        else:
            from ortopt.reporting import long_report

            long_report.show(data, out, everything=self._flags["verbose"] > 1)

    def _show_recipe(self, data: dict[str, Any], out: Console) -> None:
        """Print the lines of Python that set what tuning has found for sessions, as they are."""
        from rich.text import Text

        from ortopt.reporting.tuning import recipe_lines

        if lines := recipe_lines(data["tuning"]):
            out.print()
            for line in lines:
                out.print(Text(line), soft_wrap=True)

    def _write_page(self, result: OptimizeResult, data: dict[str, Any]) -> None:
        from ortopt.reporting.page.pages import run_page

        files.write_text(self._flags["html_file"], run_page(result, data))

    def _write_trace(self) -> None:
        if self._trace is not None:
            files.write_text(self._flags["trace_file"], json.dumps(self._trace.as_dict()) + "\n")

    @contextlib.contextmanager
    def _progress(self) -> Iterator[Progress | None]:
        if self._flags["quiet"] or not sys.stderr.isatty():
            yield None
            return
        with Progress(report.console(sys.stderr)) as progress:
            yield progress

    @contextlib.contextmanager
    def _span(self, phase: str, progress: Progress | None = None) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self._trace is not None:
                stack.enter_context(self._trace.span(phase))
            if progress is not None:
                stack.enter_context(progress.phase(phase))
            yield
