"""``ortopt bisect``: which single rewrite makes the result differ, and a folder that shows it."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortopt.cli.option_groups import GroupedCommand, inputs_option
from ortopt.cli.run_options import make_options, run_option, run_options

if TYPE_CHECKING:
    from rich.console import Console

    from ortopt.api import Optimization
    from ortopt.errors import TransformerError
    from ortopt.optimization.bisection import Blame
    from ortopt.reporting.reproducer import Reproducer


@click.command("bisect", cls=GroupedCommand, short_help="Find the rewrite that makes a result differ.")
@click.argument("model")
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    help="The folder to write, new or empty.  [default: MODEL-stem.bisect in the current folder]",
)
@run_option("level")
@run_options
@run_option("rtol")
@run_option("atol")
@inputs_option("Input arrays by name, to verify with.  [default: several sets of random inputs]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(model: str, output: str | None, as_json: bool, **flags: Any) -> None:
    """Find the first single rewrite after which the result of "ortopt optimize" differs from the original.

    Exits with 0 if there is none: the result verifies. Else with 3, and FOLDER holds the smallest model around the
    rewrite, before and after, inputs, what both give, and commands that reproduce it; a pass that failed is shown
    likewise. MODEL is a file, "-" for stdin, or zoo:NAME.
    """
    from ortopt.analysis.providers import in_place_of
    from ortopt.api import Optimization
    from ortopt.cancellation import CancellationToken
    from ortopt.cli import models
    from ortopt.cli.interaction import answer, cancels, warn
    from ortopt.errors import InvalidModelError, UsageError, VerificationError
    from ortopt.reporting.reproducer import check_folder, of_failure, of_rewrite, write

    if output == "":
        raise UsageError("the name after -o is empty")
    options = dataclasses.replace(make_options(**flags), repair=False)
    argument = models.resolve(model)
    folder = Path(output or f"{Path(argument.zoo or argument.label).stem}.bisect")
    check_folder(folder)
    inputs = models.verification_inputs(flags["inputs"], argument, options.dims)
    if absent := in_place_of(options.providers):
        warn(absent)
    token = CancellationToken()
    run = Optimization(argument.source, options, cancellation=token)
    with contextlib.closing(run), cancels(token):
        run.transform()
        blame = run.blame(inputs)
        failures = run.result(run.verification).summary.failures
    if run.stopped:
        warn("stopped by the time limit; later rewrites have not been looked at")
    if blame is not None:
        reproducer = of_rewrite(blame, options)
        culprit = _of_rewrite(blame)
    elif failures:
        reproducer = of_failure(run, failures[0])
        culprit = _of_failure(failures[0])
    else:
        answer(describe(argument.label, run, None, None, None), _show, as_json=as_json)
        assert run.verification is not None
        if run.verification.status != "verified":
            raise InvalidModelError(f"the models could not be compared: {run.verification.reason}")
        return
    write(reproducer, folder, culprit["says"])
    answer(describe(argument.label, run, culprit, reproducer, folder), _show, as_json=as_json)
    raise VerificationError(culprit["says"])


def _of_rewrite(blame: Blame) -> dict[str, Any]:
    from ortopt.reporting import report

    rewrite, seen = blame.culprit.rewrite, blame.culprit.verification
    row = {
        "kind": "rewrite",
        **report.rewrite_row(rewrite),
        "reason": seen.reason,
        "output": seen.worst_output,
        "error": report.plain(seen.worst if seen.outputs else float("inf")),
        "error_before": report.plain(blame.culprit.error_before),
        "probes": blame.culprit.probes,
    }
    return {**row, "says": f"{report.describe_rewrite(row)} makes the result differ: {seen.reason}"}


def _of_failure(failure: TransformerError) -> dict[str, Any]:
    from ortopt.reporting import report

    return {"kind": "failure", **report.failure_row(failure), "reason": failure.reason, "says": str(failure)}


def describe(
    label: str, run: Optimization, culprit: dict[str, Any] | None, reproducer: Reproducer | None, folder: Path | None
) -> dict[str, Any]:
    """The outcome as data that json can write.

    Args:
        label: The model as the user named it.
        run: The run.
        culprit: The culprit, or None.
        reproducer: The reproducer, or None.
        folder: Its folder.
    """
    from ortopt.reporting import report
    from ortopt.reporting.reproducer import versions

    outcome = run.verification
    return {
        "schema": 1,
        "model": label,
        "status": None if outcome is None else outcome.status,
        "reason": "" if outcome is None else outcome.reason,
        "rewrites": run.result(outcome).summary.rewrites,
        "culprit": culprit,
        "failures": [str(failure) for failure in run.result(outcome).summary.failures],
        "folder": None if folder is None else str(folder),
        **_shown(reproducer),
        "versions": versions(),
        "options": report.plain(run.options),
    }


def _shown(reproducer: Reproducer | None) -> dict[str, Any]:
    """What a reproducer shows, if there is one."""
    if reproducer is None:
        weights: dict[str, list[str]] = {"noise": [], "kept": []}
        return {"files": [], "whole_model": None, "why_whole": "", "nodes": None, "weights": weights, "commands": []}
    return {
        "files": reproducer.files,
        "whole_model": bool(reproducer.whole),
        "why_whole": reproducer.whole,
        "nodes": [len(model.graph) for model in (reproducer.before, reproducer.after) if model is not None],
        "weights": {"noise": reproducer.noise, "kept": reproducer.kept},
        "commands": reproducer.commands,
    }


def _show(data: dict[str, Any], out: Console) -> None:
    from ortopt.reporting import tables
    from ortopt.terminal_text import one_line

    culprit = data["culprit"]
    if culprit is None:
        out.print(f"{data['status']}: {data['rewrites']} rewrites, none of them makes the result differ")
        return
    rows: list[tuple[str, object]] = [("pass", culprit["pass"])]
    rows += [("rewrite", f"{culprit['rewrite']} of {data['rewrites']}")] if "rewrite" in culprit else []
    rows += [("level", culprit["level"]), ("step", culprit["step"]), ("graph", culprit["graph"])]
    rows += [("node", f"{node['op']} {node['name']}") for node in culprit.get("nodes", ())]
    if "error" in culprit:
        rows.append(("error", f"{culprit['error']} of the scale, {culprit['error_before']} before"))
    rows += [("says", culprit["reason"]), ("folder", data["folder"])]
    out.print(tables.table(("", ""), rows, text=2, headless=True))
    out.print()
    whole = f"the whole model, because {data['why_whole']}" if data["whole_model"] else "a part of the model"
    noise, kept = len(data["weights"]["noise"]), len(data["weights"]["kept"])
    tables.say(out, one_line(f"it holds {whole}; weights: {noise} replaced by noise, {kept} as they were"))
    for failure in data["failures"] if culprit["kind"] == "rewrite" else ():
        tables.say(out, f"besides: {one_line(failure)}")
    out.print("to reproduce it, there:" if data["commands"] else "no command of one pass alone reproduces it")
    for line in data["commands"]:
        tables.say(out, f"  {one_line(line)}")
