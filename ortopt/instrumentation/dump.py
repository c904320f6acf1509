"""The model before and after each transformer that changed something, as files."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import onnx_ir as ir

from ortopt.errors import OutputError
from ortopt.graph import scope
from ortopt.observers import HistoryEntry, Observer
from ortopt.serialization.save import save
from ortopt.system.files import same_file
from ortopt.terminal_text import quoted
from ortopt.transformer import GraphTransformer

START = "0000-start.onnx"


class Dump(Observer):
    """Writes ``NUMBER-levelL-stepS-GRAPH-NAME.before.onnx`` and ``.after.onnx``, and ``0000-start.onnx`` first.

    The model after one transformer is the model before the next: such files are hard links where the file system has
    them. Rules share a sweep: their files hold the model before and after the sweep.

    Args:
        folder: The folder; it is created if it does not exist.

    Raises:
        OutputError: If it cannot be created.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make the folder {quoted(str(folder))}: {error.strerror}") from error
        self._latest: Path | None = None
        self._previous: Path | None = None
        self._number = 0

    def begin(self) -> None:
        """A run begins with the original again."""
        self._latest = self._previous = None

    def before(self, transformer: GraphTransformer, level: int, step: int, graph: ir.Graph) -> None:
        """Write the original, before the first transformer."""
        if self._latest is None:
            self._latest = self._folder / START
            save(scope.of(graph).model, self._latest)
        self._previous = None

    def after(self, entry: HistoryEntry, graph: ir.Graph) -> None:
        """Write the model if a transformer has changed it."""
        if not entry.modified or self._latest is None:
            return
        self._number += 1
        where = re.sub(r"[^A-Za-z0-9._]+", "_", entry.graph)[:60]
        stem = f"{self._number:04d}-level{entry.level}-step{entry.step}-{where}-{entry.transformer}"
        before, after = (self._folder / f"{stem}.{side}.onnx" for side in ("before", "after"))
        if self._previous is None:  # the first of its sweep
            save(scope.of(graph).model, after)
            self._previous, self._latest = self._latest, after
        else:
            _link(self._latest, after)
        _link(self._previous, before)


def is_dump(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Whether a file is one that dumps into a folder may write over, by its place and name."""
    return any(
        re.fullmatch(r"\d{4,}-(start|level\d-.*)\.(onnx|[0-9a-f]{16}\.data)", entry.name) and same_file(entry, path)
        for entry in (Path(folder).iterdir() if os.path.isdir(folder) else ())  # noqa: PTH112 -- says no to what is no name
    )


def _link(existing: Path, new: Path) -> None:
    try:
        new.unlink(missing_ok=True)
        try:
            os.link(existing, new)
        except OSError:
            shutil.copyfile(existing, new)
    except OSError as error:
        raise OutputError(f"cannot write {quoted(str(new))}: {error.strerror or error}") from error
