"""What ``onnxruntime.InferenceSession`` has besides running and asking for names, for a session of several groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortopt.analysis.providers import CPU
from ortopt.runtime.onnxruntime_internals import (
    NativeSession,
    device_of,
    input_memories,
    optional_attribute,
    output_memories,
)

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.execution.group_runner import GroupContext
    from ortopt.runtime.onnxruntime_interface.model_signature import ModelSignature


class ManagementMethods:
    """The base of `GroupedSession`: each method asks the signature's session, or all groups'."""

    signature: ModelSignature
    context: GroupContext

    def get_input_memory_infos(self) -> list[onnxruntime.OrtMemoryInfo]:
        """``onnxruntime.OrtMemoryInfo`` of each input: where it is expected."""
        return list(input_memories(self.signature.session))

    def get_output_memory_infos(self) -> list[onnxruntime.OrtMemoryInfo]:
        """The same for the outputs."""
        return list(output_memories(self.signature.session))[: len(self.signature.outputs)]

    def get_input_epdevices(self) -> list[onnxruntime.OrtEpDevice | None]:
        """``onnxruntime.OrtEpDevice`` of each input: the CPU's, from which groups take what they need."""
        import onnxruntime

        cpu = next(
            (device for device in optional_attribute(onnxruntime, "get_ep_devices")() if device.ep_name == CPU), None
        )
        return [cpu] * len(self.signature.inputs)

    def get_profiling_start_time_ns(self) -> int:
        """When ONNX Runtime's profiling started, in nanoseconds; 0 without profiling."""
        return self.context.maker.profiles.start_ns

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> onnxruntime.OrtValue:
        """An ``onnxruntime.OrtValue`` from an allocator of this session. Raises what ONNX Runtime raises."""
        import onnxruntime

        by_number = isinstance(element_type, int)
        name = "create_ortvalue_from_shape_and_onnx_type" if by_number else "create_ortvalue_from_shape_and_type"
        first: Exception | None = None
        for session in (self.signature.session, *self._sessions()):
            create = optional_attribute(session, name)
            where = device_of(onnxruntime.OrtDevice.make(device_type, device_id, vendor_id))
            try:
                from ortopt.runtime.cuda.capture_gate import GATE

                with GATE.use:  # it may be CUDA's
                    return onnxruntime.OrtValue(create(shape, element_type, where), session=session)
            except RuntimeError as error:  # no allocator of that device
                first = first or error
        assert first is not None
        raise first

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Release a graph that a provider captured for the caller; those of ortopt's own are not among them."""
        found = [self.signature.session, *self._sessions()]
        releases = [optional_attribute(session, "release_captured_graph") for session in found]
        for release in releases[1:]:
            release(graph_annotation_id)

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Change options of execution providers while they run: in all groups, those too that come later."""
        changed = dict(options)

        def change(session: NativeSession) -> None:
            optional_attribute(session, "set_ep_dynamic_options")(changed)

        change(self.signature.session)
        self.context.maker.of_all(f"options {sorted(changed)}", change)

    def get_tuning_results(self) -> list[Any]:
        """What providers have tuned: of all groups, one after the other."""
        return [result for session in self._all_sessions() for result in session.get_tuning_results()]

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Let all groups, those too that come later, have what was tuned before."""
        tuned = list(results)
        self.signature.session.set_tuning_results(tuned, error_on_invalid)
        self.context.maker.of_all("tuning results", lambda session: session.set_tuning_results(tuned, error_on_invalid))

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """Which provider has which nodes: of all groups, one after the other.

        Raises:
            onnxruntime.capi.onnxruntime_pybind11_state.Fail: The session options did not ask for it.
        """
        sessions = self._all_sessions() or [self.signature.session]
        asked = [optional_attribute(session, "get_provider_graph_assignment_info") for session in sessions]
        return [part for ask in asked for part in ask()]

    def _sessions(self) -> list[NativeSession]:
        """The C++ sessions of groups that have been made."""
        return [session for group in self.context.groups for session in group.sessions()]

    def _all_sessions(self) -> list[NativeSession]:
        """The same, after all groups of which the types are known have got one."""
        for group in self.context.groups:
            group.prepare()
        return self._sessions()
