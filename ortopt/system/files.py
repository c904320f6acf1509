"""Files: whether two paths name the same one, writing one in a single step, and temporary folders."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ortopt.errors import OutputError
from ortopt.terminal_text import quoted


def same_file(path: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Whether two paths name one file: by links of either kind, or by another spelling.

    Args:
        path: A path; a device or a pipe is no file.
        other: Another path.
    """
    if Path(path).exists() and not Path(path).is_file():
        return False
    try:
        return Path(path).samefile(other)  # a file system may ignore case
    except OSError:  # one of them does not exist yet: only its name is known
        return os.path.normcase(os.path.realpath(path)) == os.path.normcase(os.path.realpath(other))


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file in one step: a reader finds what was there before, or all of this.

    Args:
        path: The file; a device or a pipe is written to as it is.
        data: Its contents.

    Raises:
        OutputError: If it cannot be written.
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        draft = target.with_name(f".ortopt-{os.urandom(8).hex()}.tmp")
        try:
            draft.write_bytes(data)
            draft.replace(target)
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {quoted(str(path))}: {error.strerror or error}") from error


_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES})


def is_lack_of_room(error: OSError) -> bool:
    """Whether a file could not be written because the disk is full, or may not be written to."""
    return error.errno in _NO_ROOM or error.errno is None  # numpy counts what was written, and gives no number


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """A new folder, which is removed with its contents at the end.

    Args:
        prefix: The beginning of its name.

    Raises:
        OutputError: If there is none, or if what was written into it has no room there.
    """
    with contextlib.ExitStack() as stack:
        with room_errors():
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix))
        with room_errors(name):
            yield name


@contextlib.contextmanager
def room_errors(folder: str = "") -> Iterator[None]:
    """Turn errors of the system into one line where temporary files cannot be written.

    Args:
        folder: The folder that they are written to; empty where it does not exist yet.

    Raises:
        OutputError: They cannot be written.
    """
    try:
        yield
    except OSError as error:
        if folder and not is_lack_of_room(error):
            raise
        raise no_room(error) from error


def no_room(reason: object) -> OutputError:
    """The error to raise where temporary files cannot be written."""
    return OutputError(f"cannot write temporary files: {reason} (TMPDIR says where they go)")
