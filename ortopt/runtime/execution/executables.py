"""What runs a group in a session of ONNX Runtime.

An executable is called with the group's values, in the order of its inputs, and ONNX Runtime's run options; it returns
the values of its outputs (`ortopt.runtime.values.containers` says what a value is).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from ortopt.runtime.onnxruntime_internals import (
    NativeDevice,
    NativeSession,
    input_memories,
    lists_are_copied,
    memory_names,
    native_device,
    output_memories,
    value_class,
    vector_class,
)
from ortopt.runtime.values.containers import as_ort_value, to_numpy
from ortopt.runtime.values.tensors import array_of, elements, has_no_array, is_plain, own, to_ort
from ortopt.semantics.nodes import callers_first

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.cuda.device import CudaDevice


class HostExecutable:
    """onnx's reference implementation, with users' own ops.

    Args:
        model: A model whose weights are inputs behind the others.
        weights: The weights, in their order.
        ops: Subclasses of ``onnx.reference.op_run.OpRun``; they are given copies of their arguments.
    """

    __slots__ = ("_evaluator", "_inputs", "_weights")

    def __init__(self, model: onnx.ModelProto, weights: Sequence[ir.TensorProtocol], ops: Sequence[type]) -> None:
        from onnx.reference import ReferenceEvaluator

        if model.functions:  # which it would not give the attributes of their calls; those of another opset stay
            from onnx.inliner import inline_local_functions

            model = inline_local_functions(model)
        ops = [_on_copies(op) for op in ops]
        # Given a whole model it would not tell the functions of the callers' ops.
        functions: list[Any] = []
        for function in _callees_first(model.functions):
            functions.append(ReferenceEvaluator(function, functions=list(functions), new_ops=list(ops)))
        opsets = {opset.domain: opset.version for opset in model.opset_import}
        self._evaluator = ReferenceEvaluator(model.graph, opsets=opsets, functions=functions, new_ops=list(ops))
        self._inputs = [value.name for value in model.graph.input]
        self._weights = [array_of(tensor) for tensor in weights]

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Run the nodes one after the other."""
        arrays = [to_numpy(value) for value in values] + self._weights
        results = self._evaluator.run(None, dict(zip(self._inputs, arrays, strict=True)))
        inputs = {id(part) for array in arrays for part in (array, *(array if isinstance(array, list) else ()))}
        return [to_ort(_apart(value, inputs)) for value in results]


def _on_copies(op: type) -> type:
    """An op of the caller's that works on copies of its arguments, and may write to them.

    They may be the memory of a caller's array, of a weight, or of a value that others still read. The ops of
    ``onnx.reference`` write to none of theirs.
    """

    def run(self: Any, *args: Any, **named: Any) -> Any:
        return op.run(self, *(own(argument) for argument in args), **named)  # type: ignore[attr-defined]

    return type(op.__name__, (op,), {"run": run, "__module__": op.__module__, "__doc__": op.__doc__})


def _apart(value: Any, inputs: set[int]) -> Any:
    """A result that shares memory with no argument, as those of ONNX Runtime; onnx reshapes to views.

    Args:
        value: The result.
        inputs: The ids of the arguments.
    """
    is_new = isinstance(value, np.ndarray) and value.flags.owndata and id(value) not in inputs
    return value if is_new else own(value)


def _callees_first(protos: Sequence[onnx.FunctionProto]) -> list[onnx.FunctionProto]:
    """Functions in an order in which each stands behind those that it calls."""
    functions = {function.identifier(): function for function in map(ir.serde.deserialize_function, protos)}
    by_identifier = dict(zip(functions, protos, strict=True))
    return [by_identifier[identifier] for identifier in reversed(callers_first(functions))]


Executable = Callable[[list[Any], "onnxruntime.RunOptions"], Sequence[Any]]
"""Called with values and run options; returns values."""


