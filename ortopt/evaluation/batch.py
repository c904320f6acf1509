"""Nodes as a model of their own whose inputs are constants, for ONNX Runtime and for shape inference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import onnx
import onnx.shape_inference
import onnx_ir as ir

from ortopt.evaluation.call import Array, HazardError, Operand
from ortopt.evaluation.execution import NUMPY_DTYPES
from ortopt.evaluation.numpy_kernels import tensor_of
from ortopt.graph import scope
from ortopt.semantics import strings_of, subgraphs

STRING_BYTES: Final = 64
"""Bytes that a string is taken for."""

_INLINE_BYTES: Final = 4096  # shape inference reads the contents of what is inside the model
_IR_VERSION: Final = 10


def has_subgraphs(node: ir.Node) -> bool:
    """Whether a node holds graphs."""
    return any(True for _ in subgraphs(node))


class Inferred:
    """A value's dtype and, where they are known, its dimensions."""

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: ir.DataType, shape: tuple[int, ...] | None) -> None:
        self.dtype = dtype
        self.shape = shape

    @property
    def nbytes(self) -> int:
        """Bytes; a string counts as `STRING_BYTES`."""
        size = float(STRING_BYTES) if self.dtype == ir.DataType.STRING else self.dtype.itemsize
        return math.ceil(math.prod(self.shape or ()) * size)


class Batch:
    """Nodes as a model whose inputs are constants: small ones inside, large ones fed."""

    def __init__(
        self,
        nodes: Sequence[ir.Node],
        opsets: Mapping[str, int],
        functions: Mapping[ir.OperatorIdentifier, ir.Function],
        operand: Callable[[ir.Value], Operand | None],
    ) -> None:
        self.feeds: dict[str, Array] = {}
        self._keep_names = any(has_subgraphs(node) for node in nodes)
        self._names: dict[ir.Value, str] = {}
        self._proto = onnx.ModelProto(ir_version=_IR_VERSION)
        graph = self._proto.graph
        graph.name = "constants"
        for domain, version in opsets.items():
            self._proto.opset_import.add(domain="" if domain == "ai.onnx" else domain, version=version)
        produced = {output for node in nodes for output in node.outputs}
        for node in nodes:
            for value in (*node.inputs, *scope.captured(node)):
                if value is not None and value not in self._names and value not in produced:
                    constant = operand(value)
                    assert constant is not None
                    self._add_constant(self.name(value), constant)
            added = graph.node.add()
            added.CopyFrom(ir.serde.serialize_node(node))
            added.name = ""
            added.input[:] = ["" if value is None else self.name(value) for value in node.inputs]
            added.output[:] = ["" if value.name == "" else self.name(value) for value in node.outputs]
        if any(node.op_identifier() in functions for node in nodes) or (self._keep_names and functions):
            self._add_functions(functions.values())

    def name(self, value: ir.Value) -> str:
        """The value's name in the model: new, since names of several graphs may collide, unless subgraphs use it."""
        known = self._names.get(value)
        if known is not None:
            return known
        name = (value.name or "") if self._keep_names else f"v{len(self._names)}"
        if not name or (self._keep_names and name in self._names.values()):
            raise HazardError("a subgraph uses a value without a name of its own")
        self._names[value] = name
        return name

    def _add_constant(self, name: str, constant: Operand) -> None:
        graph = self._proto.graph
        if constant.nbytes <= _INLINE_BYTES or constant.dtype not in NUMPY_DTYPES:
            tensor = constant.tensor if constant.tensor is not None else tensor_of(constant.array)
            proto = graph.initializer.add()
            proto.CopyFrom(ir.serde.serialize_tensor(_in_memory(tensor)))
            proto.name = name
            return
        graph.input.add().CopyFrom(onnx.helper.make_tensor_value_info(name, int(constant.dtype), constant.shape))
        self.feeds[name] = constant.array

    def _add_functions(self, functions: Iterable[ir.Function]) -> None:
        imported = {opset.domain for opset in self._proto.opset_import}
        for function in functions:
            self._proto.functions.add().CopyFrom(ir.serde.serialize_function(function))
            for domain, version in {function.domain: 1, **function.opset_imports}.items():
                if domain not in imported:
                    imported.add(domain)
                    self._proto.opset_import.add(domain=domain, version=version)

    def infer(self) -> dict[ir.Value, Inferred]:
        """Types and shapes of the constants and of all results, inferred from the constants alone."""
        graph = onnx.shape_inference.infer_shapes(self._proto, data_prop=True).graph
        by_name = {}
        for info in (*graph.input, *graph.value_info):
            if not info.type.HasField("tensor_type") or not info.type.tensor_type.elem_type:
                continue
            tensor = info.type.tensor_type
            dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
            known = tensor.HasField("shape") and min(dims, default=0) >= 0
            by_name[info.name] = Inferred(ir.DataType(tensor.elem_type), tuple(dims) if known else None)
        for initializer in graph.initializer:
            by_name[initializer.name] = Inferred(ir.DataType(initializer.data_type), tuple(initializer.dims))
        return {value: by_name[name] for value, name in self._names.items() if name in by_name}

    def model(self, fetch: Sequence[ir.Value]) -> bytes:
        """The serialized model that gives these values."""
        del self._proto.graph.output[:]
        for value in fetch:
            self._proto.graph.output.add(name=self.name(value))
        return bytes(self._proto.SerializeToString())


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A tensor that is serialized with its contents, wherever these are now."""
    if isinstance(tensor, ir.Tensor | ir.StringTensor | ir.PackedTensor):
        return tensor
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(strings_of(tensor), shape=ir.Shape(Operand(tensor).shape))
    return ir.Tensor(tensor.numpy(), tensor.dtype, shape=ir.Shape(Operand(tensor).shape))
