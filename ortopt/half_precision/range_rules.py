"""Nodes that must compute in float32 whatever a provider can do: what is known by rule, before any run."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt import semantics
from ortopt.half_precision.arguments import is_single
from ortopt.half_precision.constants import Fit, Magnitudes
from ortopt.semantics.op_traits import (
    CONTROL_FLOW,
    DEQUANTIZERS,
    ELEMENTWISE,
    MOVING,
    QUANTIZERS,
    RANDOM_OPS,
    SHAPE_QUERIES,
)

WIDE: Final = frozenset(
    {
        *("Exp", "Log", "Pow", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceProd"),
        *("ReduceSum", "ReduceSumSquare", "CumSum", "CumProd", "LpNormalization", "LpPool", "GlobalLpPool"),
        *("MeanVarianceNormalization", "Cosh", "Sinh", "Tan", "Acosh", "Det", "NegativeLogLikelihoodLoss"),
        *("SoftmaxCrossEntropyLoss", "LRN"),
    }
)
"""Ops whose results, or sums inside, easily leave the range of 16 bits.

Softmax, normalizations and pools are none of them: their kernels for 16 bits add up in float32.
"""

PRECISE: Final = frozenset(
    {
        *("Acos", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Sin", "Range", "NonMaxSuppression", "RoiAlign"),
        *("MaxRoiPool", "MelWeightMatrix", "DFT", "STFT", "HannWindow", "HammingWindow", "BlackmanWindow"),
        *("GridSample", "AffineGrid", "Bernoulli", "Multinomial"),
    }
)
"""Ops of angles and coordinates: a thousandth of a position of 4,000 is several steps."""

_EXACT_INTEGERS: Final = frozenset({ir.DataType.BOOL, ir.DataType.UINT8, ir.DataType.INT8})
_BOUNDED: Final = frozenset({"Cos", "Sin", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Erf", "HardSigmoid", "Sign"})
_NEUTRAL_POWERS: Final = frozenset({0.5, 1.0})
_FLOATS: Final = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


class RangeRules:
    """Says why a node must compute in float32.

    Args:
        magnitudes: The magnitudes of constants.
    """

    def __init__(self, magnitudes: Magnitudes) -> None:
        self._magnitudes = magnitudes
        self._positions: set[ir.Value] = set()
        self._fixed: set[ir.Value] = set()  # what follows from constants alone

    def reason(self, node: ir.Node) -> str:
        """Why a node stays as it is, in words; empty where nothing speaks against 16 bits.

        Nodes are asked about in the graph's order: what is computed from positions alone is positions, too.

        Args:
            node: A node that reads or gives float32.
        """
        self._follow(node)
        if semantics.key(node) in RANDOM_OPS:
            return "it is random"
        if semantics.key(node) in DEQUANTIZERS | QUANTIZERS or self._is_in_quantized_unit(node):
            return "it is part of a quantized unit"
        if node.domain == "" and node.op_type in WIDE and not _is_harmless(node):
            return "its numbers may leave the range"
        if node.domain == "" and node.op_type in PRECISE:
            return "it needs the precision"
        if any(value in self._positions for value in node.outputs) and node.op_type not in SHAPE_QUERIES:
            return "" if node.op_type in {"Cast", "CastLike"} else "it computes with positions"
        if node.domain == "" and node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
            return "a square may leave the range"
        return self._constants(node)

    def _constants(self, node: ir.Node) -> str:
        for value in node.inputs:
            if value is None or not is_single(value):
                continue
            fit = self._magnitudes.fit(value, node)
            if fit is Fit.TOO_LARGE or (fit is Fit.TOO_SMALL and node.op_type not in MOVING):
                return (
                    f"its constant {value.name!r} is {fit.value}"
                    if fit is Fit.TOO_LARGE
                    else (f"its constant {value.name!r} {fit.value}")
                )
        return ""

    def _follow(self, node: ir.Node) -> None:
        """Mark what is computed from integers, and what from constants alone."""
        operands = [value for value in node.inputs if value is not None]
        if node.op_type in CONTROL_FLOW or not node.outputs:
            return
        computed = [value for value in operands if not self._is_fixed(value)]
        if not computed and not semantics.is_random(node) and node.op_type not in SHAPE_QUERIES:
            self._fixed.update(node.outputs)
            return
        if not is_single(node.outputs[0]) or node.domain:
            return
        if node.op_type in {"Cast", "CastLike"}:
            source = operands[0].dtype
            may_be_large = source is not None and source not in _FLOATS and source not in _EXACT_INTEGERS
            if may_be_large or operands[0] in self._positions:
                self._positions.update(node.outputs)
        elif node.op_type in {"Range", "CumSum"}:
            self._positions.update(node.outputs)
        elif node.op_type in MOVING:
            if operands[0] in self._positions:
                self._positions.update(node.outputs)
        elif node.op_type not in _BOUNDED and (node.op_type in ELEMENTWISE or self._is_outer_product(node)):
            floats = [value for value in computed if value.dtype == ir.DataType.FLOAT]
            if floats and all(value in self._positions for value in floats):
                self._positions.update(node.outputs)
        elif node.op_type == "Concat" and all(value in self._positions for value in computed):
            self._positions.update(node.outputs)

    def _is_fixed(self, value: ir.Value) -> bool:
        """Whether a value follows from constants alone; a shape that is read of a result may be anything."""
        return value in self._fixed or semantics.constant_tensor(value) is not None

    def _is_outer_product(self, node: ir.Node) -> bool:
        """Whether a product adds nothing up: positions times frequencies."""
        if node.op_type not in {"MatMul", "Einsum"}:
            return False
        shape = None if node.inputs[0] is None else node.inputs[0].shape
        return node.op_type == "Einsum" or (shape is not None and len(shape) > 1 and shape[-1] == 1)

    def _is_in_quantized_unit(self, node: ir.Node) -> bool:
        """Whether operands are dequantized, or the result is quantized: such nodes are matched together."""
        above = (None if value is None else value.producer() for value in node.inputs)
        if any(one is not None and semantics.key(one) in DEQUANTIZERS for one in above):
            return True
        users = [usage.node for value in node.outputs for usage in value.uses()]
        return any(semantics.key(user) in QUANTIZERS for user in users)


def _is_harmless(node: ir.Node) -> bool:
    """Whether a power is a root, or the number itself."""
    if node.op_type != "Pow" or node.inputs[1] is None:
        return False
    tensor = semantics.constant_tensor(node.inputs[1])
    return tensor is not None and tensor.size == 1 and float(tensor.numpy().reshape(-1)[0]) in _NEUTRAL_POWERS


__all__ = ["PRECISE", "WIDE", "RangeRules"]
