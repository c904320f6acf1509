"""Nodes that must compute in float32 whatever a provider can do: what is known by rule, before any run."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.half_precision.arguments import is_single
from ortopt.half_precision.constants import Fit, Magnitudes
from ortopt.half_precision.formats import Format
from ortopt.half_precision.origins import (
    Origins,
    gives_squares_to_products,
    is_compared_sum,
    is_root,
    is_square,
)
from ortopt.half_precision.positions import RoundedPositions
from ortopt.semantics.op_traits import DEQUANTIZERS, ELEMENTWISE, MOVING, QUANTIZERS, RANDOM_OPS, REDUCTIONS

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

PRECISION: Final = "it needs the precision"

_LARGE: Final = 1e30
"""A format with numbers beyond it has the range of float32: what is wide is still a matter of digits."""

_READS_LARGE: Final = REDUCTIONS | ELEMENTWISE | MOVING | {"Concat"}
"""Ops that stay in float32 behind a square, a power or a sum: the range is needed until a root or a quotient."""


class RangeRules:
    """Says why a node must compute in float32.

    Args:
        model: The model.
        magnitudes: The magnitudes of constants.
        form: The format.
        token: Cancellation token.
    """

    def __init__(self, model: ir.Model, magnitudes: Magnitudes, form: Format, token: CancellationToken = NEVER) -> None:
        self._magnitudes = magnitudes
        self._has_range = form.largest > _LARGE
        self._origins = Origins()
        for graph in scope.graphs(model, token):
            for node in token.checked(graph):
                self._origins.follow(node)
        self._rounded = RoundedPositions(self._origins, magnitudes, form, self.reason)

    def reason(self, node: ir.Node) -> str:
        """Why a node stays as it is, in words; empty where nothing speaks against 16 bits.

        Args:
            node: A node.
        """
        if semantics.key(node) in RANDOM_OPS:
            return "it is random"
        if semantics.key(node) in DEQUANTIZERS | QUANTIZERS or _is_in_quantized_unit(node):
            return "it is part of a quantized unit"
        return ("" if node.domain else self._arithmetic(node)) or self._constants(node)

    def _arithmetic(self, node: ir.Node) -> str:
        if self._may_leave(node):
            return PRECISION if self._has_range else "its numbers may leave the range"
        if node.op_type in PRECISE:
            return PRECISION
        if node.op_type in _READS_LARGE and any(value in self._origins.large for value in node.inputs):
            return PRECISION if self._has_range else "what it reads may be beyond the range"
        if any(value in self._origins.positions for value in node.outputs) and node.op_type not in {"Cast", "CastLike"}:
            return "" if self._rounded.may_give(node) else "it computes with positions"
        return ""

    def _may_leave(self, node: ir.Node) -> bool:
        """Whether results may be beyond the range, and someone needs them."""
        is_wide = is_square(node) or (node.op_type in WIDE and not is_root(node))
        return is_wide and not is_compared_sum(node) and not gives_squares_to_products(node)

    def _constants(self, node: ir.Node) -> str:
        for value in node.inputs:
            if value is None or not is_single(value):
                continue
            fit = self._magnitudes.fit(value, node)
            if fit is Fit.TOO_LARGE or (fit is Fit.TOO_SMALL and node.op_type not in MOVING):
                return f"its constant {value.name!r} {fit.value}"
        return ""


def _is_in_quantized_unit(node: ir.Node) -> bool:
    """Whether operands are dequantized, or the result is quantized: such nodes are matched together."""
    above = (None if value is None else value.producer() for value in node.inputs)
    if any(one is not None and semantics.key(one) in DEQUANTIZERS for one in above):
        return True
    users = [usage.node for value in node.outputs for usage in value.uses()]
    return any(semantics.key(user) in QUANTIZERS for user in users)


__all__ = ["PRECISE", "WIDE", "RangeRules"]
