"""What ortopt uses of ONNX Runtime besides its documented Python API: the C++ module, and private attributes.

ONNX Runtime may change these names in any release. They are named here and nowhere else: the protocols list all that is
used of the C++ classes, mypy holds the callers to them, and a test holds them against the installed ONNX Runtime.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    import onnxruntime

SEEN_WITH: Final = "1.31.1"
"""The release of ONNX Runtime in which all of these names were seen."""

PRIVATE_ATTRIBUTES: Final = {
    "OrtValue": ("_ortvalue", "_get_c_value"),
    "OrtDevice": ("_get_c_device",),
    "IOBinding": ("_session",),
}
"""Private attributes of ONNX Runtime's Python classes that are used, by class."""


class NativeDevice(Protocol):
    """A device: ``OrtDevice`` of the C++ module."""

    def device_type(self) -> int:
        """The kind of device, as a number."""

    def device_id(self) -> int:
        """The number of the device among those of its kind."""


class NativeValue(Protocol):
    """A value of any type: ``OrtValue`` of the C++ module."""

    @staticmethod
    def ortvalue_from_numpy(array: Any, device: NativeDevice) -> NativeValue:
        """A tensor on an array (on the CPU, without a copy), or a copy of it on a device."""

    @staticmethod
    def from_dlpack(capsule: object, is_bool: bool) -> NativeValue:
        """A tensor on the memory of a DLPack capsule."""

    @staticmethod
    def ortvalue_from_shape_and_onnx_type(shape: Sequence[int], element_type: int, device: NativeDevice) -> NativeValue:
        """A tensor with any content."""

    def has_value(self) -> bool:
        """Whether it holds anything: an optional may not."""

    def is_tensor(self) -> bool:
        """Whether it is a dense tensor."""

    def data_type(self) -> str:
        """The type in ONNX's spelling."""

    def element_type(self) -> int:
        """ONNX's number of a tensor's element type."""

    def shape(self) -> list[int]:
        """The sizes of a tensor."""

    def device_name(self) -> str:
        """The kind of device that holds it."""

    def data_ptr(self) -> int:
        """The address of a tensor's first element."""

    def tensor_size_in_bytes(self) -> int:
        """The size of a tensor's memory."""

    def numpy(self) -> Any:
        """A tensor as an array, which shares its memory on the CPU."""

    def update_inplace(self, source: Any) -> None:
        """Copy an array or a value into a tensor."""


class NativeVector(Sequence[NativeValue]):
    """A vector of values: ``OrtValueVector`` of the C++ module."""

    def push_back(self, value: NativeValue) -> None:
        """Append a value."""


class NativeSession(Protocol):
    """A session: ``InferenceSession`` of the C++ module, which the class of the same name in Python wraps."""

    @property
    def inputs_meta(self) -> list[onnxruntime.NodeArg]:
        """The inputs without a default."""

    @property
    def outputs_meta(self) -> list[onnxruntime.NodeArg]:
        """The outputs."""

    @property
    def overridable_initializers(self) -> list[onnxruntime.NodeArg]:
        """The inputs with a default."""

    @property
    def model_meta(self) -> onnxruntime.ModelMetadata:
        """The model's metadata."""

    @property
    def input_meminfos(self) -> Sequence[onnxruntime.OrtMemoryInfo]:
        """Where each input is expected."""

    @property
    def output_meminfos(self) -> Sequence[onnxruntime.OrtMemoryInfo]:
        """Where each output is put."""

    @property
    def session_options(self) -> onnxruntime.SessionOptions:
        """A copy of the options that it was made with."""

    @property
    def get_profiling_start_time_ns(self) -> int:
        """The start of its profile."""

    def initialize_session(
        self, providers: Sequence[str], provider_options: Sequence[Mapping[str, str]], disabled_optimizers: set[str]
    ) -> None:
        """Make the kernels."""

    def run(
        self, output_names: Sequence[str], feeds: Mapping[str, Any], options: onnxruntime.RunOptions | None
    ) -> list[Any]:
        """Run from and to Python objects."""

    def run_with_ort_values(
        self, feeds: Mapping[str, NativeValue], output_names: Sequence[str], options: onnxruntime.RunOptions | None
    ) -> NativeVector:
        """Run from and to values."""

    def run_with_ortvaluevector(
        self,
        options: onnxruntime.RunOptions,
        feed_names: Sequence[str],
        feeds: NativeVector,
        fetch_names: Sequence[str],
        fetches: NativeVector,
        fetch_devices: Sequence[NativeDevice],
    ) -> None:
        """Run from and to vectors of values."""

    def run_with_iobinding(self, binding: NativeBinding, options: onnxruntime.RunOptions | None) -> None:
        """Run from and to bound memory."""

    def end_profiling(self) -> str:
        """End its profile; the file."""

    def get_providers(self) -> list[str]:
        """Its execution providers."""

    def get_tuning_results(self) -> list[Any]:
        """Results of tuning kernels."""

    def set_tuning_results(self, results: Sequence[Any], error_on_invalid: bool) -> None:
        """Use results of tuning kernels."""

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Change options of execution providers."""

    def release_captured_graph(self, graph_annotation_id: int) -> None:
        """Release a graph that a provider has captured."""

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """The nodes of each provider."""

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], dtype: Any, device: NativeDevice
    ) -> NativeValue:
        """A tensor from an allocator of the session, by numpy's element type."""

    def create_ortvalue_from_shape_and_onnx_type(
        self, shape: Sequence[int], element_type: int, device: NativeDevice
    ) -> NativeValue:
        """A tensor from an allocator of the session, by ONNX's element type."""


