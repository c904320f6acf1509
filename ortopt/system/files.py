"""Which file a name stands for."""

from __future__ import annotations

import os
from pathlib import Path


def same_file(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Whether two names stand for one file: by links of either kind, or by another spelling.

    Args:
        one: A path; a device or a pipe is no file.
        other: Another one.
    """
    if Path(one).exists() and not Path(one).is_file():
        return False
    try:
        return Path(one).samefile(other)  # a file system may tell no capitals from small letters
    except OSError:  # what is not there yet can only be meant
        return os.path.normcase(os.path.realpath(one)) == os.path.normcase(os.path.realpath(other))


__all__ = ["same_file"]
