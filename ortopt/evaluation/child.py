"""Running a model of constants in ONNX Runtime, here or in a child process (``python -m ortopt.evaluation.child``).

The child is given a folder with ``model.onnx``, ``job.json`` and one ``.npy`` file for each input. It writes
``done.json`` and a file for each output. Whatever kills it, the parent sees an exit status. Nothing but numpy and
onnxruntime is imported here: a child starts for every batch that is not known to be safe.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import onnxruntime

Array = np.ndarray[Any, Any]

# onnx.TensorProto.DataType: those that numpy has, and the bits of those that it has not.
_NATIVE = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13})
_STRING = 8
_BETWEEN_LOOKS = 0.5  # seconds
_BETWEEN_QUESTIONS = 0.02  # seconds
_ALIGNMENT = 64
_BITS = {16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2}


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
    over = threading.Event()

    def watch() -> None:
        deadline = time.monotonic() + seconds
        while not over.wait(max(min(_BETWEEN_QUESTIONS, deadline - time.monotonic()), 0.001)):
            if stop() or time.monotonic() >= deadline:
                options.terminate = True
                return

    threading.Thread(target=watch, name="ortopt-run-end", daemon=True).start()
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
    room = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    copied = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied


def raw_of(value: Any) -> Raw | None:
    """What an OrtValue on the CPU holds, or None where it is no tensor of a dtype known here."""
    if not value.has_value() or not value.is_tensor():
        return None
    dtype, shape = value.element_type(), tuple(value.shape())
    if dtype in _NATIVE:
        return Raw(dtype, shape, value.numpy())
    if dtype == _STRING:
        coded = np.empty(shape, object)
        coded.reshape(-1)[:] = [
            one.encode(errors="surrogateescape") if isinstance(one, str) else one for one in value.numpy().reshape(-1)
        ]
        return Raw(dtype, shape, coded)
    if dtype not in _BITS:
        return None
    nbytes = math.ceil(math.prod(shape) * _BITS[dtype] / 8)
    return Raw(dtype, shape, np.frombuffer(ctypes.string_at(value.data_ptr(), nbytes) if nbytes else b"", np.uint8))


def main(folder: Path) -> None:
    """Run the job in ``folder``."""
    job = json.loads((folder / "job.json").read_bytes())
    end_with(job["parent"])
    limit_memory(space=job["memory"], data=job["data"])
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, ["CPUExecutionProvider"])
    feeds = {name: np.load(folder / f"{i}.npy", mmap_mode="r") for i, name in enumerate(job["feeds"])}
    done: list[list[Any] | None] = []
    for i, raw in enumerate(run_session(session, feeds, job["fetch"], job["seconds"])):
        if raw is None or _nbytes(raw) > job["limit"]:
            done.append(None)
        elif raw.dtype == _STRING:
            done.append([raw.dtype, raw.shape, [one.hex() for one in raw.data.reshape(-1)]])
        else:
            save_array(folder / f"out{i}.npy", raw.data)
            done.append([raw.dtype, raw.shape, None])
    (folder / "done.json").write_text(json.dumps(done), encoding="utf-8")


def _nbytes(raw: Raw) -> int:
    return sum(map(len, raw.data.reshape(-1))) if raw.dtype == _STRING else raw.data.nbytes


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


def results(folder: Path) -> list[Raw | None]:
    """What a child that ended well has left in ``folder``."""
    found: list[Raw | None] = []
    for i, row in enumerate(json.loads((folder / "done.json").read_bytes())):
        if row is None:
            found.append(None)
            continue
        dtype, shape, texts = row
        if texts is None:
            data = np.load(folder / f"out{i}.npy", allow_pickle=False)
        else:
            data = np.empty(tuple(shape), object)
            data.reshape(-1)[:] = [bytes.fromhex(one) for one in texts]
        found.append(Raw(dtype, tuple(shape), data))
    return found


def end_with(parent: int) -> None:
    """End this process when the one that started it has gone: nobody else ends a model that never does.

    Args:
        parent: The process that started this one.
    """
    if sys.platform == "win32" or os.getppid() != parent:  # there, or here, somebody stands in between
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=watch, name="ortopt-parent", daemon=True).start()


def limit_memory(*, space: int | None = None, data: int | None = None) -> None:
    """Bound this process, where the system can do that, and let it leave no core when it ends.

    Args:
        space: Bytes of address space, mapped files and libraries included.
        data: Bytes of private writable memory.
    """
    try:
        import resource
    except ImportError:  # Windows; the time limit holds there too
        return
    for kind, nbytes in ((resource.RLIMIT_AS, space), (resource.RLIMIT_DATA, data), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(kind)[1]
        if nbytes is not None:
            resource.setrlimit(kind, (nbytes if hard == resource.RLIM_INFINITY else min(nbytes, hard), hard))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
