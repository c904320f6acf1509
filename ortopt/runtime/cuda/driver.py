"""The few calls to NVIDIA's driver that ONNX Runtime's Python API does not offer: a stream, and copies on it.

The driver's library comes with the driver, so it is there wherever ONNX Runtime's CUDA provider works, and it brings no
dependency; the runtime library (libcudart) does neither. A stream made in a device's primary context is a stream to
the runtime library too, which is what ONNX Runtime uses.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from ortopt.analysis.providers import cuda_driver

Copy = tuple[int, int, int]
"""A copy to an address, from an address, of so many bytes."""

DEFAULT_STREAM: Final = 0
"""The device's default stream, on which ONNX Runtime's Python API copies, and torch computes unless told otherwise."""

_POINTER: Final = ctypes.c_void_p
_ADDRESS: Final = ctypes.c_uint64
_SIZE: Final = ctypes.c_size_t
_NON_BLOCKING: Final = 1  # CU_STREAM_NON_BLOCKING
_NOT_CAPTURING: Final = 0

_ARGUMENTS: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (ctypes.c_uint,),
    "cuDeviceGet": (_POINTER, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_POINTER, ctypes.c_int),
    "cuDevicePrimaryCtxRelease_v2": (ctypes.c_int,),
    "cuCtxPushCurrent_v2": (_POINTER,),
    "cuCtxPopCurrent_v2": (_POINTER,),
    "cuStreamCreate": (_POINTER, ctypes.c_uint),
    "cuStreamDestroy_v2": (_POINTER,),
    "cuStreamSynchronize": (_POINTER,),
    "cuStreamIsCapturing": (_POINTER, _POINTER),
    "cuStreamEndCapture": (_POINTER, _POINTER),
    "cuGraphDestroy": (_POINTER,),
    "cuMemcpyDtoDAsync_v2": (_ADDRESS, _ADDRESS, _SIZE, _POINTER),
    "cuMemcpyDtoHAsync_v2": (_POINTER, _ADDRESS, _SIZE, _POINTER),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, _POINTER, _SIZE, _POINTER),
}


class Driver:
    """NVIDIA's driver, for one device.

    Args:
        index: The device's number, as ONNX Runtime's ``device_id`` counts.
        library: The driver's library; None loads it.

    Raises:
        OSError: There is no driver, it lacks a function, or it has no such device.
    """

    def __init__(self, index: int, library: Any = None) -> None:
        self._library = cuda_driver() if library is None else library
        try:
            for name, arguments in _ARGUMENTS.items():
                getattr(self._library, name).argtypes = arguments
        except AttributeError as error:
            raise OSError(f"the NVIDIA driver is too old: {error}") from None
        device = ctypes.c_int()
        context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), index)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._context = context
        # The context is the process's and stays as long as it is retained. At the end of the process the driver
        # may be gone already, and in a forked child nothing of it works.
        release = self._library.cuDevicePrimaryCtxRelease_v2
        weakref.finalize(self, unless_forked, os.getpid(), release, device).atexit = False

    def create_stream(self) -> int:
        """A stream like ONNX Runtime's own: it keeps no order with the default stream.

        One that does could not be captured: while it is, CUDA refuses every thread what runs on the default stream,
        and the capture breaks.
        """
        stream = ctypes.c_void_p()
        with self._current():
            self._call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        return int(stream.value or 0)

    def destroy_stream(self, stream: int) -> None:
        """Give a stream back; what is on it ends first."""
        with self._current():
            self._call("cuStreamDestroy_v2", stream)

    def synchronize(self, stream: int) -> None:
        """Wait for all that has been put on a stream."""
        with self._current():
            self._call("cuStreamSynchronize", stream)

    def copy(self, copies: Sequence[Copy], stream: int) -> None:
        """Put copies from device memory to device memory on a stream."""
        with self._current():
            for target, source, nbytes in copies:
                self._call("cuMemcpyDtoDAsync_v2", target, source, nbytes, stream)

    def copy_to_host(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Put a copy from device memory to the host's on a stream; it has ended after `synchronize`."""
        with self._current():
            self._call("cuMemcpyDtoHAsync_v2", target, source, nbytes, stream)

    def copy_to_device(self, copies: Sequence[Copy], stream: int) -> None:
        """Put copies from the host's memory to the device's on a stream; they have ended after `synchronize`."""
        with self._current():
            for target, source, nbytes in copies:
                self._call("cuMemcpyHtoDAsync_v2", target, source, nbytes, stream)

    def end_capture(self, stream: int) -> bool:
        """Take a stream out of a capture that failed; whether it was in one. Call it in the thread that captured."""
        state = ctypes.c_int()
        graph = ctypes.c_void_p()
        with self._current():
            self._call("cuStreamIsCapturing", stream, ctypes.byref(state))
            if state.value == _NOT_CAPTURING:
                return False
            self._library.cuStreamEndCapture(stream, ctypes.byref(graph))  # an error: the capture is broken
            if graph.value:
                self._call("cuGraphDestroy", graph)
        return True

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Make the device's context the calling thread's, and give it back the one that it had."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            before = ctypes.c_void_p()
            self._call("cuCtxPopCurrent_v2", ctypes.byref(before))

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise OSError(f"the NVIDIA driver answers {name} with error {status}")


def unless_forked(process: int, function: Callable[..., object], *arguments: Any) -> None:
    """Give something back to the driver, at the end of its owner: in a forked child nothing of the driver works.

    Args:
        process: The owner's process.
        function: Gives it back; where that fails, nobody is told.
        arguments: The function's arguments.
    """
    if os.getpid() == process:
        with contextlib.suppress(OSError):
            function(*arguments)
