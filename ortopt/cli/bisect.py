"""``ortopt bisect``: which single rewrite makes the result differ, and a folder that shows it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortopt.cli.optimize import make_options, run_options

if TYPE_CHECKING:
    from ortopt.api import Optimization
    from ortopt.errors import TransformerError
    from ortopt.optimization.bisection import Blame
    from ortopt.reporting.reproducer import Reproducer


@click.command("bisect", short_help="Find the rewrite that makes a result differ.")
@click.argument("model")
@click.option("-o", "--output", metavar="FOLDER", help="New or empty.  [default: MODEL-stem.bisect here]")
@click.option("-O", "level", type=click.IntRange(0, 4), default=3, show_default=True, help="-O0 to -O4.")
@run_options
@click.option("--inputs", metavar="FILE.npz", help="Arrays to verify with, by input name.")
@click.option("--json", "as_json", is_flag=True, help="As data.")
def command(model: str, output: str | None, level: int, as_json: bool, **given: Any) -> None:
    """Find the first single rewrite after which the result of "ortopt optimize" differs from the original.

    Exits with 0 if there is none: the result verifies. Else with 3, and FOLDER holds the smallest model around the
    rewrite, before and after, inputs, what both give, and commands that reproduce it; a pass that failed is shown
    likewise. MODEL is a file, "-" for stdin, or zoo:NAME.
    """
    from ortopt.api import Optimization
    from ortopt.cancellation import CancellationToken
    from ortopt.cli import models
    from ortopt.cli.interrupt import cancels
    from ortopt.cli.warning import warn
    from ortopt.errors import InvalidModelError, UsageError, VerificationError
    from ortopt.reporting import reproducer

    if output == "":
        raise UsageError("-o is given an empty name")
    options = dataclasses.replace(make_options(level=level, **given), repair=False)
    argument = models.resolve(model)
    folder = Path(output or f"{Path(argument.zoo or argument.label).stem}.bisect")
    reproducer.check_folder(folder)
    inputs = models.verification_inputs(given["inputs"], argument, options.dims)
    token = CancellationToken()
    run = Optimization(argument.source, options, cancellation=token)
    with contextlib.closing(run), cancels(token):
        run.transform()
        blame = run.blame(inputs)
        failures = run.result(run.verification).summary.failures
    if run.stopped:
        warn("stopped by the time limit; later rewrites have not been looked at")
    if blame is not None:
        made = reproducer.of_rewrite(blame, options)
        found = _of_rewrite(blame)
    elif failures:
        made = reproducer.of_failure(run, failures[0])
        found = _of_failure(failures[0])
    else:
        _speak(as_json, describe(argument.label, run, None, None, None))
        assert run.verification is not None
        if run.verification.status != "verified":
            raise InvalidModelError(f"nothing can be said: {run.verification.reason}")
        return
    reproducer.write(made, folder, found["says"])
    _speak(as_json, describe(argument.label, run, found, made, folder))
    raise VerificationError(found["says"])


def _of_rewrite(blame: Blame) -> dict[str, Any]:
    from ortopt.reporting import report

    rewrite, seen = blame.culprit.rewrite, blame.culprit.verification
    row = {
        "kind": "rewrite",
        "pass": rewrite.transformer,
        "rewrite": rewrite.number,
        "level": rewrite.level,
        "step": rewrite.step,
        "graph": rewrite.graph,
        "nodes": [{"name": name, "op": op} for name, op in rewrite.nodes],
        "why": rewrite.why,
        "reason": seen.reason,
        "output": seen.worst_output,
        "error": report.plain(seen.worst if seen.outputs else float("inf")),
        "error_before": report.plain(blame.culprit.error_before),
        "probes": blame.culprit.probes,
    }
    return {**row, "says": f"{report.describe_rewrite(row)} makes the result differ: {seen.reason}"}


def _of_failure(failure: TransformerError) -> dict[str, Any]:
    return {
        "kind": "failure",
        "pass": failure.transformer,
        "level": failure.level,
        "step": failure.step,
        "graph": failure.graph,
        "reason": failure.reason,
        "says": str(failure),
    }


def describe(
    label: str, run: Optimization, found: dict[str, Any] | None, made: Reproducer | None, folder: Path | None
) -> dict[str, Any]:
    """What was found, as data that json can write.

    Args:
        label: The model as the user named it.
        run: The run.
        found: The culprit, or None.
        made: What the folder shows.
        folder: Where it was written.
    """
    from ortopt.reporting import report, reproducer

    outcome = run.verification
    return {
        "schema": 1,
        "model": label,
        "status": None if outcome is None else outcome.status,
        "reason": "" if outcome is None else outcome.reason,
        "rewrites": run.result(outcome).summary.rewrites,
        "culprit": found,
        "failures": [str(one) for one in run.result(outcome).summary.failures],
        "folder": None if folder is None else str(folder),
        "files": [] if made is None else made.files,
        "whole_model": None if made is None else bool(made.whole),
        "why_whole": "" if made is None else made.whole,
        "nodes": None if made is None else [len(m.graph) for m in (made.before, made.after) if m is not None],
        "weights": {"noise": [], "kept": []} if made is None else {"noise": made.noise, "kept": made.kept},
        "commands": [] if made is None else made.commands,
        "versions": reproducer.versions(),
        "options": report.plain(run.options),
    }


def _speak(as_json: bool, data: dict[str, Any]) -> None:
    from ortopt.reporting import report
    from ortopt.terminal_text import one_line

    if as_json:
        click.echo(json.dumps(data, indent=2))
        return
    out = report.console(sys.stdout)
    found = data["culprit"]
    if found is None:
        out.print(f"{data['status']}: {data['rewrites']} rewrites, none of them makes the result differ")
        return
    rows: list[tuple[str, object]] = [("pass", found["pass"])]
    rows += [("rewrite", f"{found['rewrite']} of {data['rewrites']}")] if "rewrite" in found else []
    rows += [("level", found["level"]), ("step", found["step"]), ("graph", found["graph"])]
    rows += [("node", f"{node['op']} {node['name']}") for node in found.get("nodes", ())]
    rows += [("error", f"{found['error']} of the scale, {found['error_before']} before")] if "error" in found else []
    rows += [("says", found["reason"]), ("folder", data["folder"])]
    out.print(report.table(("", ""), rows, text=2, headless=True))
    out.print()
    whole = f"the whole model, because {data['why_whole']}" if data["whole_model"] else "a part of the model"
    noise, kept = len(data["weights"]["noise"]), len(data["weights"]["kept"])
    out.print(one_line(f"it holds {whole}; weights: {noise} replaced by noise, {kept} as they were"), soft_wrap=True)
    for failure in data["failures"] if found["kind"] == "rewrite" else ():
        out.print(f"besides: {one_line(failure)}", soft_wrap=True)
    out.print("to reproduce it, there:" if data["commands"] else "no command of one pass alone reproduces it")
    for line in data["commands"]:
        out.print(f"  {one_line(line)}", soft_wrap=True)
