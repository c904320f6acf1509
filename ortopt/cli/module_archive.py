"""Compiled modules in one file: a run imports some 700, and to find and read each takes longer than to execute it.

Python looks for each module in folders, and reads and checks a file of ``__pycache__`` for it. The archive holds the
code of all that a run has imported, those of libraries too, and where they were found. Like a file of ``__pycache__``,
it is a copy: a module is taken from it only where the source has the time and size, and its folder the time, that they
had when the archive was written. Whatever differs is imported as always, as are all where there is no archive, or none
can be written. Only modules in packages are in it, because what has no package may be anywhere on ``sys.path``.

It takes a finder on ``sys.meta_path``, which belongs to the process, so that only the command line installs it.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import MAGIC_NUMBER, cache_from_source, spec_from_file_location
from types import CodeType, ModuleType
from typing import Any

from ortopt import pass_declarations

FORMAT = b"ortopt modules 2\n" + MAGIC_NUMBER
WORTH_WRITING = 100
"""Modules that a run has to have imported from elsewhere for the archive to be written anew."""

_LENGTH = 8
_OURS = "ortopt."
_Entry = tuple[str, str, bool, int, int, int, int]
"""Folder and path of the source, whether it is a package, its time and size, and where its code is in the archive."""


class Archive:
    """The archive of a file, as a finder of modules.

    Args:
        path: The file.

    Attributes:
        path: The file.
        entries: What is in it, by name of the module.
        times: The time of each folder when it was written.
        declarations: What the passes declare.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.declarations: dict[str, dict[str, Any]] = {}
        self.entries: dict[str, _Entry] = {}
        self.times: dict[str, int] = {}
        self._unchanged: dict[str, bool] = {}
        self._checked: dict[str, bool] = {}
        self._absent = 0  # of those that were asked for
        self._start = 0
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            head = os.pread(self._descriptor, len(FORMAT) + _LENGTH, 0)
            if head.startswith(FORMAT) and len(head) == len(FORMAT) + _LENGTH:
                length = int.from_bytes(head[len(FORMAT) :], "little")
                index = marshal.loads(os.pread(self._descriptor, length, len(head)))
                self.entries, self.times, self.declarations = index
                self._start = len(head) + length
        except (OSError, ValueError, EOFError, TypeError, OverflowError, MemoryError):
            self.entries, self.times, self.declarations = {}, {}, {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that is in the archive and has not changed; None for all others."""
        if path is None:
            return None
        entry = self.entries.get(fullname)
        if entry is None or list(path) != [entry[0]] or not self.is_unchanged(fullname):
            self._absent += 1
            return None
        return spec_from_file_location(
            fullname,
            entry[1],
            loader=_Loader(fullname, entry[1], self),
            submodule_search_locations=[os.path.dirname(entry[1])] if entry[2] else None,  # noqa: PTH120
        )

    def valid_declarations(self) -> dict[str, dict[str, Any]]:
        """What the passes declare, if no module of ortopt has changed since; else nothing."""
        if not all(self.is_unchanged(name) for name in self.entries if name.startswith(_OURS)):
            self.declarations = {}
        return self.declarations

    def is_unchanged(self, name: str) -> bool:
        """Whether a module is found where it was, and its source is what it was."""
        if name not in self._checked:
            self._checked[name] = self._is_found_unchanged(name)
        return self._checked[name]

    def _is_found_unchanged(self, name: str) -> bool:
        folder, path, is_package, time, size, *_ = self.entries[name]
        if not self._is_unchanged(folder) or (is_package and not self._is_unchanged(path.rpartition(os.sep)[0])):
            return False
        return _state(path) == (time, size)

    def _is_unchanged(self, folder: str) -> bool:
        if folder not in self._unchanged:
            self._unchanged[folder] = _time(folder) == self.times.get(folder, -1)
        return self._unchanged[folder]

    def code(self, name: str) -> CodeType | None:
        """The code of a module that is in the archive; None if it cannot be read."""
        *_, start, length = self.entries[name]
        try:
            code = marshal.loads(os.pread(self._descriptor, length, self._start + start))
        except (OSError, ValueError, EOFError, TypeError):
            return None
        return code if isinstance(code, CodeType) else None

    def update(self) -> None:
        """Write the archive anew, if the process has imported many modules that are not in it, or have changed."""
        if sys.dont_write_bytecode:
            return
        with contextlib.suppress(Exception):  # whatever it is, nothing depends on it
            declared = {} if self.declarations else _declared()
            if self._absent < WORTH_WRITING and not declared:
                return
            found, others = _imported()
            if others < WORTH_WRITING and not declared:
                return
            for name, (folder, path, is_package, *_) in self.entries.items():
                if name not in found and self.is_unchanged(name):
                    found[name] = (folder, path, is_package)
            _write(self.path, found, declared or self.valid_declarations() or _declared())


class _Loader(SourceFileLoader):
    """Loads a module as from its source, with the code of the archive."""

    def __init__(self, fullname: str, path: str, archive: Archive) -> None:
        super().__init__(fullname, path)
        self._archive = archive

    def get_code(self, fullname: str) -> CodeType | None:
        """The compiled module."""
        return self._archive.code(fullname) or super().get_code(fullname)


def _imported() -> tuple[dict[str, tuple[str, str, bool]], int]:
    """The modules of the process that may be in an archive, and how many of them have not been taken from one.

    Returns:
        By name, the folder, the source, and whether it is a package; the number.
    """
    found = {}
    others = 0
    for name, module in list(sys.modules.items()):
        parent, _, tail = name.rpartition(".")
        above: Any = sys.modules.get(parent)
        spec = module.__spec__ if type(module) is ModuleType and type(above) is ModuleType else None
        if spec is None or spec.name != name or type(spec.loader) not in {SourceFileLoader, _Loader}:
            continue
        folders = list(getattr(above, "__path__", ()))
        if len(folders) != 1 or not os.path.isabs(folders[0]):  # noqa: PTH117
            continue
        source = f"{folders[0]}{os.sep}{tail}"
        package = f"{source}{os.sep}__init__.py"
        if spec.origin in {f"{source}.py", package}:
            found[name] = (folders[0], spec.origin, spec.origin == package)
            others += type(spec.loader) is SourceFileLoader
    return found, others


def _declared() -> dict[str, dict[str, Any]]:
    """What the passes declare, if the process has imported all."""
    registry = sys.modules.get("ortopt.registry")
    if registry is None or not registry.is_imported():
        return {}
    from ortopt.deferred_rules import declared

    return declared(registry.installed())


def _write(path: str, modules: dict[str, tuple[str, str, bool]], declarations: dict[str, dict[str, Any]]) -> None:
    entries: dict[str, _Entry] = {}
    times: dict[str, int] = {}
    codes: list[bytes] = []
    start = 0
    for name, (folder, source, is_package) in modules.items():
        for each in (folder, os.path.dirname(source)) if is_package else (folder,):  # noqa: PTH120
            times.setdefault(each, _time(each))
        state = _state(source)
        code = marshal.dumps(SourceFileLoader(name, source).get_code(name))
        if state is not None and _state(source) == state:
            entries[name] = (folder, source, is_package, *state, start, len(code))
            codes.append(code)
            start += len(code)
    if any(_time(folder) != time for folder, time in times.items()):
        return
    index = marshal.dumps((entries, times, declarations))
    draft = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with open(draft, "xb") as file:  # noqa: PTH123
            file.write(FORMAT + len(index).to_bytes(_LENGTH, "little") + index)
            file.writelines(codes)
        os.replace(draft, path)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)  # noqa: PTH108
        raise


def _state(path: str) -> tuple[int, int] | None:
    """The time and the size of a file, as files of compiled modules hold them; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _time(folder: str) -> int:
    """The time of a folder, at which its last file came or went."""
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116
    except OSError:
        return -2


def use_archive() -> Archive | None:
    """Let this process take modules from the archive.

    Returns:
        The archive; None where modules are not to be cached, or others than Python take part in finding them.
    """
    if sys.flags.optimize or not hasattr(os, "pread") or PathFinder not in sys.meta_path:
        return None
    if any(getattr(hook, "__module__", None) not in _PYTHONS_OWN for hook in sys.path_hooks):
        return None
    try:
        path = cache_from_source(os.path.join(os.path.dirname(__file__), "archived_modules.py"))  # noqa: PTH118, PTH120
    except NotImplementedError:
        return None
    archive = Archive(path)
    sys.meta_path.insert(sys.meta_path.index(PathFinder), archive)
    pass_declarations.at_hand = archive.valid_declarations
    return archive


_PYTHONS_OWN = frozenset({"zipimport", "_frozen_importlib_external", "importlib._bootstrap_external"})

__all__ = ["FORMAT", "WORTH_WRITING", "Archive", "use_archive"]
