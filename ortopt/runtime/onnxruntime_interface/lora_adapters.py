"""The values that adapters in ``onnxruntime.RunOptions`` (LoRA) put in the place of inputs: no method tells them.

A session passes on what comes with run options: that of a small model whose inputs have the names and element types of
the caller's model, hold nothing by default, and are its outputs. Nothing is copied.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import onnx
import onnx_ir as ir

from ortopt.runtime.auxiliary_session import auxiliary_session
from ortopt.runtime.execution.group_spec import free_prefix
from ortopt.runtime.onnxruntime_internals import NativeSession
from ortopt.runtime.values.element_types import PLAIN
from ortopt.runtime.values.tensors import elements

if TYPE_CHECKING:
    import onnxruntime

_IR: Final = 10
_OPSET: Final = 21


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
        proto = onnx.ModelProto(ir_version=_IR)
        proto.opset_import.add(domain="", version=_OPSET)
        graph = proto.graph
        graph.name = "adapters"
        for name, kind in self._types.items():
            graph.input.append(info(name, kind, None))
            graph.output.append(info(name, kind, None))
            graph.initializer.append(onnx.TensorProto(name=name, data_type=kind, dims=[0]))
        constant = f"{free_prefix(self._types)}constant"  # a model has a node
        graph.node.append(onnx.helper.make_node("Constant", [], [constant], value_int=1))
        graph.output.append(info(constant, onnx.TensorProto.INT64, []))
        return auxiliary_session(proto)
