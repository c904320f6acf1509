"""What a caller gives for the inputs of a model, as a plan's values; what is wrong is refused as by ONNX Runtime.

The values that adapters in ``onnxruntime.RunOptions`` (LoRA) put in the place of inputs: no method tells them.

A session passes on what comes with run options: that of a small model whose inputs have the names and element types of
the caller's model, hold nothing by default, and are its outputs. Nothing is copied.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
import onnx_ir as ir

from ortopt.runtime.execution.group_spec import free_prefix
from ortopt.runtime.onnxruntime_interface.model_signature import ModelSignature
from ortopt.runtime.onnxruntime_internals import (
    NativeSession,
    add_constant,
    auxiliary_session,
    failure,
    native_device,
    native_value,
    small_model,
    tensor_over,
)
from ortopt.runtime.values.tensors import PLAIN, elements, is_native, to_ort

if TYPE_CHECKING:
    import onnxruntime

    from ortopt.runtime.cuda.device import CudaDevice


class LoraAdapters:
    """Asks run options; thread-safe.

    Args:
        inputs: The model's inputs.
    """

    def __init__(self, inputs: Sequence[ir.Value]) -> None:
        self._types = {
            value.name or "": value.dtype.value
            for value in inputs
            if isinstance(value.type, ir.TensorType) and value.dtype in PLAIN and value.dtype is not None
        }
        self._names = list(self._types)
        self._lock = threading.Lock()
        self._session: NativeSession | None = None

    def inputs(self, options: onnxruntime.RunOptions) -> dict[str, onnxruntime.OrtValue]:
        """The inputs that adapters bring, as ``onnxruntime.OrtValue`` by name.

        Args:
            options: ``onnxruntime.RunOptions``.

        Raises:
            onnxruntime.InvalidArgument: The model has no such input, or it is of another element type.
        """
        import onnxruntime

        if self._session is None:
            with self._lock:
                self._session = self._session or self._made()
        if not self._types:
            return {}
        values = elements(self._session.run_with_ort_values({}, self._names, options))
        return {
            name: onnxruntime.OrtValue(value)
            for name, value in zip(self._names, values, strict=True)
            if value.shape() != [0]
        }

    def _made(self) -> NativeSession:
        info = onnx.helper.make_tensor_value_info
        proto = small_model("adapters")
        graph = proto.graph
        for name, kind in self._types.items():
            graph.input.append(info(name, kind, None))
            graph.output.append(info(name, kind, None))
            graph.initializer.append(onnx.TensorProto(name=name, data_type=kind, dims=[0]))
        add_constant(proto, f"{free_prefix(self._types)}constant")
        return auxiliary_session(proto)


_MISSING: Final = object()


class Arguments:
    """Takes feeds of one model.

    Args:
        inputs: The model's inputs.
        defaults: What a plan holds for each if the caller gives no value; None if a value must be given.
        signature: Refuses what is wrong.
        on: The CUDA device where values may be besides the host's memory.
    """

    def __init__(
        self, inputs: Sequence[ir.Value], defaults: Sequence[Any], signature: ModelSignature, on: CudaDevice | None
    ) -> None:
        self._rows = [
            (value.name or "", _Formal(value), default) for value, default in zip(inputs, defaults, strict=True)
        ]
        self._signature = signature
        self._device = on
        self._borrow, self._cpu = tensor_over, native_device("cpu")

    def __call__(self, feed: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
        """The plan's values for what a caller gave, and what must be kept as long as they are used.

        Raises:
            ValueError: An input is missing.
            onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument: A name, dtype, rank or size is wrong.
            onnxruntime.capi.onnxruntime_pybind11_state.Fail: Nothing is given for an input that is no optional.
        """
        values: list[Any] = []
        kept: list[Any] = []
        count = 0
        feed = _present(feed)
        checked = False
        borrow, cpu = self._borrow, self._cpu
        for name, formal, default in self._rows:
            value = feed.get(name, _MISSING)
            if value is _MISSING:
                if default is None and not formal.optional:
                    self._check(feed)
                values.append(default)
                continue
            count += 1
            if type(value) is np.ndarray and formal.accepts(value):
                if not value.flags.c_contiguous:
                    value = np.ascontiguousarray(value)
                    kept.append(value)
                values.append(borrow(value, cpu))
                continue
            inner = native_value(value)
            if inner is not None and formal.fits(inner):
                values.append(inner)
                kept.append(value)
                continue
            if not checked:
                self._check(feed)
                checked = True
            if value is None and not formal.optional:
                if default is None:
                    raise failure(f"Missing Input: {name}")
                values.append(default)
                continue
            converted, keep = formal.converted(value)
            values.append(converted)
            kept.append(keep)
        if count != len(feed):
            self._check(feed)
        return values, kept

    def _check(self, feed: Mapping[str, Any]) -> None:
        """Refuse inputs as ONNX Runtime refuses them; the session that is asked knows no device."""
        device = self._device
        if device is not None:
            feed = {name: device.stand_in(value) for name, value in feed.items()}
        self._signature.check_inputs(feed)


class _Formal:
    """An input of the model, and what may be given for it without asking ONNX Runtime."""

    __slots__ = ("_dims", "_dtype", "_kind", "_numpy", "_rank", "optional")

    def __init__(self, value: ir.Value) -> None:
        self.optional = isinstance(value.type, ir.OptionalType)
        self._dtype = value.dtype if isinstance(value.type, ir.TensorType) else None
        plain = self._dtype if self._dtype in PLAIN else None
        self._kind = None if plain is None else plain.value
        self._numpy = plain.numpy() if plain is not None and is_native(plain) else None
        self._rank = None if value.shape is None else len(value.shape)
        self._dims = [(i, dim) for i, dim in enumerate(value.shape or ()) if isinstance(dim, int)]

    def accepts(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether an array is certainly what the model takes."""
        if array.dtype is not self._numpy and (array.dtype != self._numpy or self._numpy is None):
            return False
        if self._rank is not None and array.ndim != self._rank:
            return False
        shape = array.shape
        return all(shape[i] == size for i, size in self._dims)

    def fits(self, value: Any) -> bool:
        """Whether an OrtValue, ONNX Runtime's C++ object, is certainly what the model takes."""
        if self._kind is None or not value.is_tensor() or value.element_type() != self._kind:
            return False
        shape = value.shape()
        return (self._rank is None or len(shape) == self._rank) and all(shape[i] == size for i, size in self._dims)

    def converted(self, value: Any) -> tuple[Any, Any]:
        """What a plan holds for something that ONNX Runtime accepts, and what must be kept as long as it is used."""
        inner = native_value(value)
        if inner is not None:
            return inner, value
        if not isinstance(value, np.ndarray):
            if self._numpy is not None:
                value = np.asarray(value, self._numpy)
            elif self._dtype == ir.DataType.STRING:
                value = np.array(value, object)
        return (to_ort(np.array(value)), None) if isinstance(value, np.ndarray) else (value, value)


def _present(feed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without the OrtValues that hold nothing: ONNX Runtime leaves them out too, or crashes."""
    absent = [
        name
        for name, value in feed.items()
        if type(value) is not np.ndarray and hasattr(value, "has_value") and not value.has_value()
    ]
    return {name: value for name, value in feed.items() if name not in absent} if absent else feed
