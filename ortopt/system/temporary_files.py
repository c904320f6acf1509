"""Temporary files, and one line for the user where there is no room for them."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Iterator

from ortopt.errors import OutputError

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


__all__ = ["is_lack_of_room", "no_room", "room_errors", "temporary_folder"]
