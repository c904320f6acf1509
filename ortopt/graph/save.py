"""Write a model: whole or not at all, and weights that nobody changed at the speed of a copy.

A reader finds under the output's name the old model or the new one, never a mixture, whenever the writer is killed:
weights go to a file that is named by its content, then the model's new file takes the old one's name in one step.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple

import onnx_ir as ir

from ortopt.errors import InvalidModelError, OutputError
from ortopt.graph.encode import Part, Place, encode
from ortopt.graph.load import SOURCE_KEY, Origin
from ortopt.graph.tensors import CHUNK, MappedFile, MappedTensor, chunks
from ortopt.graph.text import one_line, quoted
from ortopt.graph.validate import validate
from ortopt.graph.wire import strip

try:
    import fcntl
except ImportError:  # Windows, where an open file can be neither replaced nor deleted: that is lock enough
    fcntl = None  # type: ignore[assignment]

ExternalData = Literal["auto", "inline", "copy", "reuse"]

INLINE_LIMIT: Final = 2**31 - 1
"""protobuf's largest message in bytes."""

_MARGIN: Final = 1 << 20
_SMALLEST_EXTERNAL: Final = 1024
_LARGE: Final = 1 << 20
_PAGE: Final = 4096
_ALIGNMENT: Final = 16  # of the largest element, complex128

_TEMPORARY: Final = re.compile(r"\.ortopt-[0-9a-f]{16}\.tmp")


class Saved(NamedTuple):
    """What was written.

    Attributes:
        path: The model's file, or None for a stream.
        nbytes: Size of the model and of the data file that was written with it.
        data_path: The file of external data that was written, or None.
    """

    path: Path | None
    nbytes: int
    data_path: Path | None


