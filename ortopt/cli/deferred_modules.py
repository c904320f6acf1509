"""Modules of libraries that a command hardly ever needs, and that their libraries import all the same.

They take 30 of the 400 ms of a small run. Python's own `importlib.util.LazyLoader` executes such a module when an
attribute of it is first read: whoever needs one gets it, a moment later. It takes a finder on ``sys.meta_path``, which
belongs to the process, so that only the command line installs it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

HARDLY_NEEDED = frozenset(
    {
        "google.protobuf.internal.python_message",  # messages in Python: for installations without those in C
        "google.protobuf.json_format",
        "google.protobuf.text_format",
        "numpy._core._add_newdocs",  # docstrings of what is written in C: nobody reads them here
        "numpy._core._add_newdocs_scalars",
        "onnx.checker",
        "onnx.compose",
        "onnx.gen_proto",
        "onnx.numpy_helper",
        "onnx.parser",
        "onnx.printer",
        "onnx.utils",
        "onnx.version_converter",
        "packaging.version",  # onnx-ir asks it about safetensors
    }
)
"""What is there in some versions of a library only is looked for in none."""


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
            spec.loader = LazyLoader(spec.loader)
        return spec


def defer_hardly_needed() -> None:
    """Let modules that are hardly ever needed wait until they are, in this process."""
    if not any(isinstance(finder, DeferringFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, DeferringFinder())


__all__ = ["HARDLY_NEEDED", "DeferringFinder", "defer_hardly_needed"]
