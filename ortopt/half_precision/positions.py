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
from ortopt.graph.walk import WHOLE_GRAPH, Answers, Question, walk
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
        self._known: Answers[ir.Node, bool] = Answers()

    def may_give(self, node: ir.Node) -> bool:
        """Whether the positions that a node gives may be rounded, and so those that it reads.

        Args:
            node: A node whose results are positions.
        """
        return walk(self._gives, node, unknown=False, most=WHOLE_GRAPH, answers=self._known)

    def _gives(self, node: ir.Node) -> Question[ir.Node, bool]:
        if not self._keeps_digits(node) or any(value.is_graph_output() for value in node.outputs):
            return False
        for user in dict.fromkeys(use.node for value in node.outputs for use in value.uses()):
            if not ((yield user) if self._gives_positions(user) else self._may_read(user)):
                return False
        return True

    def _gives_positions(self, node: ir.Node) -> bool:
        is_cast = node.op_type == "Cast" and not node.domain
        return not is_cast and any(value in self._origins.positions for value in node.outputs)

    def _may_read(self, node: ir.Node) -> bool:
        """Whether a node that gives something else reads rounded positions as it would read positions."""
        if node.op_type == "Cast" and not node.domain:
            return node.attributes["to"].as_int() == ir.DataType.BOOL.value
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
