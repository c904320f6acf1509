"""Results in other formats than .onnx, which the ending of a file's name asks for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from ortopt.errors import OutputError, UsageError
from ortopt.serialization.save import ExternalData, Saved, save, to_bytes
from ortopt.system.files import temporary_folder, write_atomically
from ortopt.terminal_text import quoted

if TYPE_CHECKING:
    import onnx_ir as ir

TEXTS: Final = {
    ".json": "json",
    ".onnxjson": "json",
    ".textproto": "textproto",
    ".prototxt": "textproto",
    ".pbtxt": "textproto",
    ".txtpb": "textproto",
}
"""Endings of the texts that onnx reads and writes, with onnx's names of the formats."""

ORT: Final = ".ort"
"""The ending of ONNX Runtime's own format."""


_REFUSED: Final = frozenset(
    {".onnxtxt", ".onnxtext", ".tflite", ".engine", ".plan", ".xml", ".pt", ".pth", ".h5", ".safetensors", ".mlmodel"}
)
"""Endings of formats that are not written: a file of that name would not be what it says."""


def is_other_format(path: Path) -> bool:
    """Whether the ending of a name asks for another format than ONNX's usual one."""
    return path.suffix.lower() in {*TEXTS, ORT}


def check(path: Path, external_data: str) -> None:
    """Refuse a format that is not written, and weights beside a file of one that holds them all.

    Args:
        path: The file.
        external_data: Where weights are to go.

    Raises:
        UsageError: If there is no such format here, or weights are to go beside it.
    """
    if path.suffix.lower() in _REFUSED:
        raise UsageError(f"results are written as .onnx, .ort, .json or .textproto, not as {path.suffix}")
    if is_other_format(path) and external_data in {"copy", "reuse"}:
        raise UsageError(f"a {path.suffix} file holds its weights: leave out external data ({external_data})")


def save_as(
    model: ir.Model,
    target: str | os.PathLike[str] | BinaryIO,
    *,
    external_data: ExternalData = "auto",
    provenance: bool = False,
    libraries: Iterable[str] = (),
) -> Saved:
    """Write a model in the format that the ending of the name asks for, atomically; a new folder for it is made.

    Args:
        model: The model.
        target: The file, or a binary stream, which takes ONNX's usual format.
        external_data: Where weights go; other formats than .onnx hold them.
        provenance: Whether nodes get metadata about which transformer made them, from what.
        libraries: Shared libraries of ops that the model needs.

    Raises:
        UsageError: Weights are to go beside a file that holds them.
        OutputError: It cannot be written, or it is too large for the format.
    """
    path = Path(target) if isinstance(target, str | os.PathLike) else None
    if path is not None:
        check(path, external_data)
        try:
            path.absolute().parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write {quoted(str(path))}: {error.strerror}") from error
    if path is None or not is_other_format(path):
        return save(model, target, external_data=external_data, provenance=provenance)
    try:
        data = to_bytes(model, provenance=provenance)
    except OutputError as error:
        raise OutputError(f"{error}; a {path.suffix} file holds all weights: write an .onnx file") from error
    written = _in_ort_format(data, libraries) if path.suffix.lower() == ORT else _as_text(data, path)
    write_atomically(path, written)
    return Saved(path, len(written), None)


def _as_text(data: bytes, path: Path) -> bytes:
    import onnx
    from onnx.serialization import registry

    text: bytes = registry.get(TEXTS[path.suffix.lower()]).serialize_proto(onnx.ModelProto.FromString(data))
    return text


def _in_ort_format(data: bytes, libraries: Iterable[str]) -> bytes:
    from ortopt.evaluation import sessions

    with temporary_folder("ortopt-format-") as name:
        source, target = Path(name) / "model.onnx", Path(name) / "model.ort"
        source.write_bytes(data)
        sessions.convert(source, target, libraries)
        return target.read_bytes()