class NativeBinding(Protocol):
    """Memory bound to a session's inputs and outputs: ``SessionIOBinding`` of the C++ module."""

    def bind_input(self, name: str, *where: Any) -> None:
        """Bind an array, or memory at an address."""

    def bind_ortvalue_input(self, name: str, value: NativeValue) -> None:
        """Bind a value to an input."""

    def bind_output(self, name: str, device: NativeDevice) -> None:
        """Bind an output to a device."""

    def bind_ortvalue_output(self, name: str, value: NativeValue) -> None:
        """Bind a value to an output."""

    def clear_binding_inputs(self) -> None:
        """Bind no input any more."""

    def get_outputs(self) -> NativeVector:
        """What is bound to the outputs."""

    def copy_outputs_to_cpu(self) -> list[Any]:
        """What is bound to the outputs, as Python objects."""


class NativeModule(Protocol):
    """The C++ module, ``onnxruntime.capi.onnxruntime_pybind11_state``."""

    OrtValue: type[NativeValue]
    OrtValueVector: type[NativeVector]
    SessionIOBinding: Callable[[NativeSession], NativeBinding]
    InferenceSession: Callable[[onnxruntime.SessionOptions, bytes, bool, bool], NativeSession]
    Fail: type[Exception]
    InvalidArgument: type[Exception]
    EPFail: type[Exception]


CLASSES: Final = {
    "OrtDevice": NativeDevice,
    "OrtValue": NativeValue,
    "OrtValueVector": NativeVector,
    "InferenceSession": NativeSession,
    "SessionIOBinding": NativeBinding,
}
"""What is used of each class of the C++ module."""


@functools.cache
def native() -> NativeModule:
    """ONNX Runtime's C++ module, imported when it is first needed."""
    from ortopt.analysis.providers import check_distributions

    check_distributions()
    from onnxruntime.capi import onnxruntime_pybind11_state

    return onnxruntime_pybind11_state  # type: ignore[no-any-return]


def open_native_session(
    options: onnxruntime.SessionOptions,
    model: bytes,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    provider_options: Sequence[Mapping[str, str]] = ({},),
    disabled_optimizers: set[str] = frozenset(),  # type: ignore[assignment]
) -> NativeSession:
    """A session of the C++ module; on the CPU, if nothing else is said."""
    session = uninitialized_session(options, model)
    session.initialize_session(list(providers), list(provider_options), set(disabled_optimizers))
    return session


def uninitialized_session(options: onnxruntime.SessionOptions, model: bytes) -> NativeSession:
    """A session of the C++ module that has no kernels yet."""
    return native().InferenceSession(options, model, False, False)


@functools.cache
def native_device(name: str, index: int = 0) -> NativeDevice:
    """The C++ object for a device: ``cpu``, ``cuda``."""
    import onnxruntime

    return device_of(onnxruntime.OrtDevice.make(name, index))


def device_of(device: onnxruntime.OrtDevice) -> NativeDevice:
    """The C++ object in an ``onnxruntime.OrtDevice``."""
    return device._get_c_device()  # type: ignore[no-any-return]


def native_value(value: Any) -> NativeValue | None:
    """The C++ object in an ``onnxruntime.OrtValue``; None for anything else."""
    return getattr(value, "_ortvalue", None)


def checked_native_value(value: Any) -> NativeValue:
    """The C++ object in an ``onnxruntime.OrtValue``.

    Raises:
        AttributeError: It is something else; ONNX Runtime refuses it in the same words.
    """
    return value._get_c_value()  # type: ignore[no-any-return]


def session_of_binding(binding: Any) -> NativeSession:
    """The C++ session that an ``onnxruntime.IOBinding`` was made for, and one of ortopt's too."""
    return binding._session  # type: ignore[no-any-return]


def failure(message: str) -> Exception:
    """ONNX Runtime's error of something that goes wrong in a run."""
    return native().Fail(f"[ONNXRuntimeError] : 1 : FAIL : {message}")


def invalid_argument(message: str) -> Exception:
    """ONNX Runtime's error of an argument that does not fit the model."""
    return native().InvalidArgument(f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : {message}")