def to_bytes(model: ir.Model, *, provenance: bool = False) -> bytes:
    """Serialize a model with all of its weights.

    Args:
        model: The model; it is not changed.
        provenance: Whether nodes tell which transformer made them, from what.

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
) -> Saved:
    """Write a model to a file or a stream. The same model gives the same bytes.

    Args:
        model: The model; it is not changed.
        path: The file, replaced in one step if it exists; or a binary stream, which takes inline weights only.
        external_data: Where large weights go: ``inline`` into the model, ``copy`` to a new file beside it named
            ``STEM.<16 hex digits of its SHA-256>.data``, ``reuse`` stays in the files that they were loaded from;
            ``auto`` is ``inline`` unless the model was loaded with external data or is too large, then ``copy``.
        provenance: Whether nodes tell which transformer made them, from what.

    Returns:
        What was written where.

    Raises:
        OutputError: It cannot be written there or in this way; nothing was changed under the output's name.
    """
    label = quoted(os.fspath(path)) if isinstance(path, str | os.PathLike) else "the stream"
    try:
        validate(model)
        writing = _Writing(model, provenance)
        if not isinstance(path, str | os.PathLike):
            return writing.to_stream(path, external_data)
        return writing.to_path(Path(path), external_data)
    except (OutputError, InvalidModelError) as error:
        raise OutputError(f"cannot write {label}: {one_line(error)}") from error
    except OSError as error:
        raise OutputError(f"cannot write {label}: {one_line(error.strerror or error)}") from error


class _Writing:
    """One model on its way out."""

    def __init__(self, model: ir.Model, provenance: bool) -> None:
        self._model = model
        self._provenance = provenance
        self._origin: Origin | None = model.meta.get(SOURCE_KEY)

    def _encoded(self, place: Callable[[ir.TensorProtocol, bool], Place | None] | None = None) -> list[Part]:
        types = self._origin is None or self._origin.typed
        return encode(self._model, place=place, types=types, provenance=self._provenance)

    def to_stream(self, stream: BinaryIO, external_data: ExternalData) -> Saved:
        if external_data in {"copy", "reuse"}:
            raise OutputError(f"external data cannot be written beside a stream ({external_data!r})")
        parts = self._encoded()
        size = _size(parts)
        if size > INLINE_LIMIT:
            raise OutputError(f"with inline weights it would have {size} bytes; protobuf's limit is 2 GB")
        _write(parts, stream)
        stream.flush()
        return Saved(None, size, None)

    def to_path(self, path: Path, external_data: ExternalData) -> Saved:
        if path.is_dir():
            raise OutputError("it is a directory")
        if path.exists() and not path.is_file():  # a device or a pipe: there is nothing to replace
            with path.open("wb") as stream:
                return self.to_stream(stream, external_data)
        folder = path.absolute().parent
        if not folder.is_dir():
            raise OutputError(f"there is no folder {quoted(str(folder))}")
        inline = self._encoded() if external_data in {"auto", "inline"} else None
        size = 0 if inline is None else _size(inline)
        if external_data == "inline" and size > INLINE_LIMIT:
            raise OutputError(f"with inline weights it would have {size} bytes; protobuf's limit is 2 GB")
        came_external = self._origin is not None and self._origin.external
        if external_data == "auto" and (came_external or size > INLINE_LIMIT - _MARGIN):
            inline = None
        _remove_stray_files(folder)
        if inline is not None:
            with _Temporary(folder) as file:
                _write(inline, file.stream)
                file.flush()
                with _locked(folder):
                    _remove_old_data(path)
                    file.rename(path)
            return Saved(path, size, None)
        return self._with_data_file(path, folder, reuse=external_data == "reuse")

    def _with_data_file(self, path: Path, folder: Path, *, reuse: bool) -> Saved:
        layout = _Layout(folder, reuse)
        if _size(self._encoded(layout.place)) > INLINE_LIMIT:
            layout.attributes_too = True
        self._encoded(layout.place)
        with contextlib.ExitStack() as stack:
            data: _Temporary | None = None
            if layout.tensors:
                data = stack.enter_context(_Temporary(folder))
                digest = layout.write(data.stream)
                data.flush()
                layout.location = f"{path.name.removesuffix('.onnx')}.{digest[:16]}.data"
            parts = self._encoded(layout.place)
            size = _size(parts)
            if size > INLINE_LIMIT:
                raise OutputError(f"without its weights it still has {size} bytes; protobuf's limit is 2 GB")
            file = stack.enter_context(_Temporary(folder))
            _write(parts, file.stream)
            file.flush()
            data_path = path.with_name(layout.location) if data is not None else None
            with _locked(folder):
                if not reuse:
                    _remove_old_data(path, keep=layout.location)
                if data is not None and data_path is not None:
                    data.rename(data_path)
                file.rename(path)
        return Saved(path, size + layout.end, data_path)


class _Layout:
    """Which tensors go to the file of external data, and where in it.

    Args:
        folder: The output's folder.
        reuse: Whether tensors stay in the external files that they are in.

    Attributes:
        location: The data file's name, once it is known.
        tensors: What goes to the file, with its offset, in the order of the file.
        end: The file's size so far.
        attributes_too: Whether tensors in attributes go to the file even if they came from no file.
    """

    def __init__(self, folder: Path, reuse: bool) -> None:
        self._folder = folder
        self._reuse = reuse
        self._places: dict[object, int] = {}
        self._reused: dict[int, str] = {}
        self.location = ""
        self.tensors: list[tuple[int, ir.TensorProtocol]] = []
        self.end = 0
        self.attributes_too = False

    def place(self, tensor: ir.TensorProtocol, in_attribute: bool) -> Place | None:
        """Where a tensor's data go; the same answer each time it is asked about the same data."""
        nbytes = tensor.nbytes
        external = isinstance(tensor, MappedTensor) and tensor.external
        if nbytes < _SMALLEST_EXTERNAL or (in_attribute and not external and not self.attributes_too):
            return None
        key: object = id(tensor)
        if isinstance(tensor, MappedTensor):
            source, offset = tensor.raw.source, tensor.raw.offset
            if self._reuse and external and isinstance(source, MappedFile):
                return Place(self._location_of(source), offset, nbytes)
            key = (id(source), offset, nbytes)
        if key not in self._places:
            alignment = _PAGE if nbytes >= _LARGE else _ALIGNMENT
            self.end = -(-self.end // alignment) * alignment
            self._places[key] = self.end
            self.tensors.append((self.end, tensor))
            self.end += nbytes
        return Place(self.location, self._places[key], nbytes)

    def _location_of(self, source: MappedFile) -> str:
        known = self._reused.get(id(source))
        if known is not None:
            return known
        if not source.is_at(source.path):
            raise OutputError(f"external data cannot be reused: {quoted(source.path)} was replaced or changed")
        folder = os.path.realpath(self._folder)
        if os.path.commonpath([folder, source.path]) != folder:
            raise OutputError(f"external data cannot be reused: {quoted(source.path)} is not below the output's folder")
        location = Path(source.path).relative_to(folder).as_posix()
        self._reused[id(source)] = location
        return location

    def write(self, file: BinaryIO) -> str:
        """Write the data file.

        Returns:
            The SHA-256 of its contents, in hex.
        """
        with ThreadPoolExecutor(1) as pool:
            digest = _Digest(file, pool)
            position = 0
            for offset, tensor in self.tensors:
                digest.write(bytes(offset - position))
                _write_tensor(tensor, digest)
                position = offset + tensor.nbytes
            return digest.hexdigest()


class _Digest:
    """A file that hashes what it is given, in another thread while this one writes."""

    def __init__(self, file: BinaryIO, pool: ThreadPoolExecutor) -> None:
        self._file = file
        self._pool = pool
        self._hash = hashlib.sha256()
        self.written = 0

    def write(self, data: Any) -> int:
        hashing = self._pool.submit(self._hash.update, data)
        count = self._file.write(data)
        hashing.result()
        self.written += count
        return count

    def tell(self) -> int:
        return self.written

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _size(parts: list[Part]) -> int:
    return sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)


