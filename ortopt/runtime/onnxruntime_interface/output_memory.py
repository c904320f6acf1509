"""Results that go to memory or a device of the caller's, and what is refused there, in ONNX Runtime's words."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

from ortopt.runtime.onnxruntime_internals import (
    NativeDevice,
    NativeValue,
    checked_native_value,
    native_device,
    size_in_bytes,
    tensor_over,
)
from ortopt.runtime.values.containers import to_numpy
from ortopt.runtime.values.tensors import has_no_array, holds_numbers

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.cuda.device import CudaDevice

Refusal = Callable[[str], Exception]
"""Makes an error of a message."""


def in_execution(message: str) -> Exception:
    """An error in what is bound, as ONNX Runtime tells it."""
    return RuntimeError(f"Error in execution: {message}")


def check_target(target: onnxruntime.OrtValue, declared: onnxruntime.NodeArg, refusal: Refusal) -> None:
    """Refuse memory for an output, an ``onnxruntime.OrtValue``, that certainly does not fit; in ONNX Runtime's words.

    Args:
        target: The memory.
        declared: ``onnxruntime.NodeArg`` of the output.
        refusal: Makes the error.
    """
    if not target.has_value():
        return
    if target.data_type() != declared.type:
        raise refusal(f"Unexpected output data type. Actual: ({target.data_type()}) , expected: ({declared.type})")
    expected = declared.shape
    if target.is_tensor() and expected and len(target.shape()) != len(expected):
        raise refusal(
            f"Invalid rank for output: {declared.name} Got: {len(target.shape())} Expected: {len(expected)}"
            " Please fix either the inputs/outputs or the model."
        )


def write(
    target: onnxruntime.OrtValue, value: NativeValue, device: CudaDevice | None, name: str, refusal: Refusal
) -> bool:
    """Copy a result to memory that is bound to its output.

    Args:
        target: ``onnxruntime.OrtValue``.
        value: ONNX Runtime's C++ OrtValue.
        device: Where values may be besides the host's memory; it must be waited for afterwards.
        name: The output.
        refusal: Makes the error where the memory does not fit.

    Returns:
        Whether anything was copied.
    """
    if not (value.has_value() and value.is_tensor() and target.is_tensor()):
        raise refusal(f"output {name!r}: only tensors are written to bound memory")
    if list(target.shape()) != list(value.shape()):
        raise refusal(
            f"OrtValue shape verification failed. Current shape:{_braced(target)} Requested shape:{_braced(value)}:"
            f" what is bound to output {name!r} must have the shape of each result"
        )
    if target.data_type() != value.data_type():
        raise refusal(f"Unexpected output data type. Actual: ({target.data_type()}) , expected: ({value.data_type()})")
    if not size_in_bytes(value):
        return False
    _fill(target, value, device, name)
    return True


def _braced(value: NativeValue | onnxruntime.OrtValue) -> str:
    return "{" + ",".join(map(str, value.shape())) + "}"


def placed(value: NativeValue, place: NativeDevice, device: CudaDevice | None, name: str) -> NativeValue:
    """A result where it is wanted.

    Args:
        value: The result; one that holds no numbers stays in the host's memory.
        place: ONNX Runtime's C++ object for a device.
        device: Where values may be besides the host's memory; it must be waited for afterwards.
        name: What to call it on the timeline.
    """
    kind = place.device_type()
    if device is not None and (kind, place.device_id()) == (native_device("cuda").device_type(), device.index):
        uploaded: NativeValue = device.upload(value, name)
        return uploaded
    at_host = value if device is None else device.download(value, name)
    if kind == native_device("cpu").device_type() or not holds_numbers(at_host):
        return at_host
    from ortopt.runtime.cuda.capture_gate import GATE

    with GATE:  # it may allocate and copy on CUDA
        return tensor_over(to_numpy(at_host), place)


def _fill(target: onnxruntime.OrtValue, value: NativeValue, device: CudaDevice | None, name: str) -> None:
    """Copy a result to bound memory."""
    if device is not None and device.is_resident(checked_native_value(target)):
        device.accept([checked_native_value(target)])
        device.crossed([] if device.is_resident(value) else [value])
        with device.turn:
            device.fill([checked_native_value(target)], [value])
        return
    at_host = value if device is None else device.download(value, f"output {name}")
    if has_no_array(at_host.data_type()) and target.device_name() == "cpu":
        ctypes.memmove(target.data_ptr(), at_host.data_ptr(), size_in_bytes(at_host))
    else:
        from ortopt.runtime.cuda.capture_gate import GATE

        with GATE:  # another session's device
            target.update_inplace(to_numpy(at_host))
