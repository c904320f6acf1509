"""Weights of 4 or 8 bits in blocks, which kernels dequantize where they multiply by them or gather their rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.errors import UsageError
from ortopt.framework.fusions import preferred
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    inputs,
    is_constant,
    is_used_once,
    is_vector_of,
    need,
    need_float32,
    optional,
    plain_attributes,
    rank,
)
from ortopt.options import ONNX_RUNTIMES, Numerics, TransformerLevel
from ortopt.patterns.quantization import dequantizer, scaling
from ortopt.patterns.quantized_blocks import MIN_BLOCK, Blocks, blocks
from ortopt.patterns.unpacked_weights import is_unpacked, unpacked
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.quantization._kernels import bias_behind

ACCURACY_LEVELS = (0, 1, 4)
INT8 = 4
EIGHT_BITS = 8
FOUR_BITS = 4
BIAS = 5
"""The place of the kernel's bias."""


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


class MatmulNbitsFusion(RewriteRule[Match]):
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
    targets = ONNX_RUNTIMES
    produces = ((MICROSOFT, "MatMulNBits"),)
    Options = Settings

    def match(self, root: ir.Node) -> Match:
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
        bias = optional(root, 2)
        if bias is not None:
            need(is_vector_of(bias, columns), "the bias is no number for each column", bias)
        else:
            addition, bias = bias_behind(root.outputs[0], columns)
            nodes = nodes if addition is None else (*nodes, addition)
        y = nodes[-1].outputs[0]
        return Match.ending_in(y, nodes, lambda: self._kernel(_ordered(x, order), weight, bias))

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

    def _kernel(self, x: ir.Value, weight: Blocks, bias: ir.Value | None) -> ir.Node:
        """Pack the weight, and build the kernel's node."""
        numbers = {
            "K": weight.integers.shape[weight.axis],
            "N": weight.integers.shape[1 - weight.axis],
            "accuracy_level": self.options.accuracy_level,
            "bits": weight.bits,
            "block_size": weight.size,
        }
        operands = [x, *map(constant, weight.packed()), *([] if bias is None else [None, bias])]
        return ir.node("MatMulNBits", operands, numbers, domain=MICROSOFT)


class MatmulNbitsBiasFusion(RewriteRule[Match]):
    """``com.microsoft.MatMulNBits(x, w) + c`` → ``com.microsoft.MatMulNBits(x, w, c)``."""

    levels = (TransformerLevel.LEVEL2,)
    after = ("matmul_nbits_fusion",)
    roots = (f"{MICROSOFT}::MatMulNBits",)
    looks_downstream = True
    numerics = Numerics.REORDERED
    targets = ONNX_RUNTIMES
    produces = ((MICROSOFT, "MatMulNBits"),)

    def match(self, root: ir.Node) -> Match:
        """A number for each column, added by the one user."""
        attributes = plain_attributes(root)
        need(optional(root, BIAS) is None, "it has a bias", root)
        addition, bias = bias_behind(root.outputs[0], attributes["N"].as_int())
        if addition is None or bias is None:
            raise Refusal("nothing adds a number for each column that is there before", root)
        operands = [*(optional(root, index) for index in range(BIAS)), bias]
        return Match.ending_in(addition.outputs[0], (root, addition), lambda: ops.copied(root, operands))


class GatherBlockQuantizedFusion(RewriteRule[Match]):
    """``Gather(DequantizeLinear(blocks of w), i)`` → ``com.microsoft.GatherBlockQuantized(w, i)``.

    Exact: it dequantizes the same integers by the same scales, and fewer of them.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("qdq_propagation",)
    roots = ("Gather",)
    targets = ONNX_RUNTIMES
    produces = ((MICROSOFT, "GatherBlockQuantized"),)

    def match(self, root: ir.Node) -> Match:
        """A table of 4 bits in blocks along its last axis, gathered along another."""
        plain_attributes(root)
        floats, indices = inputs(root, 2)
        node = dequantizer(floats)
        plain_attributes(node)
        need(is_used_once(floats) and not floats.is_graph_output(), "others read the whole table", node)
        mapping = scaling(node)
        need(mapping.block > 0, "the table has no blocks of scales", node)
        need_float32(floats)
        need(mapping.integers.bitwidth == FOUR_BITS, "the integers are not of 4 bits", node)
        power = mapping.block >= MIN_BLOCK and mapping.block & (mapping.block - 1) == 0
        need(power, "the kernel wants blocks of 16, 32, 64 …", node)
        table, scale = inputs(node, 2)
        need(is_constant(table), "the table is no constant", table)
        axis = ops.Gather(root).axis
        need(axis != mapping.axis, "it gathers along the blocks", root)
        need(mapping.axis == rank(table) - 1, "the blocks do not lie along the last axis", node)
        numbers = {
            "bits": FOUR_BITS,
            "block_size": mapping.block,
            "gather_axis": axis,
            "quantize_axis": mapping.axis,
        }
        zero_point = optional(node, 2)
        operands = (table, indices, scale) if zero_point is None else (table, indices, scale, zero_point)
        kernel = partial(ir.node, "GatherBlockQuantized", operands, numbers, domain=MICROSOFT)
        return Match((node, root), kernel)


def _ordered(x: ir.Value, order: np.ndarray | None) -> ir.Value:
    """The activation in the order of the weight's rows; None is its own."""
    return x if order is None else ir.node("Gather", [x, constant(order)], {"axis": -1}).outputs[0]


def _check_gemm(root: ir.Node) -> bool:
    """Whether a Gemm transposes its weight; refuses what it does beside."""
    gemm = ops.Gemm(root)
    need(gemm.alpha == 1.0 and not gemm.transposes_a, "it scales or transposes", root)
    need(optional(root, 2) is None or gemm.beta == 1.0, "the bias is scaled", root)
    return gemm.transposes_b
