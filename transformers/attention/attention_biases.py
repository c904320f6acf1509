"""Constants that are added to the keys or the values of an attention: those go, and these go through it.

They may be the same at each position, or differ along the axes of a row. The attention may be spelled out, or one op.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    array_of,
    broadcasts_to,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    need_float32,
    operand_constant,
    producer,
)
from ortopt.linear.layer import ending_in
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.attention.reading import (
    above_result,
    behind_keys,
    changed_below,
    check_has_keys,
    check_read_by_it_alone,
    may_have_biased_values,
    reading,
)
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.views.axes import Axis, Group, View

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class KeyBiasElimination(RewriteRule[Match]):
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

    def match(self, root: ir.Node) -> Match:
        """A constant that is added to nothing but the keys of an attention, to each key the same."""
        is_sum = is_op(root, "Add")
        if is_sum:
            bias, keys = operand_constant(root)
        else:
            _, _, bias = inputs(root, 3)
            keys = root.outputs[0]
            need(is_constant(bias) and ops.Gemm(root).beta != 0, "no constant is added", root)
        block = reading(behind_keys(root.outputs[0]))
        need(block.keys.value is root.outputs[0], "it is not added to the keys of an attention", root)
        _, differs_along = _axes(bias, keys, block.keys)
        alike = not set(differs_along) & set(block.positions)
        need(alike, "what is added is not the same at each position", bias)
        changed = changed_below(root.outputs[0], (), as_keys=True)
        return Match((root,), lambda: keys if is_sum else ops.copied(root, root.inputs[:2]), changed=changed)


class ValueBiasFolding(RewriteRule[Match]):
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

    def match(self, root: ir.Node) -> Match:
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
        row = _as_row(added, values, block.values, block.result.groups[-1])
        need(len(row) == layer.inputs, "the projection does not fit", root)
        bias = layer.bias_with(row)
        replaced = (total.outputs[0], root.outputs[0])
        return Match(
            (total, root),
            lambda: dict(zip(replaced, (values, _with_bias(root, bias)), strict=True)),
            replaced,
            changed_below(total.outputs[0], (root,), as_keys=False),
        )


def _with_bias(root: ir.Node, bias: np.ndarray) -> ir.Value:
    """What a sum, or a Gemm, gives with another bias."""
    unbiased = [operand_constant(root)[1]] if is_op(root, "Add") else root.inputs[:2]
    return ops.copied(root, [*unbiased, constant(bias)]).outputs[0]


def _as_row(added: ir.Value, to: ir.Value, view: View, row: Group) -> Array:
    """A constant that is added, repeated as the axes of a row ask for.

    Args:
        added: A constant.
        to: What it is added to.
        view: The sum.
        row: The axes of a row: of all heads and their elements.

    Returns:
        As many numbers as a row has.

    Raises:
        Refusal: If it is not the same for each row, or if it enlarges the sum, or is not finite.
    """
    content, own = _axes(added, to, view)
    need(set(own) <= set(row), "what is added is not the same at each position", added)
    order = sorted(range(len(own)), key=lambda place: row.index(own[place]))
    shape = [_size(one) if one in own else 1 for one in row]
    return np.broadcast_to(content.transpose(order).reshape(shape), [_size(one) for one in row]).reshape(-1)


def _axes(added: ir.Value, to: ir.Value, view: View) -> tuple[Array, Group]:
    """A constant's content, in as many dimensions as there are axes along which it may differ; and these."""
    need_float32(to)
    need(broadcasts_to(added, dims(to)), "what is added enlarges the sum", added)
    content = array_of(added).astype(np.float64)
    need(bool(np.isfinite(content).all()), "what is added is not finite", added)
    shape = [1] * (len(view.parts) - content.ndim) + list(content.shape)
    own = tuple(one for dim, group in zip(shape, view.groups, strict=True) if dim != 1 for one in group)
    sizes = [_size(one) for one in own]
    need(int(np.prod(sizes)) == content.size, "what is added is not followed into the heads", added)
    return content.reshape(sizes), own


def _size(one: Axis) -> int:
    if not isinstance(one.size, int):
        raise Refusal("what is added differs along an axis of unknown size", None)
    return one.size
