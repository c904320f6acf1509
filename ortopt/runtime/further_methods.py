"""What ``onnxruntime.InferenceSession`` has besides running and asking for names, for a session of several groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ortopt.analysis.providers import CPU
from ortopt.errors import UsageError
from ortopt.runtime.iobinding import placed

if TYPE_CHECKING:
    from ortopt.runtime.groups import Workshop
    from ortopt.runtime.interface import Interface


class FurtherMethods:
    """The base of `InferenceSession`: each method asks the whole session, the interface's session, or all groups'."""

    _whole: Any
    _unusable: str | None
    _interface: Interface
    _workshop: Workshop

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """As `run`, from and to ``onnxruntime.OrtValue``."""
        raise NotImplementedError

    def get_input_memory_infos(self) -> list[Any]:
        """``onnxruntime.OrtMemoryInfo`` of each input: where it is expected."""
        return list(self._alive().get_input_memory_infos() if self._whole else self._interface.session.input_meminfos)

    def get_output_memory_infos(self) -> list[Any]:
        """The same for the outputs."""
        if self._whole is not None:
            return list(self._alive().get_output_memory_infos())
        return list(self._interface.session.output_meminfos)[: len(self._interface.outputs)]

    def get_input_epdevices(self) -> list[Any]:
        """``onnxruntime.OrtEpDevice`` of each input: the CPU's, from which groups take what they need."""
        if self._whole is not None:
            return list(self._alive().get_input_epdevices())
        import onnxruntime

        cpu = next((one for one in onnxruntime.get_ep_devices() if one.ep_name == CPU), None)
        return [cpu] * len(self._interface.inputs)

    def get_profiling_start_time_ns(self) -> int:
        """When ONNX Runtime's profiling started, in nanoseconds; 0 without profiling."""
        if self._whole is not None:
            return int(self._alive().get_profiling_start_time_ns())
        return self._workshop.maker.profiles.start_ns

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str, device_id: int = 0, vendor_id: int = -1
    ) -> Any:
        """An ``onnxruntime.OrtValue`` from an allocator of this session. Raises what ONNX Runtime raises."""
        if self._whole is not None:
            return self._alive().create_ortvalue_from_shape_and_type(
                shape, element_type, device_type, device_id, vendor_id
            )
        import onnxruntime

        where = onnxruntime.OrtDevice.make(device_type, device_id, vendor_id)._get_c_device()
        first: Exception | None = None
        for session in (self._interface.session, *self._sessions()):
            by_number = isinstance(element_type, int)
            name = "create_ortvalue_from_shape_and_onnx_type" if by_number else "create_ortvalue_from_shape_and_type"
            try:
                return onnxruntime.OrtValue(getattr(session, name)(shape, element_type, where), session=session)
            except RuntimeError as error:  # no allocator of that device
                first = first or error
        assert first is not None
        raise first

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Release a graph that a provider captured for the caller; those of ortopt's own are not among them."""
        if self._whole is not None:
            self._alive().release_captured_graph(graph_annotation_id)
            return
        for session in self._sessions():
            session.release_captured_graph(graph_annotation_id)

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Change options of execution providers while they run: in all groups, those too that come later."""
        given = dict(options)
        if self._whole is not None:
            self._alive().set_ep_dynamic_options(given)
            return
        self._interface.session.set_ep_dynamic_options(given)
        self._workshop.maker.of_all(f"options {sorted(given)}", lambda session: session.set_ep_dynamic_options(given))

    def get_tuning_results(self) -> list[Any]:
        """What providers have tuned: of all groups, one after the other."""
        if self._whole is not None:
            return list(self._alive().get_tuning_results())
        return [result for session in self._all_sessions() for result in session.get_tuning_results()]

    def set_tuning_results(self, results: Sequence[Any], *, error_on_invalid: bool = False) -> None:
        """Let all groups, those too that come later, have what was tuned before."""
        if self._whole is not None:
            self._alive().set_tuning_results(results, error_on_invalid=error_on_invalid)
            return
        given = list(results)
        self._interface.session.set_tuning_results(given, error_on_invalid)
        self._workshop.maker.of_all(
            "tuning results", lambda session: session.set_tuning_results(given, error_on_invalid)
        )

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """Which provider has which nodes: of all groups, one after the other.

        Raises:
            onnxruntime.capi.onnxruntime_pybind11_state.Fail: The session options did not ask for it.
        """
        if self._whole is not None:
            return list(self._alive().get_provider_graph_assignment_info())
        sessions = self._all_sessions() or [self._interface.session]
        return [part for session in sessions for part in session.get_provider_graph_assignment_info()]

    def run_with_ortvaluevector(
        self,
        run_options: Any,
        feed_names: Sequence[str],
        feeds: Any,
        fetch_names: Sequence[str],
        fetches: Any,
        fetch_devices: Sequence[Any],
    ) -> None:
        """As `run_with_ort_values`, from and to ONNX Runtime's vectors of values.

        Args:
            run_options: ``onnxruntime.RunOptions``.
            feed_names: The names of inputs.
            feeds: An ``OrtValueVector`` of their values.
            fetch_names: The names of outputs.
            fetches: An empty ``OrtValueVector``, which is filled.
            fetch_devices: Where each output is wanted.

        Raises:
            ValueError: There are not as many values as names, or ``fetches`` holds something.
        """
        if self._whole is not None:
            self._alive().run_with_ortvaluevector(run_options, feed_names, feeds, fetch_names, fetches, fetch_devices)
            return
        import onnxruntime

        if len(feed_names) != len(feeds) or len(fetch_names) != len(fetch_devices) or len(fetches):
            raise ValueError("there must be a value for each name, a device for each output, and no fetches yet")
        given = {name: onnxruntime.OrtValue(value) for name, value in zip(feed_names, feeds, strict=True)}
        if not fetch_names:
            return
        results = self.run_with_ort_values(list(fetch_names), given, run_options)
        own = self._workshop.device
        for found, name, place in zip(results, fetch_names, fetch_devices, strict=True):
            fetches.push_back(placed(found._ortvalue, place, own, f"output {name}"))
        if own is not None:
            own.synchronize()

    def _alive(self) -> Any:
        """The whole session, unless it must not be asked any more."""
        if self._unusable is not None:
            raise UsageError(self._unusable)
        return self._whole

    def _sessions(self) -> list[Any]:
        """The C++ sessions of groups that have been made."""
        return [session for group in self._workshop.groups for session in group.sessions()]

    def _all_sessions(self) -> list[Any]:
        """The same, after all groups of which the types are known have got one."""
        for group in self._workshop.groups:
            group.prepare()
        return self._sessions()


__all__ = ["FurtherMethods"]
