"""What runs a model, as types: ONNX Runtime's session, and what a session of several groups has of its methods."""

# ruff: noqa: D102 -- InferenceSession documents the methods

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.onnxruntime_internals import NativeDevice, NativeVector


class RunnableSession(Protocol):
    """What runs a model; `InferenceSession` documents the methods."""

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
        /,
    ) -> list[Any]: ...

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, onnxruntime.OrtValue],
        run_options: onnxruntime.RunOptions | None,
        /,
    ) -> list[onnxruntime.OrtValue]: ...

    def run_with_ortvaluevector(
        self,
        run_options: onnxruntime.RunOptions,
        feed_names: Sequence[str],
        feeds: NativeVector,
        fetch_names: Sequence[str],
        fetches: NativeVector,
        fetch_devices: Sequence[NativeDevice],
        /,
    ) -> None: ...

    def io_binding(self) -> Any: ...

    def run_with_iobinding(self, iobinding: Any, run_options: onnxruntime.RunOptions | None, /) -> None: ...

    def get_inputs(self) -> Sequence[onnxruntime.NodeArg]: ...

    def get_outputs(self) -> Sequence[onnxruntime.NodeArg]: ...

    def get_overridable_initializers(self) -> Sequence[onnxruntime.NodeArg]: ...

    def get_modelmeta(self) -> onnxruntime.ModelMetadata: ...

    def get_providers(self) -> Sequence[str]: ...

    def get_provider_options(self) -> Mapping[str, dict[str, Any]]: ...

    def get_session_options(self) -> onnxruntime.SessionOptions: ...

    def get_input_memory_infos(self) -> Sequence[onnxruntime.OrtMemoryInfo]: ...

    def get_output_memory_infos(self) -> Sequence[onnxruntime.OrtMemoryInfo]: ...

    def get_input_epdevices(self) -> Sequence[onnxruntime.OrtEpDevice | None]: ...

    def get_profiling_start_time_ns(self) -> int: ...

    def end_profiling(self) -> str: ...

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int, vendor_id: int, /
    ) -> onnxruntime.OrtValue: ...

    def release_captured_graph(self, graph_annotation_id: int, /) -> None: ...

    def set_ep_dynamic_options(self, options: Mapping[str, str], /) -> None: ...

    def get_tuning_results(self) -> Sequence[Any]: ...

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool) -> None: ...

    def get_provider_graph_assignment_info(self) -> Sequence[Any]: ...


class WholeSession(RunnableSession, Protocol):
    """``onnxruntime.InferenceSession``, which has the whole model."""

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: onnxruntime.RunOptions | None,
        /,
    ) -> None: ...
