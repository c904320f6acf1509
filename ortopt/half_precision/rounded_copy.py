"""A copy of a half-precision model that runs anywhere and gives what the model gives: float32, rounded at each step.

ONNX Runtime's CPU provider has few kernels of 16 bits. It casts around a node that has none, and drops the Casts
between two such nodes: what ought to be rounded, or to overflow, is neither, so a run there shows nothing of what the
model does where it really computes in 16 bits. In the copy everything is of float32, and each result that was of 16
bits is cast to 16 bits and back, as a kernel that adds up in float32 gives it.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt.analysis import shapes
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.options import Options
from ortopt.semantics.op_traits import MOVING
from ortopt.serialization.load import load
from ortopt.serialization.mapped_tensors import ConvertedTensor

_SINGLE: Final = ir.DataType.FLOAT
_DTYPE_ATTRIBUTES: Final = frozenset({"to", "dtype", "output_dtype"})
_EXACT: Final = MOVING | {"Abs", "Concat", "Max", "MaxPool", "Min", "Neg", "Relu", "ReduceMax", "ReduceMin", "Where"}
"""Ops whose results are operands of theirs, up to the sign: what is rounded stays so."""


def rounded_copy(model: ir.Model, dtype: ir.DataType, token: CancellationToken = NEVER) -> ir.Model:
    """The copy.

    Args:
        model: A model that computes in 16 bits here or there; it is not changed.
        dtype: The dtype of 16 bits that is replaced.
        token: Cancellation token.
    """
    copy = load(model, token, checked=False)
    _infer(copy, token)
    for graph in list(scope.graphs(copy, token)):
        is_main = graph is copy.graph
        for value in graph.initializers.values():
            if value.dtype == dtype and not value.is_graph_input():
                assert value.const_value is not None
                value.const_value = ConvertedTensor(value.const_value, _SINGLE)
                value.type = ir.TensorType(_SINGLE)
        for value in graph.inputs:
            if value.dtype == dtype:
                _enter(graph, value) if is_main else _retype(value)
        for node in token.checked(tuple(graph)):
            _widen(graph, node, dtype)
        if is_main:
            _leave(graph, dtype)
    return copy


def _infer(model: ir.Model, token: CancellationToken) -> None:
    """Know the types of all values; a model that has been worked on has them."""
    nodes = (node for graph in scope.graphs(model, token) for node in graph)
    if any(value.type is None and value.name != "" for node in nodes for value in node.outputs):
        scope.attach(model, Options(), token)
        shapes.infer_model(model, token)


def _retype(value: ir.Value) -> None:
    value.type = ir.TensorType(_SINGLE)


def _cast(value: ir.Value, dtype: ir.DataType, name: str | None) -> ir.Node:
    """A Cast, whose result has a name."""
    node = ir.node("Cast", [value], {"to": dtype.value})
    result = node.outputs[0]
    result.name, result.type, result.shape = name, ir.TensorType(dtype), value.shape
    return node


def _enter(graph: ir.Graph, value: ir.Value) -> None:
    """Inputs keep their type."""
    uses = tuple(value.uses())
    node = _cast(value, _SINGLE, f"{value.name}_wide")
    if len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)
    for holder, position in uses:
        holder.replace_input_with(position, node.outputs[0])


def _leave(graph: ir.Graph, dtype: ir.DataType) -> None:
    """Outputs keep their type."""
    for at, value in enumerate(graph.outputs):
        if value.meta.pop(_WAS_HALF, False):
            node = _cast(value, dtype, value.name)
            value.name = f"{value.name}_wide"
            graph.append(node)
            graph.outputs[at] = node.outputs[0]


_WAS_HALF: Final = "ortopt.half_precision.was_half"


def _widen(graph: ir.Graph, node: ir.Node, dtype: ir.DataType) -> None:
    """Let a node compute in float32, and round what it gives."""
    for name in _DTYPE_ATTRIBUTES & node.attributes.keys():
        attribute = node.attributes[name]
        is_number = attribute.type == ir.AttributeType.INT and not attribute.is_ref()
        if is_number and attribute.as_int() == dtype.value:
            node.attributes[name] = ir.AttrInt64(name, _SINGLE.value)
    for name, attribute in list(node.attributes.items()):
        if (
            attribute.type == ir.AttributeType.TENSOR
            and not attribute.is_ref()
            and attribute.as_tensor().dtype == dtype
        ):
            node.attributes[name] = ir.AttrTensor(name, ConvertedTensor(attribute.as_tensor(), _SINGLE))
    exact = node.domain == "" and (node.op_type in _EXACT or node.op_type in {"Constant", "ConstantOfShape"})
    for value in node.outputs:
        if value.dtype != dtype:
            continue
        _retype(value)
        value.const_value = None
        is_rounded = exact or any(True for _ in scope.nested(node))
        last = value if is_rounded else _round(graph, node, value, dtype)
        last.meta[_WAS_HALF] = True


def _round(graph: ir.Graph, node: ir.Node, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Cast a result to 16 bits and back, for all who read it; what they read from now on."""
    uses, outputs = tuple(value.uses()), [at for at, output in enumerate(graph.outputs) if output is value]
    down = _cast(value, dtype, f"{value.name}_rounded")
    up = _cast(down.outputs[0], _SINGLE, f"{value.name}_single")
    graph.insert_after(node, [down, up])
    for holder, position in uses:
        holder.replace_input_with(position, up.outputs[0])
    if outputs:
        value.name, up.outputs[0].name = up.outputs[0].name, value.name
        for at in outputs:
            graph.outputs[at] = up.outputs[0]
    return up.outputs[0]
