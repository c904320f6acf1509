"""Files that a command writes beside the model: checked before the work begins, and written atomically."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from ortopt.errors import OutputError, UsageError
from ortopt.system.files import same_file, write_atomically
from ortopt.terminal_text import quoted

STREAM = "-"


def check_outputs(
    outputs: Mapping[str, str | None],
    read: Mapping[str, str | Path | Iterable[str | Path] | None],
    *,
    in_new_folders: Container[str] = (),
) -> None:
    """Refuse, before the work begins, outputs that cannot be written, or that would overwrite an input.

    Args:
        outputs: Paths of outputs, by option; None where there is none.
        read: Paths of inputs, by what they are.
        in_new_folders: The options of which the folder may have to be made.

    Raises:
        UsageError: If a name is empty, two options name one file, or one names a file that is read.
        OutputError: If a path cannot be written.
    """
    written: dict[str, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        if not path:  # an unset variable of the shell
            raise UsageError(f"the name after {option} is empty")
        check_writable(path, in_new_folder=option in in_new_folders)
        if path == STREAM or (Path(path).exists() and not Path(path).is_file()):  # a device can be written twice
            continue
        if other := written.get(os.path.realpath(path)):
            raise UsageError(f"{other} and {option} name the same file: {quoted(path)}")
        written[os.path.realpath(path)] = option
    check_not_read(outputs, read)


def check_not_read(
    outputs: Mapping[str, str | None], read: Mapping[str, str | Path | Iterable[str | Path] | None]
) -> None:
    """Refuse to write over inputs, whatever path names them.

    Args:
        outputs: Paths of outputs, by option; None where there is none.
        read: Paths of inputs, by what they are.

    Raises:
        UsageError: If one names a file that is read.
    """
    for what, sources in read.items():
        for source in (sources,) if isinstance(sources, str | Path) else sources or ():
            for option, path in outputs.items():
                if path and path != STREAM and source and same_file(path, source):
                    raise UsageError(f"{option} would write over {what}: {quoted(path)}")


def check_writable(path: str, *, in_new_folder: bool = False) -> None:
    """Refuse a path that cannot be written, before the work begins.

    Args:
        path: The path.
        in_new_folder: Whether its folder may have to be made.

    Raises:
        OutputError: If it is a folder, or its folder does not exist or may not be written.
    """
    if path == STREAM:
        return
    target = Path(path)
    folder = target.absolute().parent
    try:
        target.stat()
    except FileNotFoundError:  # as it should be; its folder is checked below
        pass
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # on which pathlib's predicates raise
            raise OutputError(f"cannot write {quoted(path)}: {error.strerror}") from error
    if in_new_folder:
        folder = next(one for one in (folder, *folder.parents) if one.exists())
    if target.is_dir():
        raise OutputError(f"cannot write {quoted(path)}: it is a directory")
    if not folder.is_dir():
        raise OutputError(f"cannot write {quoted(path)}: there is no folder {quoted(str(folder))}")
    if not os.access(folder if not target.exists() else target, os.W_OK):
        raise OutputError(f"cannot write {quoted(path)}: permission denied")


def write_text(path: str, text: str) -> None:
    """Write a text file in one step, or to stdout.

    Raises:
        OutputError: If it cannot be written.
    """
    if path == STREAM:
        sys.stdout.write(text)
        return
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str, data: bytes) -> None:
    """Write a file in one step, or to stdout.

    Raises:
        UsageError: If stdout is a terminal.
        OutputError: If it cannot be written.
    """
    if path == STREAM:
        if sys.stdout.isatty():
            raise UsageError("this is no text for a terminal: name a file, or lead stdout into one")
        sys.stdout.buffer.write(data)
        return
    write_atomically(path, data)
