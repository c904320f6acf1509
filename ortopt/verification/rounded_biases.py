"""Biases beside quantized operands, as integer kernels take them: multiples of the product of the operands' scales.

A Conv or Gemm of dequantized operands may have a bias of floats. Its integer twin has one of 32 bits, so that the bias
is rounded, always to the same number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.semantics import constant_tensor
from ortopt.semantics.op_traits import DEQUANTIZERS
from ortopt.verification.node_writer import NodeWriter

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


__all__ = ["has_biases", "round_biases"]
