"""Files: whether two paths name the same one, and writing one in a single step."""

from __future__ import annotations

import contextlib
import os
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


__all__ = ["same_file", "write_atomically"]
