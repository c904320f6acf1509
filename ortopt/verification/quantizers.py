"""Which ops round floats to integers of few bits, on the way from floats to floats or as their result.

Rounding has steps: a number between two of them goes to the one or the other by its last place, and what is computed
from it moves by a whole step. So a quantized model moves far more than its floats' last places say.

A Conv or Gemm of dequantized operands may have a bias of floats. Its integer twin has one of 32 bits, so that the bias
is rounded, always to the same number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.semantics import constant_tensor
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import DEQUANTIZERS, QUANTIZERS
from ortopt.verification.node_writer import NodeWriter

_FROM_THIRD: Final = ("Sigmoid", "LeakyRelu", "Softmax", "AveragePool", "GlobalAveragePool")

OUTPUT_SCALES: Final = {
    ("", "QLinearConv"): 6,
    ("", "QLinearMatMul"): 6,
    (MICROSOFT, "QLinearConv"): 6,
    (MICROSOFT, "QLinearAdd"): 6,
    (MICROSOFT, "QLinearMul"): 6,
    **{(MICROSOFT, f"QLinear{name}"): 3 for name in _FROM_THIRD},
    (MICROSOFT, "QLinearConcat"): 0,
    (MICROSOFT, "QLinearWhere"): 7,
    (MICROSOFT, "QGemm"): 7,
}
"""Ops that compute with integers: which input is the scale of the output; its zero point follows."""

DYNAMIC: Final = frozenset({(MICROSOFT, "DynamicQuantizeMatMul"), (MICROSOFT, "DynamicQuantizeLSTM")})
"""Ops that round their first operand as DynamicQuantizeLinear does, within themselves."""

_INT8: Final = 4
"""The accuracy level of MatMulNBits at which it rounds its first operand to 8 bits, by blocks."""


def is_blockwise(node: ir.Node) -> bool:
    """Whether a node is a MatMulNBits that rounds its first operand."""
    return (
        (node.domain, node.op_type) == (MICROSOFT, "MatMulNBits")
        and "accuracy_level" in node.attributes
        and node.attributes.get_int("accuracy_level", 0) == _INT8
    )


def rounds(node: ir.Node) -> bool:
    """Whether a node rounds floats to integers of few bits."""
    key = node.domain, node.op_type
    if key in OUTPUT_SCALES:
        scale = OUTPUT_SCALES[key]
        return len(node.inputs) > scale and node.inputs[scale] is not None  # QGemm may give floats
    return key in QUANTIZERS or key == ("", "DynamicQuantizeLinear") or key in DYNAMIC or is_blockwise(node)


def quantizers(model: ir.Model, token: CancellationToken = NEVER) -> Iterator[ir.Node]:
    """The nodes of a model that round what depends on its inputs, in all graphs.

    Args:
        model: The model.
        token: Cancellation token.
    """
    for graph in scope.graphs(model, token):
        for node in token.checked(tuple(graph)):
            if rounds(node) and any(value is not None and value.const_value is None for value in node.inputs):
                yield node


def quantized_outputs(model: ir.Model, token: CancellationToken = NEVER) -> frozenset[str]:
    """The outputs that depend on a node that rounds, at any depth. Linear in the nodes.

    Args:
        model: The model.
        token: Cancellation token.
    """
    functions = {key for key, function in model.functions.items() if any(map(rounds, _every_node(function.graph)))}
    moved: set[ir.Value] = set()
    for node in token.checked(model.graph):
        inner = (node, *(each for graph in scope.nested(node) for each in graph))
        if any(
            rounds(each) or each.op_identifier() in functions or not moved.isdisjoint(each.inputs) for each in inner
        ):
            moved.update(node.outputs)
    return frozenset(value.name or "" for value in model.graph.outputs if value in moved)


def _every_node(graph: ir.Graph) -> Iterator[ir.Node]:
    return (node for each in scope.below(graph) for node in each)


Array = np.ndarray[Any, Any]


def round_biases(model: ir.Model, token: CancellationToken = NEVER) -> None:
    """Round constant biases, in place.

    Args:
        model: A copy of a model.
        token: Cancellation token.
    """
    opset = model.opset_imports.get("", 1)
    for node, rounded in list(_biases(model, token)):
        node.replace_input_with(2, NodeWriter(node, opset).constant(rounded, np.float32))


def has_biases(model: ir.Model, token: CancellationToken = NEVER) -> bool:
    """Whether there is anything to round.

    Args:
        model: The model.
        token: Cancellation token.
    """
    return any(True for _ in _biases(model, token))


def _biases(model: ir.Model, token: CancellationToken) -> Iterator[tuple[ir.Node, Array]]:
    """The nodes with such a bias, and what becomes of it."""
    for graph in scope.below(model.graph):
        for node in token.checked(tuple(graph)):
            if not node.domain and node.op_type in ("Conv", "Gemm") and len(node.inputs) > 2:
                rounded = _rounded_bias(node)
                if rounded is not None:
                    yield node, rounded


def _rounded_bias(node: ir.Node) -> Array | None:
    bias, data, weights = constant_tensor(node.inputs[2]), _scale(node.inputs[0]), _scale(node.inputs[1])
    if bias is None or data is None or weights is None or bias.dtype != ir.DataType.FLOAT:
        return None
    numbers = bias.numpy()
    units = data.astype(np.float64) * weights
    if data.size != 1 or units.size not in (1, numbers.size) or numbers.ndim != 1 or not (units > 0).all():
        return None
    if node.op_type == "Gemm":
        units = units * node.attributes.get_float("alpha", 1.0) / node.attributes.get_float("beta", 1.0)
    return np.asarray(np.rint(numbers / units.reshape(-1)) * units.reshape(-1)).astype(np.float32)


def _scale(value: ir.Value | None) -> Array | None:
    """The constant scale of what has been dequantized."""
    node = None if value is None else value.producer()
    if node is None or (node.domain, node.op_type) not in DEQUANTIZERS:
        return None
    scale = constant_tensor(node.inputs[1])
    return None if scale is None else scale.numpy()
