"""Folders that Hugging Face's Optimum has exported: all models of one, in place or into another folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ortopt.api import OptimizeResult, optimize
from ortopt.errors import UsageError
from ortopt.integrations.companions import copy_companions
from ortopt.regression.sources import below
from ortopt.serialization.load import SOURCE_KEY
from ortopt.serialization.scan import external_files
from ortopt.terminal_text import quoted


def optimize_folder(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    external_data: Literal["auto", "inline", "copy"] = "auto",
    **options: Any,
) -> Mapping[Path, OptimizeResult]:
    """Optimize every model of a folder that Optimum has exported, so that Optimum loads it as before.

    Files keep their names, and subfolders stay as they are. Nothing is written before all models are optimized and
    verified, so an error leaves the folder as it was. Optimum itself is not needed.

    Args:
        folder: The folder: ``.onnx`` files, beside them what Optimum reads, as ``config.json`` and tokenizers.
        output: The folder of the results, which gets copies of what stands beside the models; None optimizes in place.
            What is there already under the same names is replaced.
        external_data: Where weights go: inside the files, or beside them; auto is as they were. In place, files of
            weights that no model of the folder needs any more are removed.
        **options: Further arguments of `ortopt.optimize`, the same for every model.

    Returns:
        The results by the files that they were written to.

    Raises:
        UsageError: There is no such folder, there is no model in it, or an option makes no sense.
        InvalidModelError: A model is broken.
        VerificationError: A result differs from its original, and could not be repaired.
        OutputError: A result cannot be written.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UsageError(f"there is no folder {quoted(str(root))}")
    out = root if output is None else Path(output)
    if out.exists() and not out.is_dir():
        raise UsageError(f"{quoted(str(out))} is a file: results go to a folder")
    in_place = out.resolve() == root.resolve()
    models = below(root) if in_place else [path for path in below(root) if not _is_below(path, out)]
    if not models:
        raise UsageError(f"there is no model in {quoted(str(root))}")
    results = {out / path.relative_to(root): optimize(path, **options) for path in models}
    if not in_place:
        for _ in copy_companions(root, out, models):
            pass
    for path, result in results.items():
        result.save(path, external_data=external_data)
    if in_place:
        _remove_unused_data(root, results)
    return results


def _is_below(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _remove_unused_data(root: Path, results: Mapping[Path, OptimizeResult]) -> None:
    """Remove the files of the originals' weights that no model of the folder names any more."""
    held = {Path(data) for result in results.values() for data in result.model.meta[SOURCE_KEY].data}
    needed = {data.resolve() for path in below(root) for data in external_files(path)}
    for data in held:
        if data.resolve() not in needed and _is_below(data, root):
            data.unlink(missing_ok=True)


__all__ = ["optimize_folder"]
