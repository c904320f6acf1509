"""What ortopt uses of ONNX Runtime besides its documented Python API: the C++ module, and private attributes.

ONNX Runtime may change these names in any release. They are named here and nowhere else. The protocols list what every
release has of what is used of the C++ classes: mypy holds the callers to them, and a test holds them against the
installed ONNX Runtime. What only some releases have is reached by functions, which do without it or say which release
has it (`FEATURES`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import onnx

from ortopt.analysis.providers import check_installation, release_of
from ortopt.evaluation.sessions import use_one_thread

if TYPE_CHECKING:
    import onnxruntime


SEEN_WITH: Final = "1.31.1"
"""The release of ONNX Runtime in which all of these names were seen."""

PRIVATE_ATTRIBUTES: Final = {
    "OrtValue": ("_ortvalue", "_get_c_value"),
    "OrtDevice": ("_get_c_device",),
    "IOBinding": ("_iobinding",),
    "InferenceSession": ("_sess",),
}
"""Private attributes of ONNX Runtime's Python classes that are used, by class; of ``IOBinding`` also `_SESSION`."""

_SESSION: Final = "_session"  # what newer releases' bindings know their session by, and those of ortopt in all


class Feature(NamedTuple):
    """What not every supported release of ONNX Runtime has.

    Attributes:
        owner: The class of the C++ module; empty for the module itself.
        name: The attribute.
        release: The first release that has it.
        lost: What does not work without it, for people; empty where nothing is lost.
    """

    owner: str
    name: str
    release: str
    lost: str


FEATURES: Final = (
    Feature("OrtValue", "from_dlpack", "1.21", "arrays in groups without a copy, and bound addresses of a device"),
    Feature("OrtValue", "tensor_size_in_bytes", "1.23", ""),
    Feature("InferenceSession", "input_meminfos", "1.23", "values that stay on the GPU between groups"),
    Feature("InferenceSession", "output_meminfos", "1.23", "one arena for the sessions of all groups"),
    Feature("SessionOptions", "use_per_session_threads", "1.23", "one thread pool for all sessions"),
    Feature("", "get_ep_devices", "1.23", ""),
    Feature("InferenceSession", "get_provider_graph_assignment_info", "1.24", "asking which provider has which nodes"),
    Feature("InferenceSession", "set_ep_dynamic_options", "1.24", "options of providers that change in use"),
    Feature("InferenceSession", "create_ortvalue_from_shape_and_type", "1.30", "tensors of a session's allocators"),
    Feature("InferenceSession", "create_ortvalue_from_shape_and_onnx_type", "1.30", ""),
    Feature("InferenceSession", "release_captured_graph", "1.30", "the release of a caller's captured graphs"),
)
"""What is used where the installed release has it: of these names the functions below know, and nobody else."""

DLPACK_BOOL: Final = 6
"""DLPack's code of Booleans. Before 1.32, ONNX Runtime reads them as bytes, and is told besides that they are none."""


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

    def numpy(self) -> Any:
        """A tensor as an array, which shares its memory on the CPU."""

    def update_inplace(self, source: Any) -> None:
        """Copy an array into a tensor; or a value, see `copies_from_values`."""


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
    """ONNX Runtime's C++ module, imported when it is first needed; other modules use the functions below."""
    check_installation()
    from onnxruntime.capi import onnxruntime_pybind11_state

    return onnxruntime_pybind11_state  # type: ignore[no-any-return]


# What the installed release has


def missing_features() -> tuple[Feature, ...]:
    """What the installed ONNX Runtime lacks of `FEATURES`."""
    return tuple(feature for feature in FEATURES if not _has(feature.owner, feature.name))


@functools.cache
def _has(owner: str, name: str) -> bool:
    return hasattr(getattr(native(), owner) if owner else native(), name)


def optional_attribute(owner: Any, name: str, feature: str = "") -> Any:
    """An attribute of a session or another object of ONNX Runtime that not every supported release has.

    Args:
        owner: The object.
        name: The attribute.
        feature: The name in `FEATURES` that it comes with; the attribute's own, if empty.

    Raises:
        AttributeError: The installed release lacks it; the message says which one has it.
    """
    try:
        return getattr(owner, name)
    except AttributeError as error:
        import onnxruntime

        release = next((known.release for known in FEATURES if known.name == (feature or name)), "")
        since = f": ONNX Runtime {release} and newer have it" if release else ""
        raise AttributeError(f"ONNX Runtime {onnxruntime.__version__} has no {name}{since}") from error


