"""Weights that take a factor in, where no number of them is lost by that."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.graph.match import FLOATS, Refusal, array_of, is_constant, need, tensor_of
from ortopt.onnx_ir_internals import use_count

MAX_BYTES = 1 << 25
"""Larger weights stay mapped from the file: a scaled copy would be in memory."""

SMALL_BYTES = 1 << 14
"""Biases are often alike, and shared: so few bytes may be stored anew."""

SMALLEST = {
    ir.DataType.FLOAT: 2.0**-126,
    ir.DataType.DOUBLE: 2.0**-1022,
    ir.DataType.FLOAT16: 2.0**-14,
    ir.DataType.BFLOAT16: 2.0**-126,
}
"""Numbers from here on have all their digits."""


def scaled(value: ir.Value | None, factor: float | np.ndarray) -> np.ndarray:
    """A scaled constant, if every number in it stays finite and keeps all its digits.

    Args:
        value: Weights, or a bias, that nothing else uses, or that are small.
        factor: What they are scaled with; an array broadcasts to them.

    Raises:
        Refusal: If they cannot be scaled.
    """
    if value is None or not is_constant(value):
        raise Refusal("the weights are no constant", value)
    tensor = tensor_of(value)
    need(tensor.dtype in FLOATS, "the weights are no floats", value)
    private = use_count(value) == 1 or tensor.nbytes <= SMALL_BYTES
    need(private and not value.is_graph_output(), "the weights are used elsewhere", value)
    need(tensor.nbytes <= MAX_BYTES, "the weights are large", value)
    content = array_of(value)
    wide = content.astype(np.float64 if tensor.dtype == ir.DataType.DOUBLE else np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        result: np.ndarray = np.asarray(wide * np.asarray(factor, wide.dtype)).astype(content.dtype)
        back = result.astype(wide.dtype)
    smallest = SMALLEST[tensor.dtype]
    fine = np.isfinite(back) & ((np.abs(back) >= smallest) | (wide == 0))
    need(bool(fine.all()), "a weight would overflow or vanish", value)
    return result


__all__ = ["MAX_BYTES", "SMALLEST", "scaled"]
