"""One run of ``ortopt optimize``, from the argument to the report."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ortopt.analysis.providers import check_distributions
from ortopt.api import Optimization, OptimizeResult
from ortopt.cancellation import CancellationToken
from ortopt.cli import files, models
from ortopt.cli.interrupt import cancels
from ortopt.cli.progress import Progress
from ortopt.cli.warning import warn
from ortopt.errors import OptimizationCancelled, OrtoptError, UsageError, VerificationError
from ortopt.instrumentation.dump import Dump, is_dump
from ortopt.instrumentation.trace import Trace
from ortopt.observers import Observer
from ortopt.options import Options
from ortopt.reporting import report
from ortopt.serialization.save import Saved, save
from ortopt.terminal_text import quoted


class Run:
    """What the user asked for, and the way from the model to the report.

    Args:
        model: The model argument.
        options: What transforms it.
        given: The command's other options, by name.

    Raises:
        OrtoptError: If something cannot be; nothing has been written then.
    """

    def __init__(self, model: str, options: Options, **given: Any) -> None:
        if given["verbose"] and given["quiet"]:
            raise UsageError("--verbose and --quiet contradict each other")
        if given["keep_pass"] and not (given["repair"] and given["verify"]):
            raise UsageError("--keep-pass says how to repair: leave out --no-repair and --no-verify")
        if given["inputs"] is not None and not given["verify"]:
            raise UsageError("--inputs are what is verified with: leave out --no-verify")
        if given["thorough"] and not given["verify"]:
            raise UsageError("--thorough says how to verify: leave out --no-verify")
        if given["thorough"] and given["inputs"] is not None:
            raise UsageError("--thorough draws inputs: leave out --inputs")
        if given["dump_dir"] == "":
            raise UsageError("--dump-dir is given an empty name")
        self._options = options
        self._given = given
        reports = {"--json": given["json_file"], "--trace": given["trace_file"]}
        files.check_outputs({"-o": given["output"], **reports}, {"the inputs": given["inputs"]})
        self._trace = Trace() if given["trace_file"] else None
        self._argument = models.resolve(model)
        self._target: str = given["output"] or self._argument.output
        streams = [self._target, *reports.values()].count(files.STREAM)
        if streams > 1:
            raise UsageError("only one of the model, --json and --trace can go to stdout")
        if self._target == files.STREAM and given["external_data"] in {"copy", "reuse"}:
            raise UsageError(f"--external-data {given['external_data']} writes beside a file, not beside a stream")
        files.check_outputs({"the result": self._target, **reports}, {"the inputs": given["inputs"]})
        files.check_outputs(reports, {"the model": self._argument.path})
        if given["dump_dir"]:
            read = [path for path in (self._argument.path, given["inputs"]) if path is not None]
            self._check_dumps(given["dump_dir"], read)
        self._inputs = None
        if given["verify"]:
            self._inputs = models.verification_inputs(given["inputs"], self._argument, options.dims)
        self._talk = sys.stderr if streams else sys.stdout
        self._seconds: dict[str, float] = {}

    def all(self) -> None:
        """Transform, verify, write, report.

        Raises:
            OrtoptError: If something cannot be; nothing stands under the output's name that was not there before.
        """
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            check_distributions()
        for warning in said:
            warn(str(warning.message))
        try:
            with self._progress() as progress:
                result, saved, error = self._work(progress)
        except (OptimizationCancelled, UsageError):
            raise
        except OrtoptError:
            self._write_trace()
            raise
        self._write_trace()
        data = report.as_dict(
            result,
            source=self._argument.label,
            options=self._options,
            saved=saved,
            seconds=self._seconds,
            error=None if error is None else str(error),
        )
        if self._given["json_file"]:
            files.write_text(self._given["json_file"], json.dumps(data, indent=2, allow_nan=False) + "\n")
        if error is not None:
            for repair in data["repairs"]:
                warn(report.describe_repair(repair))
            raise error
        self._speak(result, data)

    def _work(self, progress: Progress | None) -> tuple[OptimizeResult, Saved | None, VerificationError | None]:
        token = CancellationToken()
        observers: list[Observer] = [observer for observer in (progress, self._trace) if observer is not None]
        if self._given["dump_dir"]:
            observers.append(Dump(self._given["dump_dir"]))
        with self._span("load", progress):
            run = Optimization(self._argument.source, self._options, observers=observers, cancellation=token)
        with contextlib.closing(run):
            self._check_external_data(models.external_data(run.model))
            return self._finish(run, token, progress)

    def _check_external_data(self, data: tuple[str, ...]) -> None:
        """Refuse to write over the weights of the model."""
        outputs = {"-o": self._target, "--json": self._given["json_file"], "--trace": self._given["trace_file"]}
        files.check_not_read(outputs, {"external data of the model": data})
        if self._given["dump_dir"]:
            self._check_dumps(self._given["dump_dir"], data)

    def _check_dumps(self, folder: str, read: Iterable[str | Path]) -> None:
        """Refuse to write over what is read: a dump of an earlier run, for one."""
        for path in read:
            if is_dump(path, folder):
                raise UsageError(f"--dump-dir would write over {quoted(str(path))}, which is read")

    def _finish(
        self, run: Optimization, token: CancellationToken, progress: Progress | None
    ) -> tuple[OptimizeResult, Saved | None, VerificationError | None]:
        run.is_thorough = self._given["thorough"]
        if self._given["verify"]:
            run.begin_verification(self._inputs)
        if progress is not None:
            progress.expect(sum(len(chosen.levels) for chosen in run.selected))
        with self._span("optimize"), cancels(token):
            run.transform()
        outcome = None
        if self._given["verify"]:
            with self._span("verify", progress):
                try:
                    outcome = run.verify(self._inputs)
                except VerificationError as error:
                    return run.result(run.verification), None, error
        with self._span("save", progress):
            started = time.perf_counter()
            target = sys.stdout.buffer if self._target == files.STREAM else self._target
            saved = save(
                run.model,
                target,
                external_data=self._given["external_data"],
                provenance=self._options.provenance,
            )
            self._seconds["save"] = time.perf_counter() - started
        return run.result(outcome), saved, None

    def _speak(self, result: OptimizeResult, data: dict[str, Any]) -> None:
        for failure in result.summary.failures:
            warn(f"{failure}; the run went on without it")
        for repair in data["repairs"]:
            warn(report.describe_repair(repair))
        if result.verification is not None and not result.verified:
            warn(f"the result could not be verified: {result.verification.reason}")
        if result.stopped:
            warn("stopped by the time limit; what was reached has been written")
        if not self._given["quiet"]:
            report.show(data, report.console(self._talk), everything=self._given["verbose"])

    def _write_trace(self) -> None:
        if self._trace is not None:
            files.write_text(self._given["trace_file"], json.dumps(self._trace.as_dict()) + "\n")

    @contextlib.contextmanager
    def _progress(self) -> Iterator[Progress | None]:
        if self._given["quiet"] or not sys.stderr.isatty():
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
