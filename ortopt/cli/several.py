"""``ortopt optimize`` on several models and folders: each by itself, into a folder that has the same tree."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from ortopt.cli import files
from ortopt.cli.files import STREAM
from ortopt.cli.interaction import warn
from ortopt.cli.models import ZOO, is_folder
from ortopt.cli.optimization import Run
from ortopt.errors import OptimizationCancelled, OrtoptError, OutputError, UsageError
from ortopt.integrations.companions import copy_companions
from ortopt.options import Options
from ortopt.regression.sources import below
from ortopt.reporting import long_report, report, tables
from ortopt.terminal_text import one_line, quoted
from ortopt.verification import start

SCHEMA: Final = 1

_CODES: Final = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class Work:
    """One model, and where its result goes.

    Attributes:
        model: The argument, or a file below one.
        target: The result's file.
        folder: The folder among the arguments that it was found in; None if it was named itself.
    """

    model: str
    target: Path
    folder: Path | None = None


def optimize(arguments: Sequence[str], options: Options, **flags: Any) -> int:
    """Optimize all models; the exit code. One that fails does not cost the others.

    Args:
        arguments: Models and folders.
        options: Options of each run.
        flags: The command's flags, by name.

    Raises:
        OrtoptError: If the arguments make no sense, or the folder cannot be written.
    """
    out = Path(flags["output"])
    _check(arguments, out, flags)
    works = list({(work.model, work.target): work for work in _works(arguments, out)}.values())
    if not works:
        raise UsageError(f"there is no model in {', '.join(map(quoted, arguments))}")
    _check_targets(works)
    console = report.console(sys.stderr if flags["json_file"] == files.STREAM else sys.stdout)
    rows, codes = [], []
    for work in works:
        row, code = _one(work, out, options, flags)
        rows.append(row)
        codes.append(code)
        if not flags["quiet"] and not flags["verbose"] and code == 0:
            larger = "".join(f", larger: {why}" for why in row["larger"])
            line = f"{one_line(work.model)}: {long_report.in_short(row)}{larger}, written: {one_line(work.target)}"
            tables.say(console, line)
        gc.collect()  # which is off in a process of one command
    for line in _copy_companions(works, out):
        if not flags["quiet"]:
            tables.say(console, line)
    if flags["html_file"]:
        _write_index(Path(flags["html_file"]), [(row, _page(work, out)) for work, row in zip(works, rows, strict=True)])
    if flags["json_file"]:
        text = json.dumps({"schema": SCHEMA, "models": rows}, indent=2, allow_nan=False)
        files.write_text(flags["json_file"], text + "\n")
    return next((code for code in (*_CODES, *codes) if code in codes and code), 0)


def _check(arguments: Sequence[str], out: Path, flags: Mapping[str, Any]) -> None:
    for flag, name in (("dump_dir", "--dump-dir"), ("trace_file", "--trace"), ("inputs", "--inputs")):
        if flags[flag]:
            raise UsageError(f"{name} is for one model")
    if flags["output"] in ("", STREAM) or STREAM in arguments:
        raise UsageError("several models must be files, and -o must name a folder")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{quoted(str(out))} is a file: several models go to a folder")
    for argument in arguments:
        if is_folder(argument) and out.resolve() == Path(argument).resolve():
            raise UsageError(f"the results would overwrite the models in {quoted(argument)}")
    pages = flags["html_file"]
    if pages is not None and (pages in ("", STREAM) or (Path(pages).exists() and not Path(pages).is_dir())):
        raise UsageError("of several models, --html writes pages into a folder: give its name")
    files.check_outputs({"--json": flags["json_file"]}, {})


def _works(arguments: Sequence[str], out: Path) -> Iterator[Work]:
    for argument in arguments:
        if not argument:
            raise UsageError("the name of the model is empty")
        if argument.startswith(ZOO):
            yield Work(argument, out / f"{argument.removeprefix(ZOO)}.onnx")
        elif is_folder(argument):
            folder = Path(argument)
            for path in below(folder):
                if not path.resolve().is_relative_to(out.resolve()):  # results of an earlier run
                    yield Work(str(path), out / path.relative_to(folder), folder)
        else:
            yield Work(argument, out / Path(argument).name)


def _check_targets(works: Sequence[Work]) -> None:
    """Refuse two results of one name, and results that would take the place of a model."""
    targets: dict[Path, str] = {}
    for work in works:
        other = targets.setdefault(work.target, work.model)
        if other != work.model:
            raise UsageError(f"the results of {quoted(other)} and {quoted(work.model)} would have the same name")
    for work in works:
        files.check_not_read({"-o": str(work.target)}, {"a model": [one.model for one in works]})


def _page(work: Work, out: Path) -> Path:
    """Where the page of a model is, in the folder of pages."""
    target = work.target.relative_to(out)
    return target.with_name(f"{target.name}.html")


def _write_index(folder: Path, reports: Sequence[tuple[dict[str, Any], Path]]) -> None:
    """Write a page that leads to the pages of all models."""
    from ortopt.reporting.page.pages import index_page

    rows = [
        (row, f"./{urllib.parse.quote(page.as_posix(), safe='/')}" if (folder / page).is_file() else "")
        for row, page in reports
    ]
    files.write_text(str(folder / "index.html"), index_page("ortopt optimize", rows))


def _one(work: Work, out: Path, options: Options, flags: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Optimize one model; its report as data, and its exit code."""
    own = {**flags, "output": str(work.target), "json_file": None, "quiet": not flags["verbose"]}
    page = None if not flags["html_file"] else Path(flags["html_file"]) / _page(work, out)
    own["html_file"] = None if page is None else str(page)
    run: Run | None = None
    try:
        try:
            for path in (work.target, page):
                if path is not None:
                    path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write {quoted(str(path))}: {error.strerror}") from error
        with start.early() if flags["verify"] else contextlib.nullcontext():
            run = Run(work.model, options, **own)
            run.all()
    except (OptimizationCancelled, UsageError):
        raise
    except (OrtoptError, MemoryError) as error:
        message = "out of memory (see --max-memory)" if isinstance(error, MemoryError) else one_line(error)
        click.echo(f"ortopt: {message}", err=True)
        data = run.data if run is not None and run.data is not None else {"input": work.model, "output": None}
        return {**data, "error": message}, getattr(error, "exit_code", 2)
    assert run.data is not None
    return run.data, 0


def _copy_companions(works: Sequence[Work], out: Path) -> Iterator[str]:
    """Copy what stands beside the models of Hugging Face's folders; a line for each folder."""
    for root in dict.fromkeys(work.folder for work in works if work.folder is not None):
        for at, copied, refused in copy_companions(root, out, [work.model for work in works if work.folder == root]):
            if copied:
                yield f"copied beside the results from {one_line(at)}: {', '.join(map(one_line, copied))}"
            if refused:
                warn(f"not copied, because they lead out of {root}: {', '.join(refused)}")
