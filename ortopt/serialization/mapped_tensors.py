"""Tensors whose data stay where they are: in a mapped file, or in bytes that are held elsewhere.

onnx-ir's own ``ExternalTensor`` is a path, an offset and a promise: saving a model of such tensors over its own files
destroys it. A `MappedTensor` holds the file itself, which lives on when its name is gone or given to another file.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import stat
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, ClassVar, Final

import numpy as np
import onnx
import onnx_ir as ir

from ortopt.errors import InvalidModelError

CHUNK: Final = 256 << 10
"""Bytes that are copied at a time where the kernel cannot copy by itself."""

_WORTH_A_CALL: Final = 64 << 10

_MAX_READ: Final = 64 << 20
"""Bytes that are read through a mapping before their memory is given back."""

_NO_KERNEL_COPY: Final = frozenset(
    {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EXDEV, errno.EBADF, errno.ETXTBSY}
)


class MappedFile:
    """A regular file, mapped read-only as a whole; it stays readable when it is renamed, replaced or deleted.

    Args:
        path: The file.

    Raises:
        InvalidModelError: It is no regular file.
        OSError: It cannot be opened.

    Attributes:
        path: Where the file was when it was opened.
        size: Bytes.
        identity: Device and inode: equal for two names of one file.
    """

    _read: ClassVar[int] = 0

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)  # noqa: PTH100 -- pathlib has no abspath that keeps symlinks
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 -- before opening: opening a pipe can hang
            raise InvalidModelError("it is not a regular file")
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._descriptor)
        self._state = self._read_state()
        self.size = self._state[0]
        self.identity = self._state[2:]
        self.map: mmap.mmap | bytes = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ) if self.size else b""
        with _lock:
            _files.add(self)

    def _read_state(self) -> tuple[int, int, int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino

    def fileno(self) -> int:
        """The open file's descriptor."""
        return self._descriptor

    def check(self) -> None:
        """Make sure that the file is unchanged: reading a mapping beyond a shortened file ends the process.

        Raises:
            InvalidModelError: It has been written into.
        """
        if self._read_state() != self._state:
            raise InvalidModelError(f"{self.path!r} was changed while it was in use; its weights are lost")

    def view(self, offset: int, length: int) -> memoryview:
        """Bytes of the file, without a copy.

        What views of files read stays in memory until `forget`, so that is called for all of them after every
        `_MAX_READ` bytes. Older views stay valid.

        Raises:
            InvalidModelError: The file was changed.
        """
        self.check()
        MappedFile._read += length
        if MappedFile._read > _MAX_READ:
            with _lock:
                files = list(_files)
            for file in files:
                file.forget()
            MappedFile._read = length
        return memoryview(self.map)[offset : offset + length]

    def forget(self) -> None:
        """Give back the memory of what was read through the mapping; it is read again when it is asked for."""
        if isinstance(self.map, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError):  # of a process that has locked its memory
                self.map.madvise(mmap.MADV_DONTNEED)

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Whether a path leads to this very file, unchanged."""
        try:
            status = os.stat(path)  # noqa: PTH116 -- takes what os.PathLike gives
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino) == self._state


_lock: Final = threading.Lock()
_files: Final[weakref.WeakSet[MappedFile]] = weakref.WeakSet()


class Region:
    """Bytes of a file or of an object in memory: what a `MappedTensor` is a view of.

    Attributes:
        source: The mapped file, or the bytes.
        offset: Where the region starts, in bytes.
        length: How long it is, in bytes.
    """

    __slots__ = ("length", "offset", "source")

    def __init__(self, source: MappedFile | bytes, offset: int, length: int) -> None:
        self.source = source
        self.offset = offset
        self.length = length

    def view(self) -> memoryview:
        """The bytes, without a copy.

        Raises:
            InvalidModelError: The file was changed.
        """
        if isinstance(self.source, MappedFile):
            return self.source.view(self.offset, self.length)
        return memoryview(self.source)[self.offset : self.offset + self.length]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.view(), dtype=np.uint8)


class MappedTensor(ir.Tensor[Region]):
    """A constant tensor over a region of a mapped file or of bytes in memory; never writable, never copied at rest.

    Args:
        source: A mapped file, or bytes.
        offset: Where the data start, in bytes.
        length: The data's length in bytes.
        dtype: Any type but STRING and UNDEFINED; the data are little-endian and packed as ONNX packs ``raw_data``.
        shape: The shape; its element count must agree with ``length``.
        name: The tensor's name.
        doc_string: Its documentation.
        metadata_props: Its metadata.
        external: Whether the data came from a file of external data.

    Raises:
        InvalidModelError: Region, dtype and shape do not agree.
    """

    __slots__ = ("external",)

    def __init__(
        self,
        source: MappedFile | bytes,
        offset: int,
        length: int,
        *,
        dtype: ir.DataType,
        shape: ir.Shape,
        name: str | None,
        doc_string: str | None = None,
        metadata_props: dict[str, str] | None = None,
        external: bool = False,
    ) -> None:
        expected = data_bytes(dtype, shape.numpy())
        if expected != length:
            raise InvalidModelError(
                f"it has {length} bytes of data where its type {dtype.name} and its shape need {expected}"
            )
        size = source.size if isinstance(source, MappedFile) else len(source)
        if offset < 0 or offset + length > size:
            raise InvalidModelError(
                f"its data end at byte {offset + length}, beyond the end of the file ({size} bytes)"
            )
        super().__init__(
            Region(source, offset, length),
            dtype,
            shape=shape,
            name=name,
            doc_string=doc_string,
            metadata_props=metadata_props,
        )
        self.external = external

    @property
    def nbytes(self) -> int:
        """Bytes of the data as they are stored: several elements share a byte in types below 8 bits."""
        return self.raw.length

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements, read-only; a view, except for types below 8 bits, which are unpacked anew at each call.

        The view may be unaligned: inline weights lie in a file wherever protobuf put them.
        """
        if self.dtype.bitwidth < 8:
            packed = onnx.TensorProto(data_type=self.dtype.value, dims=self.shape.numpy(), raw_data=self.tobytes())
            array = np.asarray(ir.serde.TensorProtoTensor(packed).numpy())
            array.flags.writeable = False
            return array
        element = np.dtype(self.dtype.numpy()).newbyteorder("<")
        return np.frombuffer(self.raw.view(), dtype=element).reshape(self.shape.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """What ``numpy.array`` asks for."""
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self.numpy().copy().__dlpack__(stream=stream)  # numpy exports no read-only memory

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numpy().__dlpack_device__()

    def __repr__(self) -> str:
        return f"MappedTensor<{self.dtype},{self.shape}>(name={self.name!r}, offset={self.raw.offset})"

    def tobytes(self) -> bytes:
        """A copy of the stored bytes."""
        return bytes(self.raw.view())

    def tofile(self, file: Any) -> None:
        """Write the stored bytes to a binary file, from kernel to kernel where there is a way.

        Args:
            file: Anything with ``write``; the file is left positioned behind what was written.

        Raises:
            InvalidModelError: The mapped file was changed or shortened meanwhile.
            OSError: The write failed.
        """
        self.write_slice(file, 0, self.raw.length)

    def write_slice(self, file: Any, start: int, length: int) -> None:
        """As `tofile`, for the bytes from ``start`` on."""
        source, offset = self.raw.source, self.raw.offset + start
        if not isinstance(source, MappedFile) or length < _WORTH_A_CALL:
            file.write(self.raw.view()[start : start + length])
            return
        source.check()
        copied = _copy_in_kernel(source.fileno(), offset, length, file)
        for chunk in chunks(source, offset + copied, length - copied):
            file.write(chunk)


def data_bytes(dtype: ir.DataType, dims: Sequence[int]) -> int:
    """Bytes that ``raw_data`` has for a type and a shape.

    Raises:
        InvalidModelError: A dimension is negative, or the type has no raw form.
    """
    if dtype in {ir.DataType.STRING, ir.DataType.UNDEFINED}:
        raise InvalidModelError(f"its type {dtype.name} has no binary form")
    if any(dim < 0 for dim in dims):
        raise InvalidModelError(f"it has a negative dimension: {list(dims)}")
    return (math.prod(dims) * dtype.bitwidth + 7) // 8


def chunks(source: MappedFile, offset: int, length: int) -> Iterator[memoryview]:
    """Read a region piece by piece, in one buffer that is filled again and again: resident memory stays small.

    Yields:
        Views of the buffer, each valid until the next is asked for.

    Raises:
        InvalidModelError: The file became shorter.
    """
    if not hasattr(os, "preadv"):  # Windows
        for start in range(offset, offset + length, CHUNK):
            yield memoryview(source.map)[start : min(start + CHUNK, offset + length)]
        return
    buffer = bytearray(min(CHUNK, length))
    view = memoryview(buffer)
    while length > 0:
        count = os.preadv(source.fileno(), [view[: min(CHUNK, length)]], offset)
        if count == 0:
            raise InvalidModelError(f"{source.path!r} became shorter while it was read")
        yield view[:count]
        offset += count
        length -= count


def _copy_in_kernel(source: int, offset: int, length: int, file: BinaryIO) -> int:
    """Bytes that the kernel copied to a file by itself: all, or as far as it could."""
    if not hasattr(os, "copy_file_range"):
        return 0
    try:
        target = file.fileno()
        if not stat.S_ISREG(os.fstat(target).st_mode):
            return 0
        file.flush()
        begin = file.tell()
    except (AttributeError, OSError, ValueError):
        return 0
    copied = 0
    try:
        while copied < length:
            count = os.copy_file_range(source, target, min(length - copied, 1 << 30), offset + copied, begin + copied)
            if count == 0:
                break
            copied += count
    except OSError as error:
        if error.errno not in _NO_KERNEL_COPY:
            raise
    file.seek(begin + copied)
    return copied


_PIECE: Final = 1 << 20
"""Elements that are converted at a time: what is in memory of a tensor that is written."""


class ConvertedTensor(ir.LazyTensor):
    """The elements of a tensor of floats, rounded to another dtype; converted anew whenever they are read.

    Args:
        source: The tensor.
        dtype: The dtype that its elements are rounded to.
        largest: Finite elements beyond it become it; None leaves them to the rounding, which makes them infinite.

    Attributes:
        source: The tensor.
        largest: The bound.
    """

    __slots__ = ("largest", "source")

    def __init__(self, source: ir.TensorProtocol, dtype: ir.DataType, largest: float | None = None) -> None:
        shape = ir.Shape(source.shape.numpy())
        super().__init__(self._converted, dtype, shape, name=source.name, doc_string=source.doc_string)
        self.source = source
        self.largest = largest

    def _converted(self) -> ir.TensorProtocol:
        return ir.Tensor(self._rounded(np.asarray(self.source.numpy())), dtype=self.dtype, name=self.name)

    def _rounded(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if self.largest is not None:
            limit = np.float32(self.largest)
            numbers = np.where(np.isfinite(numbers), np.clip(numbers, -limit, limit), numbers)
        with np.errstate(over="ignore"):
            return numbers.astype(self.dtype.numpy())

    def write_slice(self, file: Any, start: int, length: int) -> None:
        """Write some of the bytes to a binary file, piece by piece.

        Args:
            file: Anything with ``write``.
            start: The first byte, a multiple of the size of an element.
            length: How many bytes, a multiple likewise.
        """
        size = self.dtype.bitwidth // 8
        end = (start + length) // size
        for first in range(start // size, end, _PIECE):
            piece = self.piece(first, min(first + _PIECE, end))
            file.write(piece.astype(piece.dtype.newbyteorder("<"), copy=False).tobytes())

    def piece(self, start: int, end: int) -> np.ndarray[Any, Any]:
        """Some of the elements, of which no others are converted.

        Args:
            start: The first one's place, counted through the tensor.
            end: The place behind the last one.
        """
        if isinstance(self.source, ConvertedTensor):
            return self._rounded(self.source.piece(start, end))
        return self._rounded(np.asarray(self.source.numpy()).reshape(-1)[start:end])
