"""onnx-ir without sympy, for processes that ask for it: the command line, its child processes, and whoever wants it.

onnx-ir imports sympy, which takes half a second, for arithmetic on symbolic dimensions that ortopt does with its own
expressions. `defer_sympy` makes the first import of ``onnx_ir`` see a stand-in for sympy that loads the real one on
first use. The stand-in is in ``sys.modules`` only while onnx-ir is being imported: whoever else imports sympy gets
sympy. It takes a finder on ``sys.meta_path``, which belongs to the process: importing ortopt, or calling it, installs
none.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # importlib.abc costs 20 ms
    from importlib.abc import Loader

_NAME = "onnx_ir"
_IMPORTING = threading.local()


class _Deferred(ModuleType):
    """Stands for sympy inside onnx-ir until an attribute of it is needed."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if getattr(_IMPORTING, "now", False):  # onnx_ir._symbolic_shapes keeps a table of sympy's functions
            return _call_later(name)
        if sys.modules.get("sympy") is self:
            del sys.modules["sympy"]
        return getattr(importlib.import_module("sympy"), name)


def _call_later(name: str) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return getattr(importlib.import_module("sympy"), name)(*arguments)

    return call


class _Loader:
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if "sympy" in sys.modules:
            self._loader.exec_module(module)
            return
        stand_in = _Deferred("sympy")
        sys.modules["sympy"] = stand_in
        _IMPORTING.now = True
        try:
            self._loader.exec_module(module)
        finally:
            _IMPORTING.now = False
            if sys.modules.get("sympy") is stand_in:
                del sys.modules["sympy"]

    def __getattr__(self, name: str) -> Any:  # get_source, get_filename, resource readers: all onnx-ir's own
        return getattr(self._loader, name)


class _Finder:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _NAME:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _Loader(spec.loader))
        return spec


def defer_sympy() -> None:
    """Spare this process the import of sympy by onnx-ir; before the first import of ``onnx_ir``, else without effect.

    It puts a finder in front of ``sys.meta_path``, which goes when ``onnx_ir`` is imported. sympy itself is imported
    when somebody does arithmetic on onnx-ir's symbolic dimensions.
    """
    if _NAME not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
