"""Nodes that must compute in float32 whatever a provider can do, and positions that may be of 16 bits all the same.

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
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.graph.walk import WHOLE_GRAPH, Answers, Question, walk
from ortopt.half_precision.arguments import is_single
from ortopt.half_precision.formats import Fit, Format, Magnitudes
from ortopt.semantics.op_traits import (
    CONTROL_FLOW,
    DEQUANTIZERS,
    ELEMENTWISE,
    MOVING,
    QUANTIZERS,
    RANDOM_OPS,
    REDUCTIONS,
    SHAPE_QUERIES,
)

_EXACT_INTEGERS: Final = frozenset({ir.DataType.BOOL, ir.DataType.UINT8, ir.DataType.INT8})
_FLOATS: Final = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_BOUNDED: Final = frozenset({"Cos", "Sin", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Erf", "HardSigmoid", "Sign"})

_ENLARGING: Final = frozenset({"Exp", "Pow", "ReduceProd", "ReduceSum", "ReduceSumSquare", "CumProd", "Cosh", "Sinh"})
"""Ops whose results may be large where their operands are not."""

_ADDING_INTEGERS: Final = frozenset({"ConvInteger", "MatMulInteger"})
"""Ops whose results are sums of products of 8 bits, which are scaled afterwards."""

_PRODUCTS: Final = frozenset({"Conv", "ConvTranspose", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul"})
_SUMS: Final = frozenset({"ReduceL1", "ReduceSum"})
_COMPARED: Final = 2.0**15
"""A number that is compared with one up to here compares alike as an infinity."""

_STAY_LARGE: Final = MOVING | REDUCTIONS | {"Abs", "Add", "Concat", "Max", "Mean", "Mul", "Neg", "Sub", "Sum", "Where"}
_SHRINKING: Final = frozenset({"ReduceLogSum", "ReduceLogSumExp"})


class Origins:
    """What the values of a model come from; nodes are followed in the graph's order."""

    def __init__(self) -> None:
        self.positions: set[ir.Value] = set()
        self.large: set[ir.Value] = set()
        self._fixed: set[ir.Value] = set()

    def follow(self, node: ir.Node) -> None:
        """Learn what a node gives.

        Args:
            node: A node whose operands' nodes have been followed.
        """
        operands = [value for value in node.inputs if value is not None]
        if node.op_type in CONTROL_FLOW or not node.outputs:
            return
        computed = [value for value in operands if not self._is_fixed(value)]
        if not computed and not semantics.is_random(node) and node.op_type not in SHAPE_QUERIES:
            self._fixed.update(node.outputs)
        elif is_single(node.outputs[0]) and not node.domain:
            if self._gives_positions(node, operands, computed):
                self.positions.update(node.outputs)
            if self._gives_large(node, computed):
                self.large.update(node.outputs)

    def _gives_positions(self, node: ir.Node, operands: list[ir.Value], computed: list[ir.Value]) -> bool:
        """Whether a node gives numbers that come from integers alone: positions, counts, timesteps."""
        if node.op_type in {"Cast", "CastLike"}:
            source = operands[0].dtype
            may_be_large = source is not None and source not in _FLOATS and source not in _EXACT_INTEGERS
            return may_be_large or operands[0] in self.positions
        if node.op_type in {"Range", "CumSum"}:
            return True
        if node.op_type in MOVING:
            return operands[0] in self.positions
        if node.op_type == "Concat":
            return all(value in self.positions for value in computed)
        if node.op_type in _BOUNDED or not (node.op_type in ELEMENTWISE or _is_outer_product(node)):
            return False
        floats = [value for value in computed if value.dtype == ir.DataType.FLOAT]
        return bool(floats) and all(value in self.positions for value in floats)

    def _gives_large(self, node: ir.Node, computed: list[ir.Value]) -> bool:
        """Whether a node gives squares, powers or sums, or keeps them about as large as they are."""
        if (
            node.op_type == "Cast"
            and (above := node.inputs[0]) is not None
            and (adding := above.producer()) is not None
        ):
            return adding.op_type in _ADDING_INTEGERS
        if gives_squares_to_products(node) or is_compared_sum(node):
            return False
        if is_square(node) or (node.op_type in _ENLARGING and not is_root(node)):
            return True
        floats = [value for value in computed if is_single(value)]
        stays = node.op_type in _STAY_LARGE and node.op_type not in _SHRINKING
        return stays and bool(floats) and all(value in self.large for value in floats)

    def _is_fixed(self, value: ir.Value) -> bool:
        """Whether a value follows from constants alone; a shape that is read of a result may be anything."""
        return value in self._fixed or semantics.constant_tensor(value) is not None


def is_square(node: ir.Node) -> bool:
    """Whether a node multiplies a value with itself."""
    return node.domain == "" and node.op_type == "Mul" and node.inputs[0] is node.inputs[1]


def is_root(node: ir.Node) -> bool:
    """Whether a power is a square root, or the number itself."""
    return node.op_type == "Pow" and _number(node.inputs[1]) in {0.5, 1.0}


def _number(value: ir.Value | None) -> float | None:
    """The only element of a constant; None of what is none, or has several."""
    tensor = semantics.constant_tensor(value)
    return float(tensor.numpy().reshape(-1)[0]) if tensor is not None and tensor.size == 1 else None


def is_compared_sum(node: ir.Node) -> bool:
    """Whether a node gives sums that are only compared with moderate numbers: an infinite one compares as it would.

    Kernels for 16 bits add up in float32, so that no infinities meet; and a sum does not vanish, as sums of numbers of
    16 bits are multiples of the smallest one.
    """
    if node.op_type not in _SUMS or node.domain or node.outputs[0].is_graph_output():
        return False
    uses = node.outputs[0].uses()
    return bool(uses) and all(_is_moderate_comparison(*use) for use in uses)


def _is_moderate_comparison(node: ir.Node, position: int) -> bool:
    if node.domain or node.op_type not in _COMPARISONS:
        return False
    number = _number(node.inputs[1 - position])
    return number is not None and abs(number) <= _COMPARED


def gives_squares_to_products(node: ir.Node) -> bool:
    """Whether a node squares for matrix products and the like alone: they read it in 16 bits, wherever it is computed.

    A square that is computed in float32 between Casts is the very number that a kernel of 16 bits gives.
    """
    is_second_power = node.op_type == "Pow" and not node.domain and _number(node.inputs[1]) == 2.0
    if not (is_square(node) or is_second_power):
        return False
    pending = [node.outputs[0]]
    while pending:
        value = pending.pop()
        if value.is_graph_output():
            return False
        for reader in (use.node for use in value.uses()):
            if reader.op_type in MOVING and not reader.domain:
                pending.extend(reader.outputs)
            elif reader.op_type not in _PRODUCTS:
                return False
    return True


def _is_outer_product(node: ir.Node) -> bool:
    """Whether a product adds nothing up: positions times frequencies."""
    if node.op_type not in {"MatMul", "Einsum"}:
        return False
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return node.op_type == "Einsum" or (shape is not None and len(shape) > 1 and shape[-1] == 1)


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
