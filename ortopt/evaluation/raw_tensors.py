"""Tensors of every dtype, in and out of ONNX Runtime, of files and of memory: numpy lacks some of the dtypes.

Only numpy, onnxruntime and threads are imported here: child processes that run models use it, also those of other
Pythons, from 3.10 on (`ortopt.verification.runtimes`).
"""

from __future__ import annotations

import ctypes
import functools
import io
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from ortopt.system.threads import BackgroundThread, Signal

if TYPE_CHECKING:
    import onnxruntime

Array = np.ndarray[Any, Any]

# onnx.TensorProto.DataType: those that numpy has, and the bits of those that it has not.
_NATIVE: Final = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13})
STRING: Final = 8
_BITS: Final = {16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2}
_ALIGNMENT: Final = 64
_BETWEEN_CHECKS: Final = 0.02  # seconds
_MAPPED_FROM: Final = 1 << 16  # bytes of a file from which it costs less to map it than to read it
_PREFIX: Final = 10  # bytes of a .npy file of version 1.0 before its header: magic, version, the header's length


class Raw(NamedTuple):
    """A tensor as ONNX Runtime holds it.

    Attributes:
        dtype: The number of its ONNX element type.
        shape: Its dimensions.
        data: Of this shape if numpy has the dtype; an object array of bytes for strings; else the bytes as uint8.
    """

    dtype: int
    shape: tuple[int, ...]
    data: Array


def run_session(
    session: onnxruntime.InferenceSession,
    feeds: Mapping[str, Array],
    fetch: Sequence[str],
    seconds: float,
    stop: Callable[[], bool] = lambda: False,
) -> list[Raw | None]:
    """Run a session whose outputs may be of any dtype.

    Args:
        session: On the CPU.
        feeds: Arrays of dtypes that numpy has.
        fetch: The outputs to compute.
        seconds: After this time the run ends at the next node, with an error of onnxruntime.
        stop: Whether it shall end before; asked now and then, from another thread.

    Returns:
        For each output a tensor, or None where it is none.
    """
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(aligned(array)) for name, array in feeds.items()}
    over = Signal()

    def terminate_in_time() -> None:
        deadline = time.monotonic() + seconds
        while not over.wait(max(min(_BETWEEN_CHECKS, deadline - time.monotonic()), 0.001)):
            if stop() or time.monotonic() >= deadline:
                options.terminate = True
                return

    BackgroundThread(terminate_in_time, "ortopt-run-end")
    try:
        return [raw_of(value) for value in session.run_with_ort_values(list(fetch), values, options)]
    finally:
        over.set()


def aligned(array: Array) -> Array:
    """An array as ONNX Runtime's allocators would lay it out: what ReduceMean sums in which order depends on that.

    Args:
        array: Of a dtype that numpy has; a view of a file may begin anywhere.
    """
    if array.dtype.hasobject or (array.flags.c_contiguous and array.ctypes.data % _ALIGNMENT == 0):
        return np.ascontiguousarray(array)
    return _copied(array)


def aligned_copy(array: Array) -> Array:
    """A copy of an array of numbers that is laid out in the same way, and cannot be changed.

    Args:
        array: Of a dtype that numpy has.
    """
    copied = _copied(array)
    copied.flags.writeable = False
    return copied


def _copied(array: Array) -> Array:
    copied = _room(array.nbytes).view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied


def _room(nbytes: int) -> Array:
    """Bytes that begin where ONNX Runtime's allocators would let them begin."""
    room = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + nbytes]


def raw_of(value: Any) -> Raw | None:
    """What an OrtValue on the CPU holds, or None where it is no tensor of a dtype known here."""
    if not value.has_value() or not value.is_tensor():
        return None
    dtype, shape = value.element_type(), tuple(value.shape())
    if dtype in _NATIVE:
        return Raw(dtype, shape, value.numpy())
    if dtype == STRING:
        coded = np.empty(shape, object)
        coded.reshape(-1)[:] = [
            text.encode(errors="surrogateescape") if isinstance(text, str) else text
            for text in value.numpy().reshape(-1)
        ]
        return Raw(dtype, shape, coded)
    if dtype not in _BITS:
        return None
    nbytes = math.ceil(math.prod(shape) * _BITS[dtype] / 8)
    return Raw(dtype, shape, np.frombuffer(ctypes.string_at(value.data_ptr(), nbytes) if nbytes else b"", np.uint8))


def save_array(path: Path, array: Array) -> None:
    """Write an array as `np.load` reads it. `np.save` says nothing where the end of a small one has no room.

    Args:
        path: The file.
        array: Numbers.

    Raises:
        OSError: It cannot be written.
    """
    held = np.asarray(array, order="C")
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(held))
        file.write(held.reshape(-1).view(np.uint8).data)


def load_array(path: Path) -> Array:
    """Read what `save_array` has written; it cannot be changed.

    A small file is read, a large one is mapped: the content is aligned either way.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be read.
        ValueError: `save_array` has not written it, or not all of it.
    """
    with path.open("rb", buffering=0) as file:
        start = file.read(_MAPPED_FROM)
        if len(start) < _MAPPED_FROM:
            return _array_of(start)
    mapped: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return mapped


def _array_of(content: bytes) -> Array:
    """The array that a whole file holds."""
    start = _PREFIX + int.from_bytes(content[_PREFIX - 2 : _PREFIX], "little")
    shape, dtype = _header(content[:start])
    nbytes = math.prod(shape) * dtype.itemsize
    room = _room(nbytes)
    room[:] = np.frombuffer(content, np.uint8, nbytes, start)
    array = room.view(dtype).reshape(shape)
    array.flags.writeable = False
    return array


@functools.lru_cache(maxsize=1024)  # parsing one takes longer than reading the file
def _header(content: bytes) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of an array in C's order."""
    file = io.BytesIO(content)
    np.lib.format.read_magic(file)
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if is_fortran or dtype.hasobject:
        raise ValueError("the file holds no numbers in the order of C")
    return shape, dtype


class MemoryPlace:
    """Arrays by their names, for a session in this process: files would take longer than small models do.

    Attributes:
        arrays: Read-only copies, laid out as those of a file.
        rows: How to find the inputs there.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.rows: dict[str, Any] = {}


Place: TypeAlias = Path | MemoryPlace
"""A folder, or its like in memory."""

_ROWS = "values.json"


def keep(place: Place, name: str, array: Array) -> None:
    """Keep an array of numbers under a name."""
    if isinstance(place, MemoryPlace):
        place.arrays[name] = aligned_copy(array)
    else:
        save_array(place / name, array)


def kept(place: Place, name: str) -> Array:
    """What `keep` has kept; it cannot be changed."""
    return place.arrays[name] if isinstance(place, MemoryPlace) else load_array(place / name)


def keep_rows(place: Place, rows: dict[str, Any]) -> None:
    """Keep how the inputs are found."""
    if isinstance(place, MemoryPlace):
        place.rows = rows
    else:
        (place / _ROWS).write_text(json.dumps(rows), encoding="utf-8")


def kept_rows(place: Place) -> dict[str, Any]:
    """What `keep_rows` has kept."""
    if isinstance(place, MemoryPlace):
        return place.rows
    rows: dict[str, Any] = json.loads((place / _ROWS).read_bytes())
    return rows


def make(place: Place) -> None:
    """Make the folder, unless there is one."""
    if isinstance(place, Path):
        place.mkdir(exist_ok=True)