def _write(parts: list[Part], stream: BinaryIO) -> None:
    for part in parts:
        if isinstance(part, bytes):
            stream.write(part)
        else:
            _write_tensor(part, stream)


def _write_tensor(tensor: ir.TensorProtocol, stream: Any) -> None:
    """Write a tensor's data, and make sure that it is as much as it said."""
    if isinstance(tensor, MappedTensor):
        if isinstance(stream, _Digest) and isinstance(tensor.raw.source, MappedFile):
            tensor.raw.source.check()
            for chunk in chunks(tensor.raw.source, tensor.raw.offset, tensor.raw.length):
                stream.write(chunk)
            return
        tensor.tofile(stream)
        return
    data = tensor.tobytes()
    if len(data) != tensor.nbytes:
        raise OutputError(f"tensor {quoted(tensor.name)} has {len(data)} bytes and promised {tensor.nbytes}")
    for start in range(0, len(data), CHUNK):
        stream.write(memoryview(data)[start : start + CHUNK])


class _Temporary:
    """A file without a lasting name beside the output; locked while it lives, removed unless it was renamed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f".ortopt-{secrets.token_hex(8)}.tmp"
        self._renamed = False

    def __enter__(self) -> _Temporary:
        self.stream = self._path.open("x+b", buffering=1 << 20)
        if fcntl is not None:
            fcntl.flock(self.stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.stream.close()
        if not self._renamed:
            self._path.unlink(missing_ok=True)

    def flush(self) -> None:
        """Bring the contents to the disk."""
        self.stream.flush()
        os.fsync(self.stream.fileno())

    def rename(self, target: Path) -> None:
        """Give the file its name, in one step that survives a loss of power."""
        with contextlib.suppress(OSError):
            self._path.chmod(stat.S_IMODE(target.stat().st_mode))
        if fcntl is None:
            self.stream.close()
        self._path.replace(target)
        self._renamed = True
        _flush_folder(self._folder)


def _flush_folder(folder: Path) -> None:
    if fcntl is None:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other writers to the same folder waiting: between a data file's name and the model's, nobody may clean up."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_stray_files(folder: Path) -> None:
    """Remove temporary files whose writers were killed: those that nobody holds a lock on."""
    if fcntl is None:
        return
    for path in folder.iterdir():
        if not _TEMPORARY.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _remove_old_data(path: Path, keep: str = "") -> None:
    """Remove data files that earlier runs wrote for this output and that no model in the folder refers to any more.

    What the output refers to until now stays: somebody may have opened it and be about to open its data. A later run
    takes it away.
    """
    pattern = re.compile(re.escape(path.name.removesuffix(".onnx")) + r"\.[0-9a-f]{16}\.data")
    old = {entry.name for entry in path.parent.iterdir() if pattern.fullmatch(entry.name)} - {keep}
    if not old:
        return
    for entry in {path, *path.parent.glob("*.onnx")}:
        if entry.is_file():
            text = _without_weights(entry)
            old = {name for name in old if name.encode() not in text}
    for name in old:
        (path.parent / name).unlink(missing_ok=True)


def _without_weights(path: Path) -> bytes:
    """A model file's bytes apart from large tensors; all of them if it is no model."""
    file = MappedFile(path)
    try:
        return strip(file.map).model
    except InvalidModelError:
        return bytes(file.map[:])
