"""Modules of libraries that a command hardly ever needs, and that their libraries import all the same.

They take a fifth of a small run. Such a module is executed when an attribute of it is first read: whoever needs one
gets it, a moment later. It takes a finder on ``sys.meta_path``, which belongs to the process, so that only the command
line installs it. Python's own `importlib.util.LazyLoader` does the same, but executes a module already when it is
imported a second time, or asked for a ``__module__``, as onnx-ir asks all that it exports.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from ortopt.system import installed

if TYPE_CHECKING:  # importlib.abc costs 20 ms
    from importlib.abc import Loader

METADATA = "importlib.metadata"
HARDLY_NEEDED = frozenset(
    {
        METADATA,
        "calendar",  # protobuf's well-known types: times
        "concurrent.futures",  # onnx-ir's saving of external data in threads
        "csv",
        "ctypes",  # numpy's arrays for C functions
        "google.protobuf.internal.python_message",  # messages in Python: for installations without those in C
        "google.protobuf.json_format",
        "google.protobuf.text_format",
        "hashlib",  # with it comes OpenSSL
        "ipaddress",  # addresses in URLs, which pathlib writes
        "linecache",  # this and traceback, with tokenize: where something has gone wrong
        "numpy._core._add_newdocs",  # docstrings of what is written in C: nobody reads them here
        "numpy._core._add_newdocs_scalars",
        "numpy.typing",
        "onnx.checker",
        "onnx.compose",
        "onnx.gen_proto",
        "onnx.helper",
        "onnx.numpy_helper",
        "onnx.parser",
        "onnx.printer",
        "onnx.utils",
        "onnx.version_converter",
        "onnx_ir.convenience",
        "onnx_ir.passes",
        "onnx_ir.schemas",
        "onnx_ir.tape",
        "packaging.version",  # onnx-ir asks it about safetensors
        "pickle",  # numpy's files of objects
        "shutil",  # with it come archives
        "tempfile",
        "textwrap",
        "traceback",
    }
)
"""What is there in some versions of a library only is looked for in none."""

_KNOWN_BEFORE = frozenset({"__cached__", "__class__", "__file__", "__loader__", "__name__", "__package__", "__spec__"})
"""What a module has before it is executed."""


class WaitingModule(ModuleType):
    """A module that is executed when an attribute of it is first read; then it is an ordinary one."""

    def __getattribute__(self, name: str) -> Any:
        if name in _KNOWN_BEFORE:
            return ModuleType.__getattribute__(self, name)
        if name == "__module__":
            raise AttributeError(name)  # as of every module
        execute(self)
        return ModuleType.__getattribute__(self, name)

    def __delattr__(self, name: str) -> None:
        execute(self)
        ModuleType.__delattr__(self, name)


def execute(module: ModuleType) -> ModuleType:
    """Execute a module that waits, unless this or another thread has; a second thread waits until the first is done."""
    state = module.__spec__.loader_state if module.__spec__ is not None else None
    if not isinstance(state, _State):
        return module
    with state.lock:
        if state.begun:  # by this thread, whose modules import each other
            return module
        state.begun = True
        try:
            state.loader.exec_module(module)
        except BaseException:
            state.begun = False
            raise
        module.__class__ = ModuleType
    return module


class _State:
    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.lock = threading.RLock()
        self.begun = False


class WaitingMetadata(WaitingModule):
    """`importlib.metadata`, which answers what each run asks without being executed.

    onnx asks for its version, and the registry for plug-ins. With the module come those for mail, archives and sockets.
    """

    def __getattribute__(self, name: str) -> Any:
        if name not in _AT_HAND or type(self) is not WaitingMetadata:
            return super().__getattribute__(name)

        def answer(*arguments: Any, **named: Any) -> Any:
            found = _AT_HAND[name](*arguments, **named)
            return getattr(execute(self), name)(*arguments, **named) if found is None else found

        return answer


_AT_HAND: Mapping[str, Callable[..., Any]] = {
    "entry_points": installed.no_entry_points,
    "version": installed.stated_version,
}


class WaitingLoader:
    """Makes modules that wait.

    Args:
        loader: The loader that executes them.
        kind: What they are until then.
    """

    def __init__(self, loader: Loader, kind: type[WaitingModule] = WaitingModule) -> None:
        self._loader = loader
        self._kind = kind

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """A module, as the loader makes it."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Let the module wait, with its own loader."""
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        module.__spec__.loader_state = _State(self._loader)
        module.__class__ = self._kind


class DeferringFinder:
    """Finds modules whose execution waits until they are needed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that is hardly ever needed; None for all others."""
        if fullname not in HARDLY_NEEDED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            kind = WaitingMetadata if fullname == METADATA else WaitingModule
            spec.loader = cast("Loader", WaitingLoader(spec.loader, kind))
        return spec


def defer_hardly_needed() -> None:
    """Let modules that are hardly ever needed wait until they are, in this process."""
    if not any(isinstance(finder, DeferringFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, DeferringFinder())


__all__ = ["HARDLY_NEEDED", "DeferringFinder", "WaitingModule", "defer_hardly_needed", "execute"]
