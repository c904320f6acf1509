"""What is added to all keys alike changes no probability, so the bias of the keys' projection can go."""

from __future__ import annotations

import onnx_ir as ir

from ortopt import ops
from ortopt.graph.match import inputs, is_constant, is_op, need, operand_constant
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.attention.constant_rows import check_alike
from ortopt.patterns.attention.reading import behind_keys, reading
from ortopt.rule import NEWEST_OPSET, Forwarded, RewriteRule


class KeyBiasElimination(RewriteRule[Forwarded]):
    """``Softmax(q · (k + b)ᵀ)`` → ``Softmax(q · kᵀ)`` for a constant b.

    The products with b are the same in a row: a softmax does not see them. The attention may be one op.
    """

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2, TransformerLevel.LEVEL3)
    after = ("constant_folding", "matmul_split_decomposition", "reshape_fusion", "scale_folding")
    roots = ("Add", "Gemm")
    needs = ("Softmax", "Attention", "com.microsoft::MultiHeadAttention")
    opsets = (7, NEWEST_OPSET)  # before, an attribute said whether and where the second operand broadcasts
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Forwarded:
        """A constant that is added to nothing but the keys of an attention, to each key the same."""
        if is_op(root, "Add"):
            bias, keys = operand_constant(root)
        else:
            _, _, bias = inputs(root, 3)
            keys = root.outputs[0]
            need(is_constant(bias) and ops.Gemm(root).beta != 0, "no constant is added", root)
        block = reading(behind_keys(root.outputs[0]))
        need(block.keys.value is root.outputs[0], "it is not added to the keys of an attention", root)
        check_alike(bias, keys, block.keys, block.positions)
        return Forwarded((root,), keys)

    def rewrite(self, found: Forwarded) -> ir.Node | ir.Value:
        """Leave the constant out."""
        (root,) = found.nodes
        if is_op(root, "Add"):
            return found.value
        return ops.copied(root, root.inputs[:2])