class Prepared:
    """A session whose inputs and outputs are all tensors of numbers: nothing is converted, nothing is copied.

    Args:
        session: ONNX Runtime's C++ session.
        feeds: The names of its inputs, in the order of the values.
        fetches: The names of its outputs.
        devices: Where each output is left.
        separate: Whether outputs may be freed at different times.
    """

    __slots__ = ("_devices", "_feeds", "_fetches", "_run", "_separate", "_vector", "session")

    def __init__(
        self,
        session: NativeSession,
        feeds: Sequence[str],
        fetches: Sequence[str],
        devices: Sequence[NativeDevice],
        *,
        separate: bool,
    ) -> None:
        self.session = session
        self._run = session.run_with_ortvaluevector
        self._vector = vector_class()
        self._feeds = list(feeds)
        self._fetches = list(fetches)
        self._devices = list(devices)
        self._separate = separate and len(fetches) > 1

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Run the session."""
        feeds = self._vector()
        add = feeds.push_back
        for value in values:
            add(value)
        fetches = self._vector()
        self._run(options, self._feeds, feeds, self._fetches, fetches, self._devices)
        if not self._separate:
            return fetches
        # An element of a vector keeps the whole vector alive: each gets one of its own.
        alone = []
        for value in elements(fetches):
            own = self._vector()
            own.push_back(value)
            alone.append(own[0])
        return alone


class OnDevice(Prepared):
    """A session on a CUDA device whose inputs and outputs are all tensors of numbers.

    Args:
        session: ONNX Runtime's C++ session.
        feeds: The names of its inputs, in the order of the values.
        fetches: The names of its outputs.
        device: The device.
        places: Where each output is left, ``cpu`` or ``cuda``; everywhere in the host's memory, if empty.
        separate: Whether outputs may be freed at different times.

    Attributes:
        options: Called with the run options of a call, and with ``waits`` (whether an output is left in the host's
            memory): the run options of the session.
    """

    __slots__ = ("_device", "_from_host", "_pinned", "_places", "_waits", "options")

    def __init__(
        self,
        session: NativeSession,
        feeds: Sequence[str],
        fetches: Sequence[str],
        device: CudaDevice,
        places: Sequence[str],
        *,
        separate: bool,
    ) -> None:
        self._device = device
        self._places = list(places) or ["cpu"] * len(fetches)
        self._pinned = device.at_host(memory_names(input_memories, session)) or frozenset()
        from_host = device.at_host(memory_names(output_memories, session))
        self._from_host = from_host or frozenset()
        # What comes from the host's memory goes up after the run, out of memory that the run gives back.
        self._waits = "cpu" in self._places or from_host is None or bool(from_host)
        self.options: Callable[..., Any] = device.run_options
        super().__init__(session, feeds, fetches, [device.place_of(name) for name in self._places], separate=separate)

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Run the session; ONNX Runtime copies what is elsewhere than it wants it."""
        with self._device.turn:
            results, crossing = self.start(values, options)
        self._device.crossed(crossing)
        return results

    def start(self, values: list[Any], options: onnxruntime.RunOptions) -> tuple[Sequence[Any], list[Any]]:
        """Run the session; hold the device's turn.

        Returns:
            The values of its outputs, and those values that ONNX Runtime copies to the device or from it.
        """
        device = self._device
        crossing = [value for i, value in enumerate(values) if device.is_resident(value) == (i in self._pinned)]
        device.keep(values)
        results = device.received(
            elements(super().__call__(values, self.options(options, waits=self._waits))), self._places
        )
        resident = [place == "cuda" for place in self._places]
        crossing.extend(value for i, value in enumerate(results) if resident[i] == (i in self._from_host))
        return results, crossing


def at_host(
    executable: Executable, device: CudaDevice, name: str, reads: Callable[[int], bool] = lambda _: True
) -> Executable:
    """An executable that reads values in the host's memory, wherever they are: what is on a device is copied.

    Args:
        executable: What runs.
        device: Where values may be.
        name: What to call it on the timeline.
        reads: Whether the value at a position is read there; the others are passed on.
    """

    def run(values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        return executable(
            [device.download(value, name) if reads(i) else value for i, value in enumerate(values)], options
        )

    return run


class Converted:
    """A session with inputs or outputs that are strings, sequences, maps or optionals.

    OrtValues go in and out as they are; where one of the values is a Python object, the results are such objects too.

    Args:
        session: ONNX Runtime's C++ session.
        feeds: The names of its inputs, in the order of the values.
        fetches: The names of its outputs.
        device: The CUDA device that the session runs on, if it does: a run has its turn there.
    """

    __slots__ = ("_copies", "_exotic", "_feeds", "_fetches", "_turn", "_wrap", "session")

    def __init__(
        self, session: NativeSession, feeds: Sequence[str], fetches: Sequence[str], device: CudaDevice | None = None
    ) -> None:
        import onnxruntime

        self.session = session
        self._turn = contextlib.nullcontext() if device is None else device.turn
        self._wrap = onnxruntime.OrtValue
        self._feeds = list(feeds)
        self._fetches = list(fetches)
        self._copies = lists_are_copied()
        self._exotic = any(has_no_array(output.type) for output in session.outputs_meta)

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Run the session."""
        own = value_class()
        if self._exotic:
            values = [value if value is None else as_ort_value(value) for value in values]
        elif not self._copies:
            values = [as_ort_value(value) if _is_sequence(value) else value for value in values]
        if all(value is None or isinstance(value, own) for value in values):
            present = {name: value for name, value in zip(self._feeds, values, strict=True) if value is not None}
            with self._turn:
                fetched = self.session.run_with_ort_values(present, self._fetches, options)
            return [value if value.has_value() else None for value in elements(fetched)]
        feeds = {
            name: self._wrap(value) if isinstance(value, own) else value
            for name, value in zip(self._feeds, values, strict=True)
            if value is not None  # an optional that holds nothing
        }
        with self._turn:
            results = self.session.run(self._fetches, feeds, options)
        return [to_ort(value) for value in results]


def _is_sequence(value: Any) -> bool:
    """Whether a value is a list of tensors; lists of maps can be given to a session only as they are."""
    return isinstance(value, list) and not any(isinstance(element, dict) for element in value)


def of_session(
    session: NativeSession,
    feeds: Sequence[str],
    fetches: Sequence[str],
    places: Sequence[str] = (),
    device: CudaDevice | None = None,
    *,
    separate: bool = True,
) -> Executable:
    """The quickest way to run a session.

    Args:
        session: ONNX Runtime's C++ session.
        feeds: The names of its inputs, in the order of the values.
        fetches: The names of its outputs.
        places: Where each output is left, ``cpu`` or ``cuda``; everywhere in the host's memory, if empty.
        device: The CUDA device that the session runs on, if it does.
        separate: Whether outputs may be freed at different times.
    """
    types = [argument.type for argument in (*session.inputs_meta, *session.outputs_meta)]
    if not all(is_plain(type_) for type_ in types):
        return Converted(session, feeds, fetches, device)
    if device is not None:
        return OnDevice(session, feeds, fetches, device, places, separate=separate)
    return Prepared(session, feeds, fetches, [native_device("cpu")] * len(fetches), separate=separate)
