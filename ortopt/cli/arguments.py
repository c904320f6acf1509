"""Which arguments of ``ortopt optimize`` are inputs, and which is the output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ortopt.errors import UsageError
from ortopt.terminal_text import quoted

STREAM: Final = "-"
ZOO: Final = "zoo:"
MARK: Final = "ortopt"
"""The key of the metadata that names the version of ortopt which has written a file."""


def are_several(models: Sequence[str], output: str | None) -> bool:
    """Whether the arguments are several inputs, and the output is a folder.

    Args:
        models: The arguments.
        output: What ``-o`` names.

    Raises:
        UsageError: If there is no telling.
    """
    several = len(models) > 1 or any(is_folder(model) for model in models)
    if output is not None:
        return several
    if len(models) > 2:
        raise UsageError(f"{len(models)} models need a folder for the results: -o FOLDER")
    if any(is_folder(model) for model in models[:1]):
        raise UsageError(f"{quoted(models[0])} is a folder: -o says where the results go")
    return False


def is_folder(argument: str) -> bool:
    """Whether an argument names a folder."""
    if not argument or argument == STREAM or argument.startswith(ZOO):
        return False
    try:
        return Path(argument).is_dir()
    except OSError:  # a name that is too long: whoever opens it says so
        return False


def one(models: Sequence[str], output: str | None, *, overwrite: bool) -> tuple[str, str | None]:
    """The input and the output, None where it is named after the input.

    Args:
        models: One argument, or two without ``-o``: input and output.
        output: What ``-o`` names.
        overwrite: Whether an output by position may replace any file.

    Raises:
        UsageError: If the output by position is a folder or a model of the zoo, or holds what ortopt has not written.
    """
    if len(models) == 1:
        return models[0], output
    model, target = models
    if target.startswith(ZOO) or is_folder(target):
        raise UsageError(f"{quoted(target)} is no file to write to: with several models, -o names a folder")
    if not overwrite and target not in ("", STREAM) and Path(target).is_file() and not is_ours(Path(target)):
        raise UsageError(
            f"{quoted(target)} is there, and ortopt has not written it: --overwrite replaces it (two models are"
            " optimized by -o FOLDER)"
        )
    return model, target


def is_ours(path: Path) -> bool:
    """Whether ortopt has written a model's file; an empty file is nobody's."""
    if path.stat().st_size == 0:
        return True
    from ortopt.errors import InvalidModelError
    from ortopt.serialization.load import load

    try:
        return MARK in load(path, checked=False).metadata_props
    except InvalidModelError:
        return False


__all__ = ["MARK", "are_several", "is_folder", "is_ours", "one"]
