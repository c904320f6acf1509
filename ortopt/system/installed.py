"""What is installed, as far as names of files and a line of text tell: `importlib.metadata` takes 20 ms to import.

It brings modules for mail, archives and sockets, and reads descriptions as mails.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder


def versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of those of some distributions that are installed.

    Args:
        names: Names of distributions.
    """
    folders = _folders()
    found = {}
    for name in names:
        folder = None if folders is None else _folder(name, folders)
        version = _asked(name) if folders is None else folder and (_stated_version(folder) or _asked(name))
        if version:
            found[name] = version
    return found


def stated_version(name: str) -> str | None:
    """The version of a distribution as its folder states it; None where it is not known without `importlib.metadata`.

    Args:
        name: The distribution.
    """
    folder = _folder(name, _folders() or ())
    return None if folder is None else _stated_version(folder)


def no_entry_points(*, group: str) -> tuple[()] | None:
    """The entry points of a group if there are none; else, and where only `importlib.metadata` knows, None.

    Args:
        group: The group.
    """
    folders, named = _folders(), group.encode()
    if folders is None or any(named in _read(f"{folder}/entry_points.txt") for folder in folders):
        return None
    return ()


def _folders() -> list[str] | None:
    """The folders of all distributions, in the order of ``sys.path``; None where there may be others.

    Others are in archives, eggs, and with finders that have distributions of their own.
    """
    if any(finder is not PathFinder and hasattr(finder, "find_distributions") for finder in sys.meta_path):
        return None
    found: list[str] = []
    for entry in sys.path:
        try:
            names = os.listdir(entry or ".")  # noqa: PTH208 - names are enough
        except FileNotFoundError:
            continue
        except OSError:
            return None
        if entry.lower().rstrip("/\\").endswith(".egg"):
            return None
        for name in names:
            if name[-4:].lower() == ".egg" or name[-8:].lower() == "egg-info":
                return None
            if name[-10:].lower() == ".dist-info":
                found.append(f"{entry or '.'}/{name}")
    return found


def _folder(name: str, folders: Iterable[str]) -> str | None:
    key = name.lower().replace("-", "_")
    for folder in folders:
        title = folder.rpartition("/")[2][:-10].partition("-")[0]
        if title.lower().replace(".", "_") == key:
            return folder
    return None


def _stated_version(folder: str) -> str | None:
    head, _, _ = _read(f"{folder}/METADATA").partition(b"\n\n")
    stated = [line[8:].strip() for line in head.splitlines() if line[:8].lower() == b"version:"]
    return stated[0].decode("ascii", "replace") if len(stated) == 1 else None


def _asked(name: str) -> str | None:
    import importlib.metadata

    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - of each distribution
            return file.read()
    except OSError:
        return b""


__all__ = ["no_entry_points", "stated_version", "versions"]
