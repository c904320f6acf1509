"""Whether two paths name the same file."""

from __future__ import annotations

import os
from pathlib import Path


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


__all__ = ["same_file"]
