"""What the arguments of a command name: models (files, streams, of the zoo), and which of them is the output."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from ortopt.cli.files import STREAM
from ortopt.errors import UsageError
from ortopt.terminal_text import quoted

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

ZOO = "zoo:"


class ModelArgument(Struct, frozen=True):
    """A model that the user named.

    Attributes:
        label: As the user named it.
        source: What `ortopt.optimize` takes.
        output: The default path of the result.
        zoo: The name of a model of the zoo, or None.
    """

    label: str
    source: Path | ir.Model
    output: str
    zoo: str | None = None

    @property
    def path(self) -> Path | None:
        """The file, if it is one."""
        return self.source if isinstance(self.source, Path) else None

    def file(self, written: Path) -> Path:
        """The file; of a model that came through a stream one that is written for it.

        Args:
            written: The file to write then, in a folder that is there or new.
        """
        if isinstance(self.source, Path):
            return self.source
        from ortopt.serialization.save import save

        written.parent.mkdir(exist_ok=True)
        save(self.source, written)
        return written


def resolve(text: str) -> ModelArgument:
    """Find the model that an argument names.

    Args:
        text: A path, ``-``, or ``zoo:NAME``, which is grown if it is not in the cache.

    Raises:
        UsageError: If the name is empty, or the zoo has no such model.
        InvalidModelError: If the stream holds none.
    """
    if not text:  # an unset variable of the shell
        raise UsageError("the name of the model is empty")
    if text == STREAM:
        from ortopt.serialization.load import load

        return ModelArgument("stdin", load(sys.stdin.buffer), STREAM)
    if text.startswith(ZOO):
        from ortopt import zoo

        name = text.removeprefix(ZOO)
        return ModelArgument(text, zoo.cached(name), f"{name}.opt.onnx", name)
    path = Path(text)
    return ModelArgument(text, path, str(path.parent / f"{path.stem}.opt.onnx"))


def external_data(model: ir.Model) -> tuple[str, ...]:
    """The files of external data that a model was loaded from."""
    from ortopt.serialization.load import SOURCE_KEY

    data: tuple[str, ...] = model.meta[SOURCE_KEY].data
    return data


def verification_inputs(
    path: str | None, argument: ModelArgument, sizes: Mapping[str, int]
) -> dict[str, np.ndarray[Any, Any]] | None:
    """The arrays to verify with: from a file, from the zoo's manifest, or None for seeded ones.

    Args:
        path: An .npz file with an array for each input, or None.
        argument: The model.
        sizes: Sizes of symbolic dimensions in the zoo's.

    Raises:
        UsageError: If the path is empty.
        InvalidModelError: If the file cannot be read.
    """
    if path == "":
        raise UsageError("the name after --inputs is empty")
    if path is None:
        if argument.zoo is None:
            return None
        from ortopt import zoo

        return zoo.inputs(argument.zoo, sizes=sizes)
    from ortopt.verification.inputs import read_inputs

    return read_inputs(path)


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
