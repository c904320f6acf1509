"""One run of ``ortopt check``, from its arguments to its exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import structs

from ortopt import api, registry
from ortopt.analysis import providers as execution
from ortopt.cli import check_display, files
from ortopt.cli.interaction import warn
from ortopt.errors import OptimizationCancelled, UsageError
from ortopt.options import declarations
from ortopt.regression import baseline as baselines
from ortopt.regression import formats, results, shards, sources
from ortopt.regression import manifest as manifests
from ortopt.regression.baseline import Baseline
from ortopt.regression.case import Case, plain_options
from ortopt.regression.check import RunningCheck, Schedule, compared_baselines
from ortopt.regression.facts import versions
from ortopt.regression.latency import Latency
from ortopt.regression.manifest import Manifest
from ortopt.regression.pool import Pool
from ortopt.regression.results import Check, Result, Status
from ortopt.reporting import report
from ortopt.system import memory

if TYPE_CHECKING:
    from rich.console import Console


def check(zoo: Sequence[str], flags: Mapping[str, Any], given: Mapping[str, str]) -> int:
    """Check a zoo; the exit code.

    Args:
        zoo: The arguments.
        flags: All flags, by name.
        given: Those that the user gave, as they are written.

    Raises:
        OrtoptError: If an argument makes no sense, or a file cannot be read or written.
    """
    if not flags["dask"]:  # models run elsewhere
        execution.check_installation()
    said = _said(flags, given)
    selection = sources.cases(zoo, said)
    cases = selection.cases
    if flags["inputs"] is not None and len({case.model for case in cases}) > 1:
        raise UsageError("--inputs is for one model; a manifest names those of several")
    for text in selection.idle():
        warn(text)
    path = Path(flags["baseline"]) if flags["baseline"] else selection.baseline
    _check_files(flags, path, cases)
    baseline = _baseline(path, update=flags["update"])
    _check_options(cases)
    gone = [] if baseline is None else selection.vanished(baseline.models, said)
    running = RunningCheck(cases, _plan(cases, flags, baseline), gone)
    try:
        with check_display.watcher(_console(flags), flags["jobs"], quiet=flags["quiet"]) as watcher:
            running.watch(watcher)
            found = running.run()
    except (KeyboardInterrupt, OptimizationCancelled):
        _write(running.check(0.0, stopped=True), flags)
        raise
    found = structs.replace(found, baseline="" if path is None else str(path))
    _write(found, flags)
    written = ""
    if path is not None and flags["update"]:
        written = _write_baseline(
            path, baseline or Baseline(), found, {case.name: case for case in cases}, prune=flags["prune"]
        )
    _show(found, flags, update=written)
    _annotate(found, flags, {case.name: case.path for case in cases})
    return found.exit_code


_REPORTS: Final = frozenset({"json_file", "junit", "markdown", "html_file", "annotations", "quiet"})
"""Options that have to do with results alone, so that they work where nothing runs."""


def _refuse_others(command: str, given: Mapping[str, str], *more: str) -> None:
    others = [flag for name, flag in given.items() if name not in _REPORTS.union(more)]
    if others:
        raise UsageError(f"`ortopt check {command}` runs no model, so it takes no {', '.join(others)}")


def diff(arguments: Sequence[str], flags: Mapping[str, Any], given: Mapping[str, str]) -> int:
    """Compare two baselines; the exit code.

    Args:
        arguments: The command's name, two baselines, and a manifest for thresholds, or a folder that has one.
        flags: All flags, by name.
        given: Those that the user gave, as they are written.

    Raises:
        OrtoptError: If an argument makes no sense, or a file cannot be read or written.
    """
    command, *paths = arguments
    if len(paths) not in (2, 3):
        raise UsageError(
            f"`ortopt check {command}` takes two baselines and at most one manifest (a folder: ./{command})"
        )
    _refuse_others(command, given)
    files.check_outputs(_reports(flags), {"a baseline": paths[:2]})
    old, new, *more = map(Path, paths)
    more = [path / manifests.NAME if path.is_dir() else path for path in more]
    manifest = manifests.read(more[0]) if more else Manifest()
    found = compared_baselines((old, baselines.read(old)), (new, baselines.read(new)), manifest)
    _write(found, flags)
    _tell([result for result in found.ranked if result.status is not Status.SAME], flags)
    _show(found, flags, update="")
    _annotate(found, flags, {})
    return found.exit_code


def _tell(results: Sequence[Result], flags: Mapping[str, Any]) -> None:
    """A line for each result of models that have run elsewhere."""
    lines = (check_display.Failures if flags["quiet"] else check_display.Lines)(_console(flags))
    for result in results:
        lines.done(result)


def merge(arguments: Sequence[str], flags: Mapping[str, Any], given: Mapping[str, str]) -> int:
    """Put the results of shards together; the exit code.

    Args:
        arguments: The command's name, and files that ``--json`` wrote.
        flags: All flags, by name.
        given: Those that the user gave, as they are written.

    Raises:
        OrtoptError: If the parts do not fit together.
    """
    command, *arguments = arguments
    _refuse_others(command, given, "baseline", "update", "prune")
    reports = _reports(flags)
    files.check_outputs(reports, {"a shard": arguments})
    if len(set(arguments)) != len(arguments):
        raise UsageError("a shard is named twice")
    found = shards.merge({name: results.read(name) for name in arguments})
    if flags["update"]:
        taken = tuple(results.accepted(result, pruned=flags["prune"]) for result in found.results)
        found = structs.replace(found, results=taken)
    _write(found, flags)
    written = ""
    if flags["update"]:
        if not flags["baseline"]:
            raise UsageError("--update needs --baseline FILE, the baseline to write")
        path = Path(flags["baseline"])
        old = baselines.read(path) if path.exists() else Baseline()
        found = structs.replace(found, missing=tuple(sorted(old.models.keys() - {r.name for r in found.results})))
        written = _write_baseline(path, old, found, {}, prune=flags["prune"])
    _tell(found.ranked, flags)
    _show(found, flags, update=written)
    _annotate(found, flags, {})
    return found.exit_code


def _said(flags: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """What the command line says of all models, as arguments of `Settings.merged`."""
    options = {
        name: declared.kind.parsed(declared.flag, flags[name])
        for name, declared in declarations().items()
        if name in given and name in flags and name not in ("timeout", "strict")
    }
    api.make_options(**options)
    said: dict[str, Any] = {"options": plain_options(options)} if options else {}
    said |= {name: True for name in ("thorough", "layers") if flags[name]}
    if flags["inputs"] is not None:
        said["inputs"] = flags["inputs"]
    return said


def _reports(flags: Mapping[str, Any]) -> dict[str, str | None]:
    """The files that are written beside a baseline, by option."""
    if flags["html_file"] == files.STREAM:
        raise UsageError("--html writes a page for a browser into a file: give its name")
    texts = {f"--{name}": flags[name] for name in ("junit", "markdown")}
    return {**texts, "--json": flags["json_file"], "--html": flags["html_file"]}


def _check_files(flags: Mapping[str, Any], baseline: Path | None, cases: Sequence[Case]) -> None:
    reports = _reports(flags)
    if list(reports.values()).count(files.STREAM) > 1:
        raise UsageError("only one of --json, --junit and --markdown can go to stdout")
    if flags["prune"] and not flags["update"]:
        raise UsageError("--prune works with --update only")
    written = {**reports, "--resume": flags["resume"]}
    if flags["update"]:
        if baseline is None:
            raise UsageError("--update needs --baseline FILE, the baseline to write")
        if flags["shard"]:
            raise UsageError("--update needs the whole zoo: put the shards together with `ortopt check merge`")
        written["--baseline"] = str(baseline)
    models = [case.path for case in cases if case.path is not None]
    inputs = [case.settings.inputs for case in cases if case.settings.inputs]
    read: dict[str, Any] = {"a model": models, "the inputs": inputs}
    if baseline is not None and not flags["update"]:
        read["the baseline"] = baseline
    files.check_outputs(written, read)


def _baseline(path: Path | None, *, update: bool) -> Baseline | None:
    if path is None:
        return None
    if update and not path.exists():
        return Baseline()
    return baselines.read(path)


def _check_options(cases: Sequence[Case]) -> None:
    """Refuse options that make no sense; say on what results for providers that are missing here are verified."""
    every = {repr(case.settings.options): api.make_options(**case.settings.options) for case in cases}
    for options in every.values():
        registry.select(options)  # names of passes are checked before the work begins
    for absent in sorted({execution.in_place_of(options.providers) for options in every.values()} - {""}):
        warn(absent)


def _plan(cases: Sequence[Case], flags: Mapping[str, Any], baseline: Baseline | None) -> Schedule:
    plan = Schedule(_runner(flags), baseline, accept=flags["update"], prune=flags["prune"], strict=flags["strict"])
    plan.versions = versions({case.settings.options.get("costs") for case in cases} or {None})
    if flags["changed_since"]:
        plan.changed_since = baselines.read(Path(flags["changed_since"]))
    if flags["shard"]:
        plan.shard = shards.parse(flags["shard"])
    if flags["resume"]:
        plan.journal = Path(flags["resume"])
    if flags["latency"]:
        plan.latency = Latency(flags["latency_rounds"], threads=flags["threads"])
    return plan


def _runner(flags: Mapping[str, Any]) -> Any:
    limit = memory.parse_limit("--max-memory", flags["max_memory"]) if flags["max_memory"] else None
    if flags["dask"]:
        if flags["latency"]:
            raise UsageError("--latency measures on this machine only: leave out --dask")
        from ortopt.regression.cluster import Cluster

        return Cluster(flags["dask"], timeout=flags["timeout"], limit=limit)
    return Pool(flags["jobs"], timeout=flags["timeout"], limit=limit)


def _console(flags: Mapping[str, Any]) -> Console:
    return report.console(sys.stderr if files.STREAM in _reports(flags).values() else sys.stdout)


def _annotate(found: Check, flags: Mapping[str, Any], models: Mapping[str, Path | None]) -> None:
    """Print what GitHub Actions reads from stdout and stderr, also with ``--quiet``."""
    if formats.in_github_actions() if flags["annotations"] is None else flags["annotations"]:
        for line in formats.annotation_lines(found, formats.annotated_places(found, models)):
            click.echo(line, err=files.STREAM in _reports(flags).values())


def _write(found: Check, flags: Mapping[str, Any]) -> None:
    if flags["json_file"]:
        files.write_text(flags["json_file"], json.dumps(found.as_dict(), indent=2, allow_nan=False) + "\n")
    if flags["junit"]:
        files.write_text(flags["junit"], formats.junit(found))
    if flags["markdown"]:
        files.write_text(flags["markdown"], formats.markdown(found))
    if flags["html_file"]:
        files.write_text(flags["html_file"], formats.page(found))


def _write_baseline(path: Path, old: Baseline, found: Check, cases: Mapping[str, Case], *, prune: bool) -> str:
    """Write the facts of all models that have a result; those of the others stay as they were."""
    from ortopt.regression.thresholds import DEFAULTS

    usable = {
        result.name: result.facts for result in found.results if result.usable and result.status is not Status.DIFFERS
    }
    kept = {
        result.name: old.models[result.name]
        for result in found.results
        if result.name not in usable and result.name in old.models and result.status is not Status.ACCEPTED
    }
    thresholds = {name: cases[name].settings.thresholds if name in cases else DEFAULTS for name in usable}
    new = baselines.updated(old, usable, found.versions, thresholds)
    others = {} if prune else {name: old.models[name] for name in found.missing if name in old.models}
    new = Baseline(new.versions, {**others, **kept, **new.models})
    files.write_text(str(path), new.text())
    return str(path)


def _show(found: Check, flags: Mapping[str, Any], *, update: str) -> None:
    if not flags["quiet"]:
        check_display.show(found, _console(flags), update=update)
    if flags["update"] and found.exit_code:
        failed = [result.name for result in found.results if result.is_failure and result.error]
        if failed:
            warn(f"without a result, so not in the baseline: {', '.join(failed)}")
