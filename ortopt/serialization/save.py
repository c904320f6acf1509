"""Write a model: whole or not at all, and unchanged weights at the speed of a copy.

A reader finds under the output's name the old model or the new one, never a mixture, whenever the writer is killed:
weights go to a file that is named by its content, then the model's new file takes the old one's name in one step.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError, OutputError
from ortopt.serialization.checks.structure import validate
from ortopt.serialization.data_file import DataLayout, write_data
from ortopt.serialization.encode import encode
from ortopt.serialization.load import SOURCE_KEY, Origin
from ortopt.serialization.output_files import TemporaryOutput, locked, remove_old_data, remove_stray_files
from ortopt.serialization.tensor_encoding import Part, Placing
from ortopt.system.files import same_file
from ortopt.terminal_text import one_line, quoted

ExternalData = Literal["auto", "inline", "copy", "reuse"]

INLINE_LIMIT: Final = 2**31 - 1
"""protobuf's largest message in bytes."""

_MARGIN: Final = 1 << 20


class Saved(NamedTuple):
    """What was written.

    Attributes:
        path: The model's file, or None for a stream.
        nbytes: Size of the model and of the data file that was written with it.
        data_path: The file of external data that was written, or None.
        reused: Bytes of weights that stay in the files that they were loaded from.
        copied: Bytes of weights of the original that were copied although they were to stay.
    """

    path: Path | None
    nbytes: int
    data_path: Path | None
    reused: int = 0
    copied: int = 0

    @property
    def not_reused(self) -> str:
        """Why weights that were to stay in their files were copied, in words; empty where none were."""
        if not self.copied:
            return ""
        return (
            f"external data: {self.copied} bytes of weights could not be reused, and were copied: the model holds them"
            " in its own file, not beside it"
        )


def to_bytes(model: ir.Model, *, provenance: bool = False) -> bytes:
    """Serialize a model with all of its weights.

    Args:
        model: The model; it is not changed.
        provenance: Whether nodes get metadata about which transformer made them, from what.

    Raises:
        OutputError: It would be larger than 2 GB, or cannot be expressed.
    """
    stream = io.BytesIO()
    save(model, stream, external_data="inline", provenance=provenance)
    return stream.getvalue()


def save(
    model: ir.Model,
    path: str | os.PathLike[str] | BinaryIO,
    *,
    external_data: ExternalData = "auto",
    provenance: bool = False,
    token: CancellationToken = NEVER,
) -> Saved:
    """Write a model to a file or a stream. The same model gives the same bytes.

    Args:
        model: The model; it is not changed.
        path: The file, replaced in one step if it exists; or a binary stream, which takes inline weights only.
        external_data: Where large weights go: ``inline`` into the model, ``copy`` to a new file beside it named
            ``STEM.<16 hex digits of its SHA-256>.data``, ``reuse`` stays in the files that they were loaded from;
            ``auto`` is ``inline`` unless the model was loaded with external data or is too large, then ``copy``.
        provenance: Whether nodes get metadata about which transformer made them, from what.
        token: Cancellation token; nothing is changed under the output's name then.

    Returns:
        What was written where.

    Raises:
        OutputError: It cannot be written there or in this way; nothing was changed under the output's name.
    """
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else getattr(path, "name", None)
    label = quoted(name) if isinstance(name, str) else "the stream"
    try:
        validate(model, token=token)
        writer = _Writer(model, provenance, token)
        if not isinstance(path, str | os.PathLike):
            return writer.to_stream(path, external_data)
        return writer.to_path(Path(path), external_data)
    except (OutputError, InvalidModelError) as error:
        raise OutputError(f"cannot write {label}: {one_line(error)}") from error
    except OSError as error:
        raise OutputError(f"cannot write {label}: {one_line(error.strerror or error)}") from error


def save_structure(model: ir.Model, path: Path, place: Placing, token: CancellationToken = NEVER) -> None:
    """Write a model whose large weights lie elsewhere to a new file, which nobody waits for.

    Args:
        model: The model; it is not changed.
        path: The file.
        place: Where each weight lies.
        token: Cancellation token.

    Raises:
        OutputError: It cannot be expressed.
        OSError: The file cannot be written.
    """
    parts = _Writer(model, provenance=False, token=token).encoded(place)
    with path.open("wb") as file:
        _write(parts, token, file)


