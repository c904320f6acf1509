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
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Literal, NamedTuple

import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError, OutputError
from ortopt.graph.text import one_line, quoted
from ortopt.serialization.encode import encode
from ortopt.serialization.load import SOURCE_KEY, Origin
from ortopt.serialization.mapped_tensors import CHUNK, MappedFile, MappedTensor
from ortopt.serialization.message import Part
from ortopt.serialization.tensor_encoding import Place
from ortopt.serialization.validate import validate
from ortopt.serialization.wire import strip
from ortopt.system.files import same_file
from ortopt.system.garbage_collection import without_garbage_collection

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
_SLICE: Final = 32 << 20  # what is written before it is hashed
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
    token: CancellationToken = NEVER,
) -> Saved:
    """Write a model to a file or a stream. The same model gives the same bytes.

    Args:
        model: The model; it is not changed.
        path: The file, replaced in one step if it exists; or a binary stream, which takes inline weights only.
        external_data: Where large weights go: ``inline`` into the model, ``copy`` to a new file beside it named
            ``STEM.<16 hex digits of its SHA-256>.data``, ``reuse`` stays in the files that they were loaded from;
            ``auto`` is ``inline`` unless the model was loaded with external data or is too large, then ``copy``.
        provenance: Whether nodes tell which transformer made them, from what.
        token: Cancellation token; nothing is changed under the output's name then.

    Returns:
        What was written where.

    Raises:
        OutputError: It cannot be written there or in this way; nothing was changed under the output's name.
    """
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else getattr(path, "name", None)
    label = quoted(name) if isinstance(name, str) else "the stream"
    try:
        with without_garbage_collection():
            validate(model, token=token)
            writing = _Writing(model, provenance, token)
            if not isinstance(path, str | os.PathLike):
                return writing.to_stream(path, external_data)
            return writing.to_path(Path(path), external_data)
    except (OutputError, InvalidModelError) as error:
        raise OutputError(f"cannot write {label}: {one_line(error)}") from error
    except OSError as error:
        raise OutputError(f"cannot write {label}: {one_line(error.strerror or error)}") from error


class _Writing:
    """One model on its way out."""

    def __init__(self, model: ir.Model, provenance: bool, token: CancellationToken) -> None:
        self._token = token
        self._model = model
        self._provenance = provenance
        self._origin: Origin | None = model.meta.get(SOURCE_KEY)

    def _encoded(self, place: Callable[[ir.TensorProtocol, bool], Place | None] | None = None) -> list[Part]:
        types = self._origin is None or self._origin.typed
        return encode(self._model, place=place, types=types, provenance=self._provenance, token=self._token)

    def to_stream(self, stream: BinaryIO, external_data: ExternalData) -> Saved:
        if external_data in {"copy", "reuse"}:
            raise OutputError(f"external data cannot be written beside a stream ({external_data!r})")
        parts = self._encoded()
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
                _write(inline, self._token, file.stream)
                file.flush()
                with _locked(folder):
                    _remove_old_data(path)
                    file.rename(path)
            return Saved(path, size, None)
        return self._with_data_file(path, folder, reuse=external_data == "reuse")

    def _refuse_own_data(self, path: Path) -> None:
        """Refuse to put the model where weights of it lie: the one that it was loaded from would be broken."""
        if self._origin is not None and any(same_file(path, data) for data in self._origin.data):
            raise OutputError("it holds external data of the model")

    def _with_data_file(self, path: Path, folder: Path, *, reuse: bool) -> Saved:
        layout = _Layout(folder, reuse)
        if _size(self._encoded(layout.place)) > INLINE_LIMIT:
            layout.attributes_too = True
        self._encoded(layout.place)
        with contextlib.ExitStack() as stack:
            data: _Temporary | None = None
            if layout.tensors:
                data = stack.enter_context(_Temporary(folder))
                digest = layout.write(data, self._token)
                data.flush()
                layout.location = f"{path.name.removesuffix('.onnx')}.{digest[:16]}.data"
            parts = self._encoded(layout.place)
            size = _size(parts)
            if size > INLINE_LIMIT:
                raise OutputError(f"without its weights it still has {size} bytes; protobuf's limit is 2 GB")
            file = stack.enter_context(_Temporary(folder))
            _write(parts, self._token, file.stream)
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

    def write(self, file: _Temporary, token: CancellationToken) -> str:
        """Write the data file.

        Args:
            file: The file.
            token: Cancellation token.

        Returns:
            The SHA-256 of its contents, in hex.
        """
        with _Hasher(file.path) as hasher:
            for offset, tensor in self.tensors:
                file.stream.write(bytes(offset - file.stream.tell()))
                for _ in _written(tensor, file.stream):
                    token.check()
                    file.stream.flush()
                    hasher.advance(file.stream.tell())
            return hasher.finish()


