"""``onnxruntime.IOBinding`` for a session of several groups."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np
import onnx_ir as ir

from ortopt.runtime.onnxruntime_interface.output_memory import in_execution, placed, write
from ortopt.runtime.onnxruntime_internals import (
    NativeValue,
    NativeVector,
    checked_native_value,
    device_of,
    native_device,
    new_binding,
    vector_class,
)
from ortopt.runtime.values.containers import to_numpy
from ortopt.runtime.values.tensors import has_no_array, to_ort, type_text

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.cuda.device import CudaDevice
    from ortopt.runtime.onnxruntime_interface.model_signature import ModelSignature


Target = Union["onnxruntime.OrtValue", tuple[str, int]]
"""Where an output goes: memory, or a device and its number."""


class IOBinding:
    """Inputs and outputs that are bound to memory, for `InferenceSession.run_with_iobinding`; for one thread at a time.

    Args:
        signature: The inputs and outputs of the session's model.
        device: The CUDA device where values may be besides the host's memory.
        providers: The session's execution providers.

    Attributes:
        inputs: What is bound to inputs, by name.
        outputs: What is bound to outputs, by name: a value to write to, or a device and its number.
    """

    def __init__(self, signature: ModelSignature, device: CudaDevice | None, providers: Iterable[str]) -> None:
        self._session = signature.session  # ONNX Runtime asks for it where the binding is given to another session
        self._device = device
        self._kinds = {provider.lower().removesuffix("executionprovider") for provider in providers}
        self._checks = new_binding(self._session)  # binds nothing: it refuses what is wrong
        self.inputs: dict[str, onnxruntime.OrtValue] = {}
        self.outputs: dict[str, Target] = {}
        self._results: dict[str, onnxruntime.OrtValue] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an array to an input. Raises what ONNX Runtime raises, here and below."""
        import onnxruntime

        self._checks.bind_input(name, arr_on_cpu)
        array = np.ascontiguousarray(arr_on_cpu).reshape(np.shape(arr_on_cpu))
        self.inputs[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind memory at an address to an input.

        Raises:
            NotImplementedError: It is a device's where no group runs, or holds a type that DLPack lacks: wrap it into
                an OrtValue and use `bind_ortvalue_input`.
        """
        import onnxruntime

        where = onnxruntime.OrtDevice.make(device_type, device_id)
        if device_type.lower() == "cpu":
            self._checks.bind_input(name, device_of(where), element_type, shape, buffer_ptr)
        self.bind_ortvalue_input(name, self._at(device_type, device_id, element_type, shape, buffer_ptr))

    def bind_ortvalue_input(self, name: str, ortvalue: onnxruntime.OrtValue) -> None:
        """Bind an ``onnxruntime.OrtValue`` to an input."""
        if ortvalue.has_value():
            device, inner = self._device, checked_native_value(ortvalue)
            away = device is not None and device.is_resident(inner)
            # What is on a device would be copied at once, by a session that knows no device. Names are all it looks at.
            self._checks.bind_ortvalue_input(name, to_ort(np.zeros(0, np.float32)) if away else inner)
        self.inputs[name] = ortvalue

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
            NotImplementedError: The memory is a device's where no group runs, or holds a type that DLPack lacks: wrap
                it into an OrtValue and use `bind_ortvalue_output`.
            ValueError: An address comes without a type or a shape.
        """
        import onnxruntime

        if buffer_ptr is None:
            onnxruntime.OrtDevice.make(device_type, device_id)  # is there such a thing?
            self._bind_output(name, (device_type.lower(), device_id))
            return
        if element_type is None or shape is None:
            raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        self._bind_output(name, self._at(device_type, device_id, element_type, shape, buffer_ptr))

    def bind_ortvalue_output(self, name: str, ortvalue: onnxruntime.OrtValue) -> None:
        """Bind an output to an ``onnxruntime.OrtValue``, which is written to."""
        checked_native_value(ortvalue)  # what is none is refused as by ONNX Runtime
        self._bind_output(name, ortvalue)

    def _bind_output(self, name: str, target: Target) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of an output is a str, not {type(name).__name__}")
        self.outputs[name] = target
        self._results.pop(name, None)

    def synchronize_outputs(self) -> None:
        """Nothing waits: a run has ended when it returns."""

    def get_outputs(self) -> list[onnxruntime.OrtValue]:
        """The outputs of the last run, in the order in which they were bound, as ``onnxruntime.OrtValue``.

        Those that have not been run yet are the memory that is bound, or hold nothing.
        """
        return [
            self._results[name] if name in self._results else self._unwritten(name, target)
            for name, target in self.outputs.items()
        ]

    def get_outputs_as_ortvaluevector(self) -> NativeVector:
        """The same as ONNX Runtime's vector."""
        vector = vector_class()()
        for value in self.get_outputs():
            vector.push_back(checked_native_value(value))
        return vector

    def copy_outputs_to_cpu(self) -> list[Any]:
        """The outputs of the last run as arrays."""
        device = self._device
        values = [checked_native_value(value) for value in self.get_outputs()]
        at_host = values if device is None else [device.download(value, "bound output") for value in values]
        return [to_numpy(value) if value.has_value() else None for value in at_host]

    def _unwritten(self, name: str, target: Target) -> onnxruntime.OrtValue:
        import onnxruntime

        if not isinstance(target, tuple):
            return target
        empty = new_binding(self._session)
        empty.bind_output(name, native_device("cpu"))
        return onnxruntime.OrtValue(empty.get_outputs()[0])

    def clear_binding_inputs(self) -> None:
        """Bind no input any more."""
        self._checks.clear_binding_inputs()
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Bind no output any more."""
        self.outputs.clear()
        self._results.clear()

    def _at(self, kind: str, index: int, element_type: Any, shape: Sequence[int], address: int) -> onnxruntime.OrtValue:
        """An OrtValue on memory that is not ONNX Runtime's."""
        import onnxruntime

        kind = kind.lower()
        integer = isinstance(element_type, int)
        dtype = ir.DataType(element_type) if integer else ir.DataType.from_numpy(np.dtype(element_type))
        if kind == "cpu":
            numpy = dtype.numpy()
            memory = (ctypes.c_char * (int(np.prod(shape, dtype=np.int64)) * numpy.itemsize)).from_address(address)
            raw = memoryview(memory).cast("B")
            if not has_no_array(type_text(dtype)):
                return onnxruntime.OrtValue.ortvalue_from_numpy(np.frombuffer(raw, numpy).reshape(tuple(shape)))
            bits = np.frombuffer(raw, np.uint16 if numpy.itemsize == 2 else np.uint8).reshape(tuple(shape))
            return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, dtype.value)
        if self._device is None:
            raise NotImplementedError(f"memory at an address on {kind}, where no group runs: wrap it into an OrtValue")
        from ortopt.runtime.values.tensors import at_address

        return onnxruntime.OrtValue(at_address(kind, index, dtype, shape, address))

    def finish(self, results: Mapping[str, NativeValue]) -> None:
        """Take the results of a run: they go where outputs are bound to.

        Args:
            results: What the bound outputs hold: ONNX Runtime's C++ OrtValues.

        Raises:
            RuntimeError: An output's memory has another type or shape than its result.
        """
        import onnxruntime

        device = self._device
        bound: dict[str, onnxruntime.OrtValue] = {}
        moved = False
        for name, target in self.outputs.items():
            value = results[name]
            if not isinstance(target, tuple):
                moved = write(target, value, device, name, in_execution) or moved
                bound[name] = target
                continue
            on_device = target[0] in self._kinds  # else nothing runs there
            place = native_device(*target) if on_device else native_device("cpu")
            here = placed(value, place, device, f"output {name}")
            moved = moved or here is not value
            bound[name] = onnxruntime.OrtValue(here)
        if moved and device is not None:
            device.synchronize()
        self._results = bound
