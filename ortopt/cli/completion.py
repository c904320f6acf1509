"""What the shell completes: files, models of the zoo, passes. Loaded only when a shell asks."""

from __future__ import annotations

import re
from typing import Any, Final

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class

ZOO: Final = "zoo:"
_FILES: Final = re.compile(r"FILE|DIR|FOLDER|OUT|BASELINE")
_MODELS: Final = frozenset({"model", "models", "model_names", "original", "result", "zoo"})
_PASSES: Final = frozenset({"disable", "enable", "only"})


class FileName(click.ParamType[str]):
    """A path: the shell completes it."""

    name = "file"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Leave it to the shell."""
        return [CompletionItem(incomplete, type="file")]


class ModelName(FileName):
    """A path, or zoo:NAME."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The models of the zoo where the word may name one, else what the shell finds."""
        if incomplete.startswith(ZOO):
            return [CompletionItem(ZOO + name) for name in _models() if (ZOO + name).startswith(incomplete)]
        files = super().shell_complete(ctx, param, incomplete)
        return [CompletionItem(ZOO), *files] if incomplete and ZOO.startswith(incomplete) else files


class ZooName(click.ParamType[str]):
    """The name of a model of the zoo."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The models of the zoo."""
        return [CompletionItem(name) for name in _models() if name.startswith(incomplete)]


class PassNames(click.ParamType[str]):
    """Names of passes, separated by commas; the last one is completed."""

    name = "passes"

    def __init__(self, more: tuple[str, ...] = ()) -> None:
        self._more = more

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The passes of ortopt; a plug-in's are not looked for: that would load them."""
        before, comma, last = incomplete.rpartition(",")
        names = sorted((*_passes(), *self._more))
        return [CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(last)]


def _models() -> tuple[str, ...]:
    from ortopt import zoo
    from ortopt.errors import UsageError

    try:
        return zoo.names()
    except UsageError:  # the models are not installed: there is none to complete
        return ()


def _passes() -> list[str]:
    from ortopt.discovery import pass_manifest

    return [name for entry in pass_manifest.read().values() for name in entry.passes]


def prepare(command: click.Command) -> None:
    """Let the parameters of a command complete what they name.

    Args:
        command: The command; its own commands are prepared, too.
    """
    for param in command.params:
        kind = _kind(command.name, param)
        if kind is not None:
            param.type = kind
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        prepare(below)


def _kind(command: str | None, param: click.Parameter) -> click.ParamType[Any] | None:
    name = param.name or ""
    if name in _PASSES:
        return PassNames()
    if isinstance(param, click.Argument):
        if name == "name":
            families = ("attention", "rotary", "normalization") if command == "explain" else ()
            return ZooName() if command == "grow" else PassNames(families)
        return ModelName() if name in _MODELS else FileName()
    return FileName() if param.metavar and _FILES.search(param.metavar) else None


class BashWithColons(BashComplete):
    """Bash takes a colon for the end of a word: the words around it are put together again."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is completed, and that word."""
        args, incomplete = super().get_completion_args()
        if incomplete == ":" and args[-1:] == ["zoo"]:
            return args[:-1], ZOO
        if args[-2:] == ["zoo", ":"]:
            return args[:-2], ZOO + incomplete
        return args, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """A completion without what bash takes for an earlier word."""
        value = item.value.removeprefix(ZOO) if item.value != ZOO else item.value
        return f"{item.type},{value}"


def register() -> None:
    """Let click use what is special to bash."""
    add_completion_class(BashWithColons)
