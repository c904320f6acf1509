"""The group of all commands: it loads them by name, and turns errors into one line and an exit code."""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import click

import ortopt
from ortopt.cli.interaction import warn
from ortopt.errors import OptimizationCancelled, OrtoptError, PlugInWarning
from ortopt.terminal_text import one_line

COMMANDS = (
    "optimize",
    "check",
    "verify",
    "diff",
    "bisect",
    "run",
    "bench",
    "explain",
    "groups",
    "extract",
    "merge-decoders",
    "info",
    "passes",
    "costs",
    "zoo",
)
USAGE, BAD_INPUT, INTERNAL = 1, 2, 70
TRACEBACK = "ORTOPT_TRACEBACK"
COMPLETE = "_ORTOPT_COMPLETE"
"""The variable by which a shell asks for completions."""

UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""How a write to what is open fails: the disk below stdout is full, or nothing is there."""


class LazyGroup(click.Group):
    """Commands that are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, the most used first."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"ortopt.cli.{cmd_name.replace('-', '_')}").command
        if COMPLETE in os.environ:
            from ortopt.cli.completion import prepare

            prepare(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names; the nearest ones in the message where there is none."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            nearest = difflib.get_close_matches(str(args[0]), COMMANDS, n=3, cutoff=0.5)
            hint = f"; did you mean {', '.join(nearest)}?" if nearest and not str(args[0]).startswith("-") else ""
            if hint:
                raise click.UsageError(f"there is no command named {args[0]!r}{hint}", ctx) from error
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; of warnings, only ours are shown, unless Python is told to."""
        try:
            with warnings.catch_warnings():
                if not sys.warnoptions:
                    warnings.simplefilter("ignore")
                _show_our_warnings()
                outcome = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:  # before click makes an empty line of it
            raise OptimizationCancelled from None
        except EOFError as error:  # click would take it for the end of what somebody types
            raise RuntimeError(f"EOFError: {error}") from error
        except BrokenPipeError:  # the reader, e.g. `head`, has closed the pipe
            _forget_stdout()
            raise click.exceptions.Exit(BAD_INPUT) from None
        return outcome

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "ortopt",
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Run, report an error in one line, and exit with its code."""
        if COMPLETE in os.environ:
            from ortopt.cli.completion import register

            register()
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # names may hold what the terminal cannot show
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except OrtoptError as error:
            code = _report(str(error), error.exit_code)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = USAGE
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx is not None else "ortopt"
            code = _report(f"{error.format_message()} (see {path} --help)", USAGE)
        except click.ClickException as error:
            code = _report(error.format_message(), USAGE)
        except click.Abort:
            code = _report("cancelled", OptimizationCancelled.exit_code)
        except MemoryError:
            code = _report("out of memory (see --max-memory)", BAD_INPUT)
        except Exception as error:
            if isinstance(error, OSError) and error.filename is None and error.errno in UNWRITABLE:
                sys.exit(_report(f"cannot write to stdout: {error.strerror}", BAD_INPUT))
            if os.environ.get(TRACEBACK) == "1":
                raise
            kind = type(error).__name__
            code = _report(f"internal error: {kind}: {error} ({TRACEBACK}=1 shows where; please report it)", INTERNAL)
        finally:
            try:
                sys.stdout.flush()
            except OSError:  # already reported: not again when the interpreter ends
                _forget_stdout()
        sys.exit(code or 0)


def _show_our_warnings() -> None:
    """Show warnings about plug-ins as lines of ours on stderr; others as Python does."""
    show = warnings.showwarning

    def show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, PlugInWarning):
            warn(message)
        else:
            show(message, category, *where, **more)

    warnings.simplefilter("always", PlugInWarning)
    warnings.showwarning = show_warning


def _forget_stdout() -> None:
    """Discard what has not been written, instead of failing when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(message: str, code: int) -> int:
    click.echo(f"ortopt: {one_line(message)}", err=True)
    return code


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(ortopt.__version__, prog_name="ortopt")
def commands() -> None:
    """Optimize ONNX models: the same results with fewer nodes, less time, less memory.

    A model is a file, "-" for a stream, or zoo:NAME for a model of the zoo.
    """