class _Hasher:
    """Hashes a file in a thread of its own, close behind its writer: what it reads, the kernel still holds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._news = threading.Condition()
        self._written = 0
        self._ended = False
        self._hash = hashlib.sha256()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ortopt-hash", daemon=True)

    def __enter__(self) -> _Hasher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def advance(self, written: int) -> None:
        """Say how many bytes are in the file by now."""
        with self._news:
            self._written = written
            self._news.notify()

    def finish(self) -> str:
        """Wait for the end.

        Returns:
            The digest in hex.
        """
        self._end()
        if self._error is not None:
            raise self._error
        return self._hash.hexdigest()

    def _end(self) -> None:
        with self._news:
            self._ended = True
            self._news.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._path.open("rb", buffering=0) as file:
                self._follow(file)
        except OSError as error:
            self._error = error

    def _follow(self, file: io.FileIO) -> None:
        buffer = memoryview(bytearray(CHUNK))
        position = 0
        while position < (end := self._written_beyond(position)):
            while position < end:
                count = file.readinto(buffer[: min(CHUNK, end - position)])
                if not count:
                    raise OSError(f"{self._path} became shorter while it was written")
                self._hash.update(buffer[:count])
                position += count

    def _written_beyond(self, position: int) -> int:
        """Wait for more than so many bytes; what there is by then, which is no more at the end."""
        with self._news:
            self._news.wait_for(lambda: self._ended or self._written > position)
            return self._written


def _size(parts: list[Part]) -> int:
    return sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)


def _write(parts: list[Part], token: CancellationToken, stream: BinaryIO) -> None:
    for part in token.checked(parts):
        if isinstance(part, bytes):
            stream.write(part)
            continue
        for _ in _written(part, stream):
            token.check()


def _written(tensor: ir.TensorProtocol, stream: BinaryIO) -> Iterator[None]:
    """Write a tensor's data in slices; and make sure that they are as much as the tensor said."""
    if isinstance(tensor, MappedTensor):
        for start in range(0, tensor.nbytes, _SLICE):
            tensor.write_slice(stream, start, min(_SLICE, tensor.nbytes - start))
            yield
        return
    data = memoryview(tensor.tobytes())
    if len(data) != tensor.nbytes:
        raise OutputError(f"tensor {quoted(tensor.name)} has {len(data)} bytes and promised {tensor.nbytes}")
    for start in range(0, len(data), _SLICE):
        stream.write(data[start : start + _SLICE])
        yield


class _Temporary:
    """A file without a lasting name beside the output; locked while it lives, removed unless it was renamed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.path = folder / f".ortopt-{secrets.token_hex(8)}.tmp"
        self._renamed = False

    def __enter__(self) -> _Temporary:
        with _locked(self._folder):  # else another run could take the file for a stray one before it is locked
            self.stream = self.path.open("x+b", buffering=1 << 20)
            if fcntl is not None:
                with contextlib.suppress(OSError):  # some network file systems have no locks
                    fcntl.flock(self.stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.stream.close()
        if not self._renamed:
            self.path.unlink(missing_ok=True)

    def flush(self) -> None:
        """Bring the contents to the disk."""
        self.stream.flush()
        os.fsync(self.stream.fileno())

    def rename(self, target: Path) -> None:
        """Give the file its name, in one step that survives a loss of power."""
        with contextlib.suppress(OSError):
            self.path.chmod(stat.S_IMODE(target.stat().st_mode))
        if fcntl is None:
            self.stream.close()
        self.path.replace(target)
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
    """Keep other writers to the folder waiting: between a data file's name and the model's, nobody may clean up."""
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
    with _locked(folder):
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
