"""The files of an output folder: temporary until they are whole, then renamed in one step; old ones are cleaned up."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ortopt.errors import InvalidModelError
from ortopt.serialization.mapped_tensors import MappedFile
from ortopt.serialization.wire import strip

try:
    import fcntl
except ImportError:  # Windows, where an open file can be neither replaced nor deleted: that is lock enough
    fcntl = None  # type: ignore[assignment]

_TEMPORARY: Final = re.compile(r"\.ortopt-[0-9a-f]{16}\.tmp")


class TemporaryOutput:
    """A file without a lasting name beside the output; locked while it lives, removed unless it was renamed.

    Args:
        folder: The folder of the output.

    Attributes:
        path: The file.
        stream: The file, open for reading and writing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / f".ortopt-{os.urandom(8).hex()}.tmp"
        self._renamed = False

    def __enter__(self) -> TemporaryOutput:
        with locked(self._folder):  # else another run could take the file for a stray one before it is locked
            self.stream = self.path.open("x+b", buffering=1 << 20)
            if fcntl is not None:
                with contextlib.suppress(OSError):  # some network file systems have no locks
                    fcntl.flock(self.stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.stream.close()
        if not self._renamed:
            self.path.unlink(missing_ok=True)

    def flush(self) -> None:
        """Bring the contents to the disk."""
        self.stream.flush()
        os.fsync(self.stream.fileno())

    def rename(self, target: Path) -> None:
        """Give the file its name, in one step that survives a loss of power."""
        with contextlib.suppress(OSError):
            self.path.chmod(stat.S_IMODE(target.stat().st_mode))
        if fcntl is None:
            self.stream.close()
        self.path.replace(target)
        self._renamed = True
        _flush_folder(self._folder)


def _flush_folder(folder: Path) -> None:
    if fcntl is None:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other writers to the folder waiting: between the renaming of data file and model no run may clean up."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_stray_files(folder: Path) -> None:
    """Remove temporary files whose writers were killed: those without a lock."""
    if fcntl is None:
        return
    with locked(folder):
        for path in folder.iterdir():
            if not _TEMPORARY.fullmatch(path.name):
                continue
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def remove_old_data(path: Path, keep: str = "") -> None:
    """Remove data files that earlier runs wrote for this output and that no model in the folder refers to any more.

    What the output refers to until now stays: a reader may have opened it and be about to open its data. A later run
    removes it.
    """
    pattern = re.compile(re.escape(path.name.removesuffix(".onnx")) + r"\.[0-9a-f]{16}\.data")
    old = {entry.name for entry in path.parent.iterdir() if pattern.fullmatch(entry.name)} - {keep}
    if not old:
        return
    for entry in {path, *path.parent.glob("*.onnx")}:
        if entry.is_file():
            text = _without_weights(entry)
            old = {name for name in old if name.encode() not in text}
    for name in old:
        (path.parent / name).unlink(missing_ok=True)


def _without_weights(path: Path) -> bytes:
    """A model file's bytes apart from large tensors; all of them if it is no model."""
    file = MappedFile(path)
    try:
        return strip(file.map).model
    except InvalidModelError:
        return bytes(file.map[:])
