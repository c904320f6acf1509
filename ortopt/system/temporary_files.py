"""Temporary files: where there is no room for them, that is said in one line."""

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
    """A new folder that goes with its contents.

    Args:
        prefix: How its name begins.

    Raises:
        OutputError: If there is none, or if what was written into it has no room there.
    """
    with contextlib.ExitStack() as stack:
        with said():
            name = stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix))
        with said(name):
            yield name


@contextlib.contextmanager
def said(folder: str = "") -> Iterator[None]:
    """Say where temporary files cannot be written.

    Args:
        folder: The folder that they go to; empty where it is being made.

    Raises:
        OutputError: If so.
    """
    try:
        yield
    except OSError as error:
        if folder and not is_lack_of_room(error):
            raise
        raise no_room(error) from error


def no_room(reason: object) -> OutputError:
    """What to raise where temporary files cannot be written."""
    return OutputError(f"cannot write temporary files: {reason} (TMPDIR says where they go)")


__all__ = ["is_lack_of_room", "no_room", "said", "temporary_folder"]
