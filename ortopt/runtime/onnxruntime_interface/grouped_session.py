"""A session of several groups: what stands behind `InferenceSession` where the model is not one of ONNX Runtime's."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ortopt.analysis.providers import CPU
from ortopt.runtime.denormals import flush_for_good, flushed
from ortopt.runtime.execution.group_runner import GroupContext
from ortopt.runtime.onnxruntime_interface.arguments import Arguments, LoraAdapters
from ortopt.runtime.onnxruntime_interface.iobinding import IOBinding
from ortopt.runtime.onnxruntime_interface.model_signature import ModelSignature, without_code
from ortopt.runtime.onnxruntime_interface.output_memory import check_target, in_execution, placed, write
from ortopt.runtime.onnxruntime_internals import (
    NativeDevice,
    NativeSession,
    NativeValue,
    NativeVector,
    device_of,
    input_memories,
    invalid_argument,
    optional_attribute,
    output_memories,
    refusals,
    session_of_binding,
    vector_class,
)
from ortopt.runtime.planning.execution_plan import ExecutionPlan, ParallelPlan
from ortopt.runtime.values.containers import as_ort_value, detached, to_numpy
from ortopt.runtime.values.tensors import elements, own
from ortopt.system import processor

if TYPE_CHECKING:
    import onnxruntime


class GroupedSession:
    """Executes a plan, with the methods of ``onnxruntime.InferenceSession``; all of them are documented there.

    It stays what it is: a call that began on it ends on its providers, whatever becomes of the caller's session.

    Args:
        model: The model, grouped.
        plan: Its plan.
        context: What its groups share.

    Attributes:
        plan: The plan.
        context: What its groups share.
        signature: The model's inputs, outputs and metadata.
        device: The CUDA device where values may be besides the host's memory.
        model: The model, if its groups are specialised.
    """

    def __init__(self, model: ir.Model, plan: ExecutionPlan, context: GroupContext) -> None:
        import onnxruntime

        self.plan = plan
        self.context = context
        self.signature = ModelSignature(model)
        self.device = context.device
        self.model = model if context.specializer is not None else None
        self._options = onnxruntime.RunOptions() if self.device is None else self.device.default_options
        defaults = [plan.template[slot] for slot in plan.inputs]
        self._arguments = Arguments(model.graph.inputs, defaults, self.signature, self.device)
        self._adapters = LoraAdapters(model.graph.inputs)
        self._names = [value.name or "" for value in model.graph.outputs]
        self._types = [output.type for output in self.signature.outputs]
        self._positions = {name: i for i, name in enumerate(self._names)}
        self._all = list(range(len(self._names)))
        fresh = {slot for step in plan.steps if step.fresh for slot in step.outputs}
        seen: set[int] = set()
        self._shared = []  # whether an output shares memory with an input, a constant or another output
        for slot in plan.outputs:
            self._shared.append(slot not in fresh or slot in seen)
            seen.add(slot)
        self._executor: ThreadPoolExecutor | None = None
        self._run_plan = plan.run
        options = context.maker.options
        if options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL:
            workers = options.inter_op_num_threads or processor.usable()
            flush = flush_for_good if context.maker.denormals_as_zero else None
            self._executor = ThreadPoolExecutor(workers, "ortopt-group", flush)
            parallel = ParallelPlan(plan, self._executor)
            if not parallel.is_chain:
                self._run_plan = parallel.run
        if context.maker.denormals_as_zero:
            self._run_plan = flushed()(self._run_plan)

    # Running

    def run(
        self,
        output_names: Iterable[str] | None,
        input_feed: Mapping[str, Any],
        run_options: onnxruntime.RunOptions | None,
    ) -> list[Any]:
        """Run the model from and to arrays."""
        positions, results = self._called(output_names, input_feed, run_options)
        shared = self._shared
        seen: set[int] = set()
        outputs = []
        for i in positions:
            array = to_numpy(self._at_host(results[i], i))
            outputs.append(own(array) if shared[i] or i in seen else array)
            seen.add(i)
        return outputs

    def run_with_ort_values(
        self,
        output_names: Iterable[str] | None,
        input_dict_ort_values: Mapping[str, onnxruntime.OrtValue],
        run_options: onnxruntime.RunOptions | None,
    ) -> list[onnxruntime.OrtValue]:
        """Run the model from and to ``onnxruntime.OrtValue``."""
        import onnxruntime

        positions, results = self._called(output_names, input_dict_ort_values, run_options)
        return [onnxruntime.OrtValue(self._alone(self._at_host(results[i], i), i)) for i in positions]

    def _called(
        self, names: Iterable[str] | None, feed: Mapping[str, Any], run_options: onnxruntime.RunOptions | None
    ) -> tuple[list[int], list[Any]]:
        """The positions of the outputs that are asked for, and the values of all."""
        if run_options is not None:
            feed = {**feed, **self._adapters.inputs(run_options)}
        values, _kept = self._arguments(feed)  # the arrays that the arguments lie in are kept until the end
        return self._asked(names), self.execute(values, run_options)

    def run_with_ortvaluevector(
        self,
        run_options: onnxruntime.RunOptions | None,
        feed_names: Sequence[str],
        feeds: NativeVector,
        fetch_names: Sequence[str],
        fetches: NativeVector,
        fetch_devices: Sequence[NativeDevice],
    ) -> None:
        """Run the model from and to vectors of values."""
        import onnxruntime

        for vector in (feeds, fetches):
            if not isinstance(vector, vector_class()):
                raise TypeError(f"feeds and fetches are OrtValueVectors, not {type(vector).__name__}")
        _check_counts(len(feed_names), len(feeds), len(fetch_names), len(fetches), len(fetch_devices))
        feed = {name: onnxruntime.OrtValue(value) for name, value in zip(feed_names, elements(feeds), strict=True)}
        self.signature.check_bound(feed)
        values, _ = self._arguments(feed)
        positions = self._asked(fetch_names)
        targets = [onnxruntime.OrtValue(value) for value in elements(fetches)]
        for i, target in zip(positions, targets, strict=False):
            check_target(target, self.signature.outputs[i], invalid_argument)
        results = self.execute(values, run_options)
        for i, target in zip(positions, targets, strict=False):
            write(target, self._alone(results[i], i), self.device, self._names[i], invalid_argument)
        if not targets:
            for i, place in zip(positions, fetch_devices, strict=True):
                fetches.push_back(placed(self._alone(results[i], i), place, self.device, f"output {self._names[i]}"))
        if self.device is not None:
            self.device.synchronize()

    def io_binding(self) -> IOBinding:
        """Memory for inputs and outputs."""
        return IOBinding(self.signature, self.device, self.get_providers())

    def run_with_iobinding(self, iobinding: IOBinding, run_options: onnxruntime.RunOptions | None) -> None:
        """Run the model from and to bound memory."""
        if session_of_binding(iobinding) is not self.signature.session:
            raise ValueError("IOBinding must be used with the session that created it.")
        if not isinstance(iobinding, IOBinding):  # it does not tell what is bound
            raise ValueError("A session of several groups takes what session.io_binding() returns.")  # noqa: TRY004
        if not iobinding.outputs:
            raise RuntimeError("Error in execution: At least one output should be requested.")
        for name in iobinding.outputs:
            if name not in self._positions:
                raise RuntimeError(f"Error in execution: Invalid output name: {name}")
        try:
            self.signature.check_bound(iobinding.inputs)
            values, _ = self._arguments(iobinding.inputs)
        except refusals() as error:  # so ONNX Runtime says it, of what is bound
            raise in_execution(without_code(error)) from error
        positions = {name: self._positions[name] for name in iobinding.outputs}
        for name, target in iobinding.outputs.items():
            if not isinstance(target, tuple):
                check_target(target, self.signature.outputs[positions[name]], in_execution)
        results = self.execute(values, run_options)
        iobinding.finish({name: self._alone(results[i], i) for name, i in positions.items()})

    @property
    def _sess(self) -> NativeSession:
        return self.signature.session

    def check(self, output_names: Iterable[str] | None, input_feed: Mapping[str, Any]) -> None:
        """Refuse a call as `run` would, without running anything."""
        self._arguments(input_feed)
        self._asked(output_names)

    def execute(self, values: Sequence[Any], run_options: onnxruntime.RunOptions | None) -> list[Any]:
        """The values of all outputs, some of which may be on the device."""
        options = self._options if run_options is None else run_options
        if self.device is None:
            return self._run_plan(values, (), options)
        self.device.accept(values)
        try:
            return self._run_plan(values, (), options)
        finally:
            self.device.synchronize()

    def _asked(self, names: Iterable[str] | None) -> list[int]:
        """The positions of outputs; none is all.

        Raises:
            onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument: There is no such output.
            TypeError: They are not names.
        """
        if not names:
            return self._all
        asked = names if isinstance(names, str) else list(names)
        self.signature.check_outputs(asked)
        return [self._positions[name] for name in asked]

    def _at_host(self, value: Any, position: int) -> Any:
        """A result in the host's memory."""
        return value if self.device is None else self.device.download(value, f"output {self._names[position]}")

    def _alone(self, value: Any, position: int) -> NativeValue:
        """A result as an OrtValue that shares memory with nothing."""
        mine = detached(self._at_host(value, position)) if self._shared[position] else value
        return as_ort_value(mine, self._types[position])

    # What there is to know

    def get_inputs(self) -> list[onnxruntime.NodeArg]:
        """``onnxruntime.NodeArg`` of each input."""
        return self.signature.inputs

    def get_outputs(self) -> list[onnxruntime.NodeArg]:
        """``onnxruntime.NodeArg`` of each output."""
        return self.signature.outputs

    def get_overridable_initializers(self) -> list[onnxruntime.NodeArg]:
        """``onnxruntime.NodeArg`` of each input that has a default."""
        return self.signature.overridable

    def get_modelmeta(self) -> onnxruntime.ModelMetadata:
        """``onnxruntime.ModelMetadata``."""
        return self.signature.metadata

    def get_providers(self) -> list[str]:
        """The execution providers that groups may run on."""
        return list(self.context.maker.provider_options)

    def get_provider_options(self) -> dict[str, dict[str, Any]]:
        """The options of each."""
        return {name: dict(options) for name, options in self.context.maker.provider_options.items()}

    def get_session_options(self) -> onnxruntime.SessionOptions:
        """``onnxruntime.SessionOptions``."""
        return self.context.maker.options

    def end_profiling(self) -> str:
        """One file of the events of all groups."""
        return self.context.maker.profiles.end()

    # What the signature's session answers, or all groups'

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

                with GATE:  # it may be CUDA's
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

    # The end

    def retire(self) -> None:
        """Start no threads any more; calls that are running go on."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def close(self) -> None:
        """Give back what calls that are running do not need."""
        self.retire()
        self.context.cache.clear()
        self.context.groups.clear()
        self.context.maker.profiles.forget()


def _check_counts(names: int, feeds: int, outputs: int, fetches: int, devices: int) -> None:
    """Refuse vectors that do not fit; what ONNX Runtime says."""
    message = None
    if names != feeds:
        message = f"feed names has {names} elements, but feed has {feeds} elements."
    elif not outputs:
        message = "At least one output should be requested."
    elif fetches and fetches != outputs:
        message = f"fetch names has {outputs} elements, but fetch has {fetches} elements."
    elif devices != outputs:
        message = f"fetch names has {outputs} elements, but there are {devices} devices."
    if message is not None:
        raise invalid_argument(message)


class AsyncCalls:
    """Threads that make calls: as many at a time as there are processors, started with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def submit(
        self, call: Callable[[], list[Any]], callback: Callable[[list[Any], Any, str], None], user_data: Any
    ) -> None:
        """Make a call in a thread.

        Args:
            call: The call; it returns results.
            callback: Called with the results, the caller's data, and the error as text (empty where there is none).
            user_data: The caller's data.
        """

        def work() -> None:
            try:
                results, error = call(), ""
            except Exception as failure:
                results, error = [], without_code(failure)
            try:
                callback(results, user_data, error)
            except BaseException as failure:
                sys.excepthook(type(failure), failure, failure.__traceback__)

        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(processor.usable(), "ortopt-run-async")
            executor = self._executor
        executor.submit(work)

    def close(self, *, wait: bool = False) -> None:
        """Take no calls any more; those that were made go on.

        Args:
            wait: Whether this returns when they are done.
        """
        if self._executor is not None:
            self._executor.shutdown(wait=wait)