# Values


@functools.cache
def value_class() -> type[NativeValue]:
    """The C++ class of values."""
    return native().OrtValue


@functools.cache
def vector_class() -> type[NativeVector]:
    """The C++ class of vectors of values."""
    return native().OrtValueVector


def tensor_over(array: Any, device: NativeDevice) -> NativeValue:
    """A tensor on an array, which must outlive it; or a copy of it on another device than the CPU."""
    return value_class().ortvalue_from_numpy(array, device)


def owning_tensor(array: Any) -> NativeValue:
    """A tensor on the CPU that keeps an array alive and shares its memory; a copy where this ONNX Runtime cannot.

    Args:
        array: A contiguous array, writable, of Booleans or of numbers that DLPack has.
    """
    # Of no elements there is nothing to share, and 1.21 to 1.24 take the strides of 0 that numpy gives them for gaps.
    if not array.size or not _has("OrtValue", "from_dlpack"):
        cpu = native_device("cpu")
        value = empty_tensor(array.shape, tensor_over(array, cpu).element_type(), cpu)
        value.update_inplace(array)
        return value
    is_bool = array.dtype.kind == "b"
    as_bytes = is_bool and not reads_dlpack_bools()
    return tensor_of_capsule((array.view("u1") if as_bytes else array).__dlpack__(), is_bool=is_bool)


@functools.cache
def reads_dlpack_bools() -> bool:
    """Whether DLPack's own code for Booleans is read (1.32)."""
    import numpy as np

    try:
        native().OrtValue.from_dlpack(np.zeros(1, np.uint8).__dlpack__(), False)  # type: ignore[attr-defined]
    except TypeError:
        return True
    return False


def tensor_of_capsule(capsule: object, *, is_bool: bool) -> NativeValue:
    """A tensor on the memory of a DLPack capsule.

    Args:
        capsule: The capsule; where `reads_dlpack_bools` says no, Booleans are bytes in it.
        is_bool: Whether it holds Booleans.

    Raises:
        NotImplementedError: This ONNX Runtime has no DLPack.
    """
    if not _has("OrtValue", "from_dlpack"):
        raise NotImplementedError(
            "memory that is not ONNX Runtime's needs ONNX Runtime 1.21 or newer: wrap it into an OrtValue"
        )
    flags = () if reads_dlpack_bools() else (is_bool,)
    return value_class().from_dlpack(capsule, *flags)  # type: ignore[attr-defined, no-any-return]


def adopted(tensor: Any) -> onnxruntime.OrtValue:
    """An ``onnxruntime.OrtValue`` that shares the memory of another library's tensor, and keeps it alive.

    Where this ONNX Runtime has no DLPack, it is a copy of what is in the host's memory.
    """
    import numpy as np
    import onnxruntime

    public = getattr(onnxruntime.OrtValue, "from_dlpack", None)  # 1.26
    if public is not None:
        return public(tensor)
    if _has("OrtValue", "from_dlpack"):
        dtype = getattr(tensor, "dtype", None)
        is_bool = getattr(dtype, "name", str(dtype)) in {"bool", "bool_", "torch.bool"}
        try:
            return onnxruntime.OrtValue(tensor_of_capsule(tensor.__dlpack__(), is_bool=is_bool))
        except RuntimeError:
            if np.from_dlpack(tensor).size:  # see `owning_tensor`
                raise
    return onnxruntime.OrtValue(owning_tensor(np.array(np.from_dlpack(tensor))))


def empty_tensor(shape: Sequence[int], element_type: int, device: NativeDevice) -> NativeValue:
    """A tensor with any content, by ONNX's number of the element type."""
    return value_class().ortvalue_from_shape_and_onnx_type(list(shape), element_type, device)


def copies_from_values() -> bool:
    """Whether a tensor's ``update_inplace`` takes another value (1.26): before, it takes arrays only."""
    import onnxruntime

    return release_of(onnxruntime.__version__) >= (1, 26)


def size_in_bytes(value: NativeValue) -> int:
    """The size of a tensor's memory."""
    if _has("OrtValue", "tensor_size_in_bytes"):
        return int(value.tensor_size_in_bytes())  # type: ignore[attr-defined]
    import onnx_ir as ir

    return math.ceil(math.prod(value.shape()) * ir.DataType(value.element_type()).itemsize)


# Sessions


