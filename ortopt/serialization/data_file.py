"""The file of external data that is written beside a model: which tensors go there, where in it, and its hash."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import onnx_ir as ir

from ortopt.cancellation import CancellationToken
from ortopt.errors import OutputError
from ortopt.serialization.mapped_tensors import CHUNK, ConvertedTensor, MappedFile, MappedTensor
from ortopt.serialization.output_files import TemporaryOutput
from ortopt.serialization.tensor_encoding import Place
from ortopt.system.threads import BackgroundThread
from ortopt.terminal_text import quoted

_MIN_EXTERNAL: Final = 1024
_LARGE: Final = 1 << 20
_PAGE: Final = 4096
_SLICE: Final = 32 << 20  # what is written before it is hashed
_ALIGNMENT: Final = 16  # of the largest element, complex128


class DataLayout:
    """Which tensors go to a file of external data, and where in it.

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
        self._locations: dict[int, str] = {}
        self._staying: dict[object, int] = {}
        self.location = ""
        self.tensors: list[tuple[int, ir.TensorProtocol]] = []
        self.end = 0
        self.attributes_too = False

    def place(self, tensor: ir.TensorProtocol, in_attribute: bool) -> Place | None:
        """Where a tensor's data go; the same answer each time it is asked about the same data."""
        nbytes = tensor.nbytes
        external = isinstance(tensor, MappedTensor) and tensor.external
        if nbytes < _MIN_EXTERNAL or (in_attribute and not external and not self.attributes_too):
            return None
        key: object = id(tensor)
        if isinstance(tensor, MappedTensor):
            source, offset = tensor.raw.source, tensor.raw.offset
            key = (id(source), offset, nbytes)
            if self._reuse and external and isinstance(source, MappedFile):
                self._staying[key] = nbytes
                return Place(self._location_of(source), offset, nbytes)
        if key not in self._places:
            alignment = _PAGE if nbytes >= _LARGE else _ALIGNMENT
            self.end = -(-self.end // alignment) * alignment
            self._places[key] = self.end
            self.tensors.append((self.end, tensor))
            self.end += nbytes
        return Place(self.location, self._places[key], nbytes)

    @property
    def reused(self) -> int:
        """Bytes of the tensors that stay in the files that they are in."""
        return sum(self._staying.values())

    @property
    def copied(self) -> int:
        """Bytes of the tensors that go to the file, and come from one."""
        return sum(tensor.nbytes for _, tensor in self.tensors if isinstance(tensor, MappedTensor))

    def _location_of(self, source: MappedFile) -> str:
        known = self._locations.get(id(source))
        if known is not None:
            return known
        if not source.is_at(source.path):
            raise OutputError(f"external data cannot be reused: {quoted(source.path)} was replaced or changed")
        folder = os.path.realpath(self._folder)
        if os.path.commonpath([folder, source.path]) != folder:
            raise OutputError(f"external data cannot be reused: {quoted(source.path)} is not below the output's folder")
        location = Path(source.path).relative_to(folder).as_posix()
        self._locations[id(source)] = location
        return location

    def write(self, file: TemporaryOutput, token: CancellationToken) -> str:
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
                for _ in write_data(tensor, file.stream):
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
        self._error: OSError | None = None
        self._complete = False
        self._thread: BackgroundThread | None = None

    def __enter__(self) -> _Hasher:
        self._thread = BackgroundThread(self._run, "ortopt-hash")
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
        if not self._complete:
            raise MemoryError
        return self._hash.hexdigest()

    def _end(self) -> None:
        with self._news:
            self._ended = True
            self._news.notify()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._path.open("rb", buffering=0) as file:
                self._follow(file)
            self._complete = True
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


def write_data(tensor: ir.TensorProtocol, stream: BinaryIO) -> Iterator[None]:
    """Write a tensor's data in slices; and make sure that they are as much as the tensor said."""
    if isinstance(tensor, MappedTensor | ConvertedTensor):
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
