"""What Hugging Face's libraries put beside their models: configurations and tokenizers, which results need too."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ortopt.errors import OrtoptError, OutputError
from ortopt.serialization.load import SOURCE_KEY, load
from ortopt.terminal_text import quoted

_ENDINGS: Final = (".json", ".txt", ".model", ".jinja", ".spm", ".tiktoken", ".bpe", ".vocab")
"""How the names of configurations and of tokenizers end."""

_MARKS: Final = ("config.json", "ort_config.json", "model_index.json", "tokenizer_config.json", "tokenizer.json")
"""What stands in a folder of Hugging Face's libraries."""


class Copied(NamedTuple):
    """What was copied of one folder.

    Attributes:
        folder: The folder.
        names: The names of the files that were copied.
        refused: Those of links that lead out of the tree, which were not.
    """

    folder: Path
    names: Sequence[str]
    refused: Sequence[str]


def copy_companions(root: Path, out: Path, models: Iterable[str | os.PathLike[str]]) -> Iterator[Copied]:
    """Copy what stands beside the models of a tree of Hugging Face's folders into another tree.

    Args:
        root: The folder at the top.
        out: Where the tree of the results begins.
        models: The models: files that hold weights of theirs are no companions.

    Yields:
        What was copied of each folder.

    Raises:
        OutputError: A file cannot be written.
    """
    data = _external_data(models)
    for at, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and Path(at, name) != out)
        if any((root / name).is_file() or Path(at, name).is_file() for name in _MARKS):
            yield _copied(Path(at), sorted(names), root, out, data)


def _copied(at: Path, names: Sequence[str], root: Path, out: Path, data: frozenset[Path]) -> Copied:
    """Copy the companions in one folder."""
    copied, refused = [], []
    for name in names:
        source = at / name
        if not name.endswith(_ENDINGS) or name.startswith(".") or source.resolve() in data or not source.is_file():
            continue
        if not source.resolve().is_relative_to(root.resolve()):
            refused.append(name)
            continue
        target = out / source.relative_to(root)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        except OSError as error:
            raise OutputError(f"cannot write {quoted(str(target))}: {error.strerror}") from error
        copied.append(name)
    return Copied(at, copied, refused)


def _external_data(models: Iterable[str | os.PathLike[str]]) -> frozenset[Path]:
    """The files that hold weights of the models, wherever they are."""
    found: set[Path] = set()
    for model in models:
        with contextlib.suppress(OrtoptError):  # it could not be read before, either
            found.update(Path(path).resolve() for path in load(model, checked=False).meta[SOURCE_KEY].data)
    return frozenset(found)