class _Writer:
    """Writes one model."""

    def __init__(self, model: ir.Model, provenance: bool, token: CancellationToken) -> None:
        self._token = token
        self._model = model
        self._provenance = provenance
        self._origin: Origin | None = model.meta.get(SOURCE_KEY)

    def encoded(self, place: Placing | None = None) -> list[Part]:
        types = self._origin is None or self._origin.typed
        return encode(self._model, place=place, types=types, provenance=self._provenance, token=self._token)

    def to_stream(self, stream: BinaryIO, external_data: ExternalData) -> Saved:
        if external_data in {"copy", "reuse"}:
            raise OutputError(f"external data cannot be written beside a stream ({external_data!r})")
        parts = self.encoded()
        size = _size(parts)
        if size > INLINE_LIMIT:
            raise OutputError(f"with inline weights it would have {size} bytes; protobuf's limit is 2 GB")
        _write(parts, self._token, stream)
        stream.flush()
        return Saved(None, size, None)

    def to_path(self, path: Path, external_data: ExternalData) -> Saved:
        if path.is_dir():
            raise OutputError("it is a directory")
        self._refuse_own_data(path)
        if path.exists() and not path.is_file():  # a device or a pipe: there is nothing to replace
            with path.open("wb") as stream:
                return self.to_stream(stream, external_data)
        folder = path.absolute().parent
        if not folder.is_dir():
            raise OutputError(f"there is no folder {quoted(str(folder))}")
        inline = self.encoded() if external_data in {"auto", "inline"} else None
        size = 0 if inline is None else _size(inline)
        if external_data == "inline" and size > INLINE_LIMIT:
            raise OutputError(f"with inline weights it would have {size} bytes; protobuf's limit is 2 GB")
        came_external = self._origin is not None and self._origin.external
        if external_data == "auto" and (came_external or size > INLINE_LIMIT - _MARGIN):
            inline = None
        remove_stray_files(folder)
        if inline is not None:
            with TemporaryOutput(folder) as file:
                _write(inline, self._token, file.stream)
                file.flush()
                with locked(folder):
                    remove_old_data(path)
                    file.rename(path)
            return Saved(path, size, None)
        return self._with_data_file(path, folder, reuse=external_data == "reuse")

    def _refuse_own_data(self, path: Path) -> None:
        """Refuse to put the model where weights of it lie: the one that it was loaded from would be broken."""
        if self._origin is not None and any(same_file(path, data) for data in self._origin.data):
            raise OutputError("it holds external data of the model")

    def _with_data_file(self, path: Path, folder: Path, *, reuse: bool) -> Saved:
        layout = DataLayout(folder, reuse)
        if _size(self.encoded(layout.place)) > INLINE_LIMIT:
            layout.attributes_too = True
        self.encoded(layout.place)
        with contextlib.ExitStack() as stack:
            data: TemporaryOutput | None = None
            if layout.tensors:
                data = stack.enter_context(TemporaryOutput(folder))
                digest = layout.write(data, self._token)
                data.flush()
                layout.location = f"{path.name.removesuffix('.onnx')}.{digest[:16]}.data"
            parts = self.encoded(layout.place)
            size = _size(parts)
            if size > INLINE_LIMIT:
                raise OutputError(f"without its weights it still has {size} bytes; protobuf's limit is 2 GB")
            file = stack.enter_context(TemporaryOutput(folder))
            _write(parts, self._token, file.stream)
            file.flush()
            data_path = path.with_name(layout.location) if data is not None else None
            with locked(folder):
                if not reuse:
                    remove_old_data(path, keep=layout.location)
                if data is not None and data_path is not None:
                    data.rename(data_path)
                file.rename(path)
        return Saved(path, size + layout.end, data_path, layout.reused, layout.copied if reuse else 0)


def _size(parts: list[Part]) -> int:
    return sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)


def _write(parts: list[Part], token: CancellationToken, stream: BinaryIO) -> None:
    for part in token.checked(parts):
        if isinstance(part, bytes):
            stream.write(part)
            continue
        for _ in write_data(part, stream):
            token.check()
