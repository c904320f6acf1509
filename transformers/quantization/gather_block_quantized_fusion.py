"""Rows of a table of few bits can be dequantized as they are gathered, and the rest of the table left alone."""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import (
    inputs,
    is_constant,
    is_used_once,
    need,
    need_float32,
    optional,
    plain_attributes,
    rank,
)
from ortopt.options import Target, TransformerLevel
from ortopt.patterns.quantization import dequantizer, scaling
from ortopt.patterns.quantized_blocks import LEAST_BLOCK
from ortopt.rule import RewriteRule
from ortopt.semantics.domains import MICROSOFT

FOUR_BITS = 4


class Found(Struct, frozen=True):
    """The nodes, the operands, and the attributes by name."""

    nodes: tuple[ir.Node, ...]
    operands: tuple[ir.Value | None, ...]
    numbers: dict[str, int]


class GatherBlockQuantizedFusion(RewriteRule[Found]):
    """``Gather(DequantizeLinear(blocks of w), i)`` → ``com.microsoft.GatherBlockQuantized(w, i)``.

    Exact: it dequantizes the same integers by the same scales, and fewer of them.
    """

    levels = (TransformerLevel.LEVEL2,)
    after = ("qdq_propagation",)
    roots = ("Gather",)
    targets = (Target.ORT,)
    produces = ((MICROSOFT, "GatherBlockQuantized"),)

    def match(self, root: ir.Node) -> Found:
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
        power = mapping.block >= LEAST_BLOCK and mapping.block & (mapping.block - 1) == 0
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
        return Found((node, root), operands, numbers)

    def rewrite(self, found: Found) -> ir.Node:
        """Build the kernel's node."""
        attributes = [ir.AttrInt64(name, number) for name, number in found.numbers.items()]
        return ir.Node(MICROSOFT, "GatherBlockQuantized", found.operands, attributes)
