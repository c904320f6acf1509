"""What a model argument names: a file, a stream, or a model of the zoo."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ortopt.cli.files import STREAM
from ortopt.errors import UsageError

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
    from ortopt.verification.inputs_file import read_inputs

    return read_inputs(path)
