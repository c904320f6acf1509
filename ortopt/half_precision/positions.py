"""Positions that may be of 16 bits: those of which only the relative precision counts, as masks that come as integers.

Whether a number is a position, a count or a part of a mask, its type does not say. 16 bits have no odd number above
2,048, which an angle or a difference of positions does not bear. But where a number is only moved, scaled by what is
no smaller than 1, added to a small integer, and then meets results in 16 bits, it would be rounded there anyway: it
loses nothing by being rounded from the start, and is infinite where it would have become so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.half_precision.constants import Fit, Magnitudes
from ortopt.half_precision.formats import Format
from ortopt.half_precision.origins import Origins
from ortopt.semantics.op_traits import MOVING

_COMPARISONS: Final = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_MEETS_RESULTS: Final = frozenset(
    {
        *("Add", "Attention", "Div", "Gemm", "MatMul", "Max", "Min", "Mul", "MultiHeadAttention", "Softmax", "Sub"),
        *("Sum", "Where"),
    }
)
"""Ops of 16 bits that may read a rounded position beside what is computed."""


class RoundedPositions:
    """Says which positions may be rounded.

    Args:
        origins: What is known of all values.
        magnitudes: The magnitudes of constants.
        form: The format.
        reason: Why a node stays in float32; empty where nothing speaks against 16 bits.
    """

    def __init__(
        self, origins: Origins, magnitudes: Magnitudes, form: Format, reason: Callable[[ir.Node], str]
    ) -> None:
        self._origins = origins
        self._magnitudes = magnitudes
        self._small = form.integers // 2
        self._reason = reason
        self._known: dict[ir.Node, bool] = {}

    def may_give(self, node: ir.Node) -> bool:
        """Whether the positions that a node gives may be rounded, and so those that it reads.

        Args:
            node: A node whose results are positions.
        """
        if node not in self._known:
            self._known[node] = self._keeps_digits(node) and all(map(self._may_be_rounded, node.outputs))
        return self._known[node]

    def _may_be_rounded(self, value: ir.Value) -> bool:
        return not value.is_graph_output() and all(self._may_read(use.node) for use in value.uses())

    def _may_read(self, node: ir.Node) -> bool:
        """Whether a node reads rounded positions as it would read positions."""
        if node.op_type == "Cast" and not node.domain:
            return node.attributes["to"].as_int() == ir.DataType.BOOL.value
        if any(value in self._origins.positions for value in node.outputs):
            return self.may_give(node)
        if node.op_type in _COMPARISONS:  # no position is what masks are filled with
            return any(value is not None and self._magnitudes.fit(value, node) is Fit.MASK for value in node.inputs)
        return node.op_type in _MEETS_RESULTS and not self._reason(node)

    def _keeps_digits(self, node: ir.Node) -> bool:
        """Whether what a node gives is relatively as precise as what it reads, and no smaller."""
        operands = [value for value in node.inputs if value is not None]
        constants = [tensor for value in operands if (tensor := semantics.constant_tensor(value)) is not None]
        if node.domain:
            return False
        if node.op_type in MOVING or node.op_type in {"Abs", "Concat", "Neg", "Where"}:
            return True
        if node.op_type not in {"Add", "Mul", "Sub"} or len(constants) != 1 or len(operands) != 2:
            return False
        numbers = np.asarray(constants[0].numpy())
        if node.op_type == "Mul":
            return bool((np.isfinite(numbers) & (np.abs(numbers) >= 1)).all())
        return bool(((numbers == np.floor(numbers)) & (np.abs(numbers) <= self._small)).all())


__all__ = ["RoundedPositions"]
