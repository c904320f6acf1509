"""The folder of a reproducer: its models, its inputs, what they give, and commands that repeat it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import platform
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ortopt._version import __version__
from ortopt.errors import OutputError
from ortopt.reporting.excerpt import storable
from ortopt.serialization.save import save
from ortopt.terminal_text import one_line, quoted

if TYPE_CHECKING:
    from ortopt.reporting.reproducer import Reproducer

PACKAGES = ("onnx", "onnx-ir", "numpy", "onnxruntime", "onnxruntime-gpu")


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be made, or holds something.

    Raises:
        OutputError: If it is one.
    """
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise OutputError(f"cannot write {quoted(str(path))}: there is something already")
        if not path.absolute().parent.is_dir():
            raise OutputError(f"cannot write {quoted(str(path))}: there is no folder {quoted(str(path.parent))}")
    except OSError as error:
        raise OutputError(f"cannot write {quoted(str(path))}: {error.strerror or error}") from error


def write(reproducer: Reproducer, folder: Path, title: str) -> None:
    """Write a folder.

    Args:
        reproducer: The reproducer; its ``commands`` and ``files`` are filled in.
        folder: New, or empty.
        title: What it shows, in one line.

    Raises:
        OutputError: If it cannot be written.
    """
    with _output_errors(folder):
        folder.mkdir(exist_ok=True)
    for name, model in (("before.onnx", reproducer.before), ("after.onnx", reproducer.after)):
        if model is not None:
            save(model, folder / name, external_data="auto")
    with _output_errors(folder):
        for name, values in (
            ("inputs.npz", reproducer.inputs),
            ("expected.npz", reproducer.expected),
            ("actual.npz", reproducer.actual),
        ):
            if values and storable(values):
                np.savez(folder / name, **{key: _plain(value) for key, value in values.items()})
        reproducer.commands = _commands(reproducer, (folder / "inputs.npz").is_file())
        (folder / "versions.json").write_text(json.dumps(versions(), indent=2) + "\n", encoding="utf-8")
        (folder / "README.txt").write_text(_readme(reproducer, title), encoding="utf-8")
        reproducer.files = sorted(path.name for path in folder.iterdir())


@contextlib.contextmanager
def _output_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {quoted(str(folder))}: {error.strerror or error}") from error


def _commands(reproducer: Reproducer, stored: bool) -> list[str]:
    inputs = ["--inputs", "inputs.npz"] * stored
    commands = [] if reproducer.after is None else [["ortopt", "verify", "before.onnx", "after.onnx", *inputs]]
    if reproducer.repeats is not None:
        more = inputs if reproducer.after is not None else ["--no-verify"]
        commands.append(["ortopt", "optimize", "before.onnx", *reproducer.repeats, *more])
    return [shlex.join(command) for command in commands]


def _readme(reproducer: Reproducer, title: str) -> str:
    lines = [title, reproducer.reason, ""]
    lines += ["To reproduce it, in this folder:", "", *(f"    {command}" for command in reproducer.commands), ""]
    lines += [f"This is the whole model: {reproducer.whole}." if reproducer.whole else "This is a part of the model."]
    lines += [f"Weights that are seeded noise: {', '.join(reproducer.noise) or 'none'}"]
    lines += [f"Weights that are the model's own: {', '.join(reproducer.kept) or 'none'}", ""]
    return "\n".join(line if line.startswith("    ") else one_line(line) for line in lines)


def _plain(value: Any) -> Any:
    return value.astype(str) if value.dtype.kind == "O" else value


def versions() -> dict[str, str]:
    """The versions of what took part."""
    known = {"ortopt": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            known[package] = importlib.metadata.version(package)
    return known


__all__ = ["check_folder", "versions", "write"]
