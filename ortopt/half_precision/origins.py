"""Where values come from, as far as that says something of their range: positions, constants, large numbers."""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt import semantics
from ortopt.half_precision.arguments import is_single
from ortopt.semantics.op_traits import CONTROL_FLOW, ELEMENTWISE, MOVING, REDUCTIONS, SHAPE_QUERIES

_EXACT_INTEGERS: Final = frozenset({ir.DataType.BOOL, ir.DataType.UINT8, ir.DataType.INT8})
_FLOATS: Final = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_BOUNDED: Final = frozenset({"Cos", "Sin", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Erf", "HardSigmoid", "Sign"})

_ENLARGING: Final = frozenset({"Exp", "Pow", "ReduceProd", "ReduceSum", "ReduceSumSquare", "CumProd", "Cosh", "Sinh"})
"""Ops whose results may be large where their operands are not."""

_ADDING_INTEGERS: Final = frozenset({"ConvInteger", "MatMulInteger"})
"""Ops whose results are sums of products of 8 bits, which are scaled afterwards."""

_PRODUCTS: Final = frozenset({"Conv", "ConvTranspose", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul"})
_SUMS: Final = frozenset({"ReduceL1", "ReduceSum"})
_COMPARISONS: Final = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
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
    tensor = semantics.constant_tensor(node.inputs[1]) if node.op_type == "Pow" else None
    return tensor is not None and tensor.size == 1 and float(tensor.numpy().reshape(-1)[0]) in {0.5, 1.0}


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
    tensor = semantics.constant_tensor(node.inputs[1 - position])
    return tensor is not None and tensor.size == 1 and abs(float(tensor.numpy().reshape(-1)[0])) <= _COMPARED


def gives_squares_to_products(node: ir.Node) -> bool:
    """Whether a node squares for matrix products and the like alone: they read it in 16 bits, wherever it is computed.

    A square that is computed in float32 between Casts is the very number that a kernel of 16 bits gives.
    """
    if not (is_square(node) or _is_second_power(node)):
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


def _is_second_power(node: ir.Node) -> bool:
    tensor = semantics.constant_tensor(node.inputs[1]) if node.op_type == "Pow" and not node.domain else None
    return tensor is not None and tensor.size == 1 and float(tensor.numpy().reshape(-1)[0]) == 2.0


def _is_outer_product(node: ir.Node) -> bool:
    """Whether a product adds nothing up: positions times frequencies."""
    if node.op_type not in {"MatMul", "Einsum"}:
        return False
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return node.op_type == "Einsum" or (shape is not None and len(shape) > 1 and shape[-1] == 1)
