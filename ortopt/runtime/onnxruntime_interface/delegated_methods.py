"""The methods of ONNX Runtime's session that tell of a model and manage a session: whatever runs the model answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortopt.runtime.onnxruntime_internals import native_session, optional_attribute

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.onnxruntime_interface.grouped_session import GroupedSession
    from ortopt.runtime.onnxruntime_internals import NativeSession


class DelegatedMethods(ABC):
    """The base of `InferenceSession`."""

    @abstractmethod
    def _alive(self) -> onnxruntime.InferenceSession | GroupedSession:
        """What runs the model.

        Raises:
            UsageError: The session must not be used any more.
        """

    # Private to ONNX Runtime's session, and read of it by others all the same: `onnxruntime.IOBinding`, Optimum.

    @property
    def _sess(self) -> NativeSession:
        """The C++ session, for ``onnxruntime.IOBinding(session)``; of several groups, one that has their interface."""
        return native_session(self._alive())

    @property
    def _sess_options(self) -> onnxruntime.SessionOptions:
        return self.get_session_options()

    def get_inputs(self) -> list[onnxruntime.NodeArg]:
        """``onnxruntime.NodeArg`` of each input."""
        return list(self._alive().get_inputs())

    def get_outputs(self) -> list[onnxruntime.NodeArg]:
        """``onnxruntime.NodeArg`` of each output."""
        return list(self._alive().get_outputs())

    def get_overridable_initializers(self) -> list[onnxruntime.NodeArg]:
        """``onnxruntime.NodeArg`` of each input that has a default."""
        return list(self._alive().get_overridable_initializers())

    def get_modelmeta(self) -> onnxruntime.ModelMetadata:
        """``onnxruntime.ModelMetadata``."""
        return self._alive().get_modelmeta()

    def get_providers(self) -> list[str]:
        """The execution providers that groups may run on, in order."""
        return list(self._alive().get_providers())

    def get_provider_options(self) -> dict[str, dict[str, Any]]:
        """The options of each."""
        return dict(self._alive().get_provider_options())

    def get_session_options(self) -> onnxruntime.SessionOptions:
        """``onnxruntime.SessionOptions``, as they were given."""
        return self._alive().get_session_options()

    def get_input_memory_infos(self) -> list[onnxruntime.OrtMemoryInfo]:
        """``onnxruntime.OrtMemoryInfo`` of each input: where it is expected."""
        return list(optional_attribute(self._alive(), "get_input_memory_infos", "input_meminfos")())

    def get_output_memory_infos(self) -> list[onnxruntime.OrtMemoryInfo]:
        """The same for the outputs."""
        return list(optional_attribute(self._alive(), "get_output_memory_infos", "output_meminfos")())

    def get_input_epdevices(self) -> list[onnxruntime.OrtEpDevice | None]:
        """``onnxruntime.OrtEpDevice`` of each input."""
        return list(optional_attribute(self._alive(), "get_input_epdevices", "get_ep_devices")())

    def get_profiling_start_time_ns(self) -> int:
        """When ONNX Runtime's profiling started, in nanoseconds; 0 without profiling."""
        return int(self._alive().get_profiling_start_time_ns())

    def end_profiling(self) -> str:
        """End ONNX Runtime's profile; its file. With several groups it has all their events, each with its group."""
        return str(self._alive().end_profiling())

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> onnxruntime.OrtValue:
        """An ``onnxruntime.OrtValue`` from an allocator of this session. Raises what ONNX Runtime raises."""
        create = optional_attribute(self._alive(), "create_ortvalue_from_shape_and_type")
        made: onnxruntime.OrtValue = create(shape, element_type, device_type, device_id, vendor_id)
        return made

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Release a graph that a provider captured for the caller; those of ortopt's own are not among them."""
        optional_attribute(self._alive(), "release_captured_graph")(graph_annotation_id)

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Change options of execution providers while they run: in all groups, those too that come later."""
        optional_attribute(self._alive(), "set_ep_dynamic_options")(dict(options))

    def get_tuning_results(self) -> list[Any]:
        """What providers have tuned: of all groups, one after the other."""
        return list(self._alive().get_tuning_results())

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Let all groups, those too that come later, have what was tuned before."""
        self._alive().set_tuning_results(results, error_on_invalid=error_on_invalid)

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """Which provider has which nodes: of all groups, one after the other.

        Raises:
            onnxruntime.capi.onnxruntime_pybind11_state.Fail: The session options did not ask for it.
        """
        return list(optional_attribute(self._alive(), "get_provider_graph_assignment_info")())
