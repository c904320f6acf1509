"""``onnxruntime.IOBinding`` for a session of several groups."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ortopt.runtime.values import as_value, on_cpu, to_numpy

if TYPE_CHECKING:
    from ortopt.runtime.cuda_device import CudaDevice
    from ortopt.runtime.session import InferenceSession


class IOBinding:
    """Inputs and outputs that are bound to memory, for `InferenceSession.run_with_iobinding`; for one thread at a time.

    Args:
        session: The session.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}
        self._results: list[Any] = []

    @property
    def inputs(self) -> dict[str, Any]:
        """What is bound to inputs, by name: ``onnxruntime.OrtValue``."""
        return self._inputs

    @property
    def outputs(self) -> dict[str, Any]:
        """What is bound to outputs, by name: an ``onnxruntime.OrtValue`` to write to, or a device and its number."""
        return self._outputs

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an array to an input."""
        import onnxruntime

        array = np.ascontiguousarray(arr_on_cpu).reshape(np.shape(arr_on_cpu))
        self._inputs[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind memory at an address to an input.

        Raises:
            NotImplementedError: It is not the CPU's: wrap it into an OrtValue and use `bind_ortvalue_input`.
        """
        self._inputs[name] = _at(device_type, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind an ``onnxruntime.OrtValue`` to an input."""
        self._inputs[name] = ortvalue

    def synchronize_inputs(self) -> None:
        """Nothing waits: what is bound is there."""

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to a device, or to memory at an address.

        Raises:
            NotImplementedError: The memory is not the CPU's: wrap it into an OrtValue and use `bind_ortvalue_output`.
        """
        if buffer_ptr is None:
            self._outputs[name] = (device_type, device_id)
            return
        self._outputs[name] = _at(device_type, element_type, shape or (), buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Bind an output to an ``onnxruntime.OrtValue``, which is written to."""
        self._outputs[name] = ortvalue

    def synchronize_outputs(self) -> None:
        """Nothing waits: a run has ended when it returns."""

    def get_outputs(self) -> list[Any]:
        """The outputs of the last run, in the order in which they were bound, as ``onnxruntime.OrtValue``."""
        return list(self._results)

    def get_outputs_as_ortvaluevector(self) -> Any:
        """The same as ONNX Runtime's vector."""
        from onnxruntime.capi import onnxruntime_pybind11_state as binding

        vector = binding.OrtValueVector()
        for value in self._results:
            vector.push_back(value._ortvalue)
        return vector

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run as arrays."""
        return [to_numpy(on_cpu(value._ortvalue)) for value in self._results]

    def clear_binding_inputs(self) -> None:
        """Bind no input any more."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Bind no output any more."""
        self._outputs.clear()
        self._results = []

    def finish(self, results: dict[str, Any], device: CudaDevice | None) -> None:
        """Take the results of a run, as a plan's values: they go where outputs are bound to.

        Args:
            results: What the bound outputs hold.
            device: Where values may be besides the host's memory.

        Raises:
            ValueError: An output's memory has another type or shape than its result.
        """
        import onnxruntime

        found = []
        filled = False
        for name, target in self._outputs.items():
            value = as_value(results[name], name)
            if isinstance(target, tuple):
                found.append(onnxruntime.OrtValue(_placed(value, target, device, name)))
                continue
            if target.data_type() != value.data_type() or list(target.shape()) != list(value.shape()):
                raise ValueError(
                    f"output {name!r} is {value.data_type()}{list(value.shape())}; what is bound to it is"
                    f" {target.data_type()}{list(target.shape())}"
                )
            if value.tensor_size_in_bytes():
                _fill(target, value, device, name)
                filled = True
            found.append(target)
        if filled and device is not None:
            device.synchronize()
        self._results = found


def _placed(value: Any, place: tuple[str, int], device: CudaDevice | None, name: str) -> Any:
    """A result on the device that its output is bound to."""
    import onnxruntime

    kind, index = place
    if device is not None and kind == "cuda" and index == device.index:
        return device.upload(value, f"output {name}")
    at_host = value if device is None else device.download(value, f"output {name}")
    if kind == "cpu":
        return at_host
    return onnxruntime.OrtValue.ortvalue_from_numpy(to_numpy(at_host), kind, index)._ortvalue


def _fill(target: Any, value: Any, device: CudaDevice | None, name: str) -> None:
    """Copy a result to bound memory."""
    if device is None:
        target.update_inplace(to_numpy(value))
    elif device.is_resident(target._ortvalue):
        device.crossed([] if device.is_resident(value) else [value])
        with device.lock:
            device.fill([target._ortvalue], [value])
    else:
        target.update_inplace(to_numpy(device.download(value, f"output {name}")))


def _at(device_type: str, element_type: Any, shape: Sequence[int], address: int) -> Any:
    """An OrtValue on memory of the CPU that somebody else owns."""
    import onnxruntime

    if device_type.lower() != "cpu":
        raise NotImplementedError(f"memory at an address on {device_type}: wrap it into an OrtValue and bind that")
    dtype = ir.DataType(element_type).numpy() if isinstance(element_type, int) else np.dtype(element_type)
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_char * count).from_address(address)
    array = np.frombuffer(memoryview(memory).cast("B"), dtype).reshape(tuple(shape))
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


__all__ = ["IOBinding"]
