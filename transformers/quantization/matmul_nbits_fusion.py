"""A weight of 4 or 8 bits in blocks can be dequantized in the kernel that multiplies by it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.errors import UsageError
from ortopt.framework.fusions import preferred
from ortopt.graph.edit import constant
from ortopt.graph.match import inputs, is_vector_of, need, need_float32, optional, plain_attributes, rank
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.quantized_blocks import Blocks, blocks
from ortopt.patterns.unpacked_weights import is_unpacked, unpacked
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.quantization._integer_products import bias_behind

ACCURACY_LEVELS = (0, 1, 4)
INT8 = 4
EIGHT_BITS = 8


@dataclass(frozen=True)
class Settings:
    """What a user can choose.

    Attributes:
        accuracy_level: 0 or 1 to compute in float32; 4 to round the activations to 8 bits, which is faster and
            moves results by some percent.
    """

    accuracy_level: int = 0

    def __post_init__(self) -> None:
        if self.accuracy_level not in ACCURACY_LEVELS:
            raise UsageError(f"accuracy_level is one of {', '.join(map(str, ACCURACY_LEVELS))}")


class Found(Struct, frozen=True):
    """The nodes, the activation, the weight and the bias; and the result.

    `order` says which elements of the activation the weight's rows belong to; None where they are in order.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    weight: Blocks
    columns: int
    bias: ir.Value | None
    y: ir.Value
    order: np.ndarray | None

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The result, which may stand below the root."""
        return (self.y,)


class MatmulNbitsFusion(RewriteRule[Found]):
    """``MatMul(x, DequantizeLinear(blocks of w)) + c`` → ``com.microsoft.MatMulNBits(x, w, c)``.

    So for Gemm, with a Transpose before it or without, and without a bias. ONNX Runtime makes the same kernel of the
    plainest form when it loads a model, with activations rounded to 8 bits; without that rounding the model would be
    slower. So the plainest form stays, unless all fusions are wanted, or ``accuracy_level=4`` is.

    The same holds for a weight that arithmetic unpacks, as in exports of GPTQ, AWQ and HQQ: shifts and masks, a Cast,
    a Sub, a Mul. ONNX Runtime computes its floats when it loads the model, which are faster than the kernel with
    activations of float32, but take four to eight times the memory. Where groups are scattered over the inputs (g_idx),
    a Gather brings the activations into their order.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("matmul_add_fusion", "qdq_propagation")
    roots = ("MatMul", "Gemm")
    looks_downstream = True
    numerics = Numerics.REORDERED
    targets = (Target.ORT,)
    produces = ((MICROSOFT, "MatMulNBits"),)
    Options = Settings

    def match(self, root: ir.Node) -> Found:
        """A product with a constant matrix in blocks along what is summed up."""
        plain_attributes(root)
        x, floats = inputs(root, 2)
        need_float32(x)
        need(rank(x) >= 2, "the first operand is a vector", x)
        turned = _check_gemm(root) if root.op_type == "Gemm" else False
        weight, order = self._weight(root, floats, turned)
        need(weight.integers.size > 0, "the weight is empty", floats)
        by_columns = weight.is_by_columns != turned
        need(by_columns, "the blocks lie along the result, not along what is summed up", floats)
        columns = weight.integers.shape[1 - weight.axis]
        nodes = (*reversed(weight.nodes), root)
        c = optional(root, 2)
        if c is not None:
            need(is_vector_of(c, columns), "the bias is no number for each column", c)
            return Found(nodes, x, weight, columns, c, root.outputs[0], order)
        addition, bias = bias_behind(root.outputs[0], columns)
        if addition is None:
            return Found(nodes, x, weight, columns, None, root.outputs[0], order)
        return Found((*nodes, addition), x, weight, columns, bias, addition.outputs[0], order)

    def _weight(self, root: ir.Node, floats: ir.Value, turned: bool) -> tuple[Blocks, np.ndarray | None]:
        """The weight, and the order of its rows; refused before anything is computed where the kernel is slower."""
        if is_unpacked(floats):
            self._check_preferred(root, "instead of floats")
            return unpacked(floats, by_rows=turned)
        weight = blocks(floats)
        as_at_load = not turned and not weight.turned
        slow = "of 8 bits" if weight.bits == EIGHT_BITS else ""
        self._check_preferred(root, "instead of ONNX Runtime's own" if as_at_load else slow)
        return weight, None

    def _check_preferred(self, root: ir.Node, variant: str) -> None:
        rounds = self.options.accuracy_level == INT8
        preferred(root, [Form(MICROSOFT, "MatMulNBits", "" if rounds else variant)])

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Pack the weight, and build the kernel's node."""
        weight = found.weight
        x = found.x
        if found.order is not None:
            x = ir.Node("", "Gather", [x, constant(found.order)], [ir.AttrInt64("axis", -1)]).outputs[0]
        operands: list[ir.Value | None] = [x, *map(constant, weight.packed())]
        if found.bias is not None:
            operands += [None, found.bias]
        numbers = {
            "K": weight.integers.shape[weight.axis],
            "N": found.columns,
            "accuracy_level": self.options.accuracy_level,
            "bits": weight.bits,
            "block_size": weight.size,
        }
        attributes = [ir.AttrInt64(name, number) for name, number in numbers.items()]
        return {found.y: ir.Node(MICROSOFT, "MatMulNBits", operands, attributes).outputs[0]}


def _check_gemm(root: ir.Node) -> bool:
    """Whether a Gemm transposes its weight; refuses what it does beside."""
    gemm = ops.Gemm(root)
    need(gemm.alpha == 1.0 and not gemm.transposes_a, "it scales or transposes", root)
    need(optional(root, 2) is None or gemm.beta == 1.0, "the bias is scaled", root)
    return gemm.transposes_b
