"""The bias of an attention's values goes through the attention, and into the bias of the projection behind it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    is_op,
    is_used_once,
    need,
    need_float32,
    operand_constant,
    producer,
)
from ortopt.linear.layer import ending_in
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.attention.constant_rows import as_row
from ortopt.patterns.attention.reading import (
    above_result,
    check_has_keys,
    check_read_by_it_alone,
    may_have_biased_values,
    reading,
)
from ortopt.rule import NEWEST_OPSET, RewriteRule


class Found(Struct, frozen=True):
    """The two sums, and what becomes of them.

    Attributes:
        nodes: The sum of values and their bias; and the sum, or the Gemm, that adds the projection's bias.
        values: The values without their bias.
        bias: The projection's new bias.
    """

    nodes: tuple[ir.Node, ...]
    values: ir.Value
    bias: np.ndarray

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The results of both."""
        return tuple(node.outputs[0] for node in self.nodes)


class ValueBiasFolding(RewriteRule[Found]):
    """``softmax · (v + b) · W + c`` → ``softmax · v · W + (b · W + c)`` for constants b, W and c.

    Probabilities add up to 1, so that b is added to each row of the result. Attentions that give 0 where a row is
    masked as a whole, or where there are no keys, are left alone. The attention may be one op.
    """

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2, TransformerLevel.LEVEL3)
    after = ("constant_folding", "matmul_split_decomposition", "reshape_fusion")
    roots = ("Add", "Gemm")
    needs = ("Softmax", "Attention", "com.microsoft::MultiHeadAttention")
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
    lookback = 16
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """The bias of the projection of an attention's result, whose values have a bias too."""
        layer = ending_in(root)
        need_float32(layer.weight)
        node = above_result(layer.x)
        need(may_have_biased_values(node), "the values have no bias", node)
        block = reading(node)
        alone = block.result.value is layer.x and is_used_once(layer.x)
        need(alone, "the result of the attention is used elsewhere", layer.x)
        total = producer(block.values.value, "Add")
        need(total.graph is root.graph, "the values come from another graph", total)
        check_read_by_it_alone(total.outputs[0], node)
        added, values = operand_constant(total)
        need(block.adds_up, "where a row is masked as a whole, the result is 0", node)
        check_has_keys(node)
        row = as_row(added, values, block.values, block.result.groups[-1])
        need(len(row) == layer.inputs, "the projection does not fit", root)
        return Found((total, root), values, layer.bias_with(row))

    def rewrite(self, found: Found) -> dict[ir.Value, ir.Value]:
        """Build the sum, or the Gemm, with the new bias."""
        total, root = found.nodes
        unbiased = [operand_constant(root)[1]] if is_op(root, "Add") else root.inputs[:2]
        last = ops.copied(root, [*unbiased, constant(found.bias)])
        return {total.outputs[0]: found.values, root.outputs[0]: last.outputs[0]}