def open_native_session(options: onnxruntime.SessionOptions, model: bytes | onnx.ModelProto) -> NativeSession:
    """A session of the C++ module on the CPU."""
    session = uninitialized_session(options, model if isinstance(model, bytes) else model.SerializeToString())
    session.initialize_session(["CPUExecutionProvider"], [{}], set())
    return session


def uninitialized_session(options: onnxruntime.SessionOptions, model: bytes) -> NativeSession:
    """A session of the C++ module that has no kernels yet."""
    return native().InferenceSession(options, model, False, False)


def new_binding(session: NativeSession) -> NativeBinding:
    """A binding of a session, which binds nothing yet."""
    return native().SessionIOBinding(session)


def lists_are_copied() -> bool:
    """Whether a session copies the arrays of a list that it is given (1.26): else results lie in memory of theirs."""
    import onnxruntime

    return release_of(onnxruntime.__version__) >= (1, 26)


def folders_are_named() -> bool:
    """Whether the folder of a model's external data can be told to a session (1.21)."""
    import onnxruntime

    return release_of(onnxruntime.__version__) >= (1, 21)


def tells_memories() -> bool:
    """Whether sessions say where their inputs and outputs are (1.23)."""
    return _has("InferenceSession", "input_meminfos")


def input_memories(session: NativeSession) -> Sequence[onnxruntime.OrtMemoryInfo]:
    """Where a session expects each input. Raises AttributeError where it cannot say (`tells_memories`)."""
    return optional_attribute(session, "input_meminfos")  # type: ignore[no-any-return]


def output_memories(session: NativeSession) -> Sequence[onnxruntime.OrtMemoryInfo]:
    """Where a session puts each output. Raises AttributeError where it cannot say (`tells_memories`)."""
    return optional_attribute(session, "output_meminfos")  # type: ignore[no-any-return]


def memory_names(
    of: Callable[[NativeSession], Sequence[onnxruntime.OrtMemoryInfo]], session: NativeSession
) -> list[str] | None:
    """The names of the memories that `input_memories` or `output_memories` tells of; None where it cannot say."""
    try:
        return [memory.name for memory in of(session)]
    except AttributeError:
        return None


# Devices, and what is wrapped in Python


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


def session_of_binding(binding: Any) -> NativeSession | None:
    """The C++ session that an ``onnxruntime.IOBinding`` was made for, and one of ortopt's too.

    None where ONNX Runtime's do not tell, in older releases.

    Raises:
        AttributeError: It is something else; ONNX Runtime refuses it in the same words.
    """
    known: NativeSession | None = getattr(binding, _SESSION, None)
    return known if known is not None or binding._iobinding else None


def native_session(whole: Any) -> NativeSession:
    """The C++ session in an ``onnxruntime.InferenceSession``."""
    return whole._sess  # type: ignore[no-any-return]


# Errors


def failure(message: str) -> Exception:
    """ONNX Runtime's error of something that goes wrong in a run."""
    return native().Fail(f"[ONNXRuntimeError] : 1 : FAIL : {message}")


def invalid_argument(message: str) -> Exception:
    """ONNX Runtime's error of an argument that does not fit the model."""
    return native().InvalidArgument(f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : {message}")


def refusals() -> tuple[type[Exception], type[Exception]]:
    """ONNX Runtime's errors of an argument that does not fit, and of something else that goes wrong."""
    return native().InvalidArgument, native().Fail


def provider_failure() -> type[Exception]:
    """ONNX Runtime's error of an execution provider that fails."""
    return native().EPFail


def small_model(name: str) -> onnx.ModelProto:
    """A model for an auxiliary session, without anything in it.

    Args:
        name: The graph's name.
    """
    proto = onnx.ModelProto(ir_version=10)
    proto.opset_import.add(domain="", version=21)  # Reshape of every type, Optional
    proto.graph.name = name
    return proto


def add_constant(model: onnx.ModelProto, name: str) -> None:
    """Give a model a Constant as an output: a model has a node.

    Args:
        model: The model.
        name: The output's name.
    """
    model.graph.node.append(onnx.helper.make_node("Constant", [], [name], value_int=1))
    model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, []))


def auxiliary_session(model: bytes | onnx.ModelProto, entries: Mapping[str, str] | None = None) -> NativeSession:
    """A session on the CPU, without messages and threads.

    Args:
        model: The model.
        entries: Configuration entries.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    use_one_thread(options)
    options.log_severity_level = 4
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    return open_native_session(options, model)
