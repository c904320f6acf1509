"""A bias before a residual sum goes into the shift of the normalization that the other summand comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Refusal,
    array_of,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used,
    is_used_once,
    need,
    need_float32,
    operand_constant,
    operand_from,
    optional,
    users,
)
from ortopt.linear.layer import ending_in, linear
from ortopt.linear.weights import rounded, row_product
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.attention.reading import behind_keys, changed_below, reading
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class Layer(NamedTuple):
    """What a linear layer adds to its product, now and then.

    Attributes:
        last: The sum of product and bias, the Gemm, or the attention that holds the layer.
        bias: The new bias.
    """

    last: ir.Node
    bias: np.ndarray


class ResidualBiasFolding(RewriteRule[Match]):
    """``r = LayerNormalization(x, g, s)``, ``r + (y + b)``, ``r·W + c`` → ``s + b`` for s, ``c - b·W`` for c, no b.

    What else reads the normalization's result are linear layers, whose biases take back what the shift adds; and keys
    of attentions, which need no bias. So it is in a transformer that normalizes after its sums, in each layer.
    """

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2, TransformerLevel.LEVEL3)
    after = ("constant_folding", "key_bias_elimination", "layer_norm_fusion", "value_bias_folding")
    roots = ("Add", "Sum")
    needs = ("LayerNormalization",)
    opsets = (8, NEWEST_OPSET)  # before, Sum did not broadcast
    looks_downstream = True
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A residual sum of a normalization's result, and of something with a bias."""
        normalization, biased = operand_from(root, "LayerNormalization")
        residual = normalization.outputs[0]
        total = biased.producer()
        if not is_op(total, "Add", "Sum"):
            raise Refusal("nothing with a bias is added to the normalization", root)
        bias, rest = operand_constant(total)
        need(total.graph is normalization.graph is root.graph, "they are in several graphs", root)
        need(is_used_once(biased), "what has the bias is used elsewhere", biased)
        need(not residual.is_graph_output(), "the normalization's result is used elsewhere", residual)
        need(not any(map(is_used, normalization.outputs[1:])), "mean and deviation are used", normalization)
        row = _row(bias, rest)
        shift = _shifted(normalization, row)
        readers = [node for node in users(residual) if node is not root]
        layers = tuple(_layers(readers, residual, row))
        need(all(layer.last is not total for layer in layers), "the bias is that of a layer to be changed", total)
        nodes = (root, total, normalization, *(layer.last for layer in layers))
        return Match(
            nodes,
            lambda: _without_bias(root, normalization, rest, shift, layers),
            (root.outputs[0], residual, *(layer.last.outputs[0] for layer in layers)),
            changed_below(residual, nodes, as_keys=True),
        )


def _without_bias(
    root: ir.Node, old: ir.Node, rest: ir.Value, shift: np.ndarray, layers: Sequence[Layer]
) -> dict[ir.Value, ir.Value]:
    """Build all that holds a constant with the new ones.

    Args:
        root: The residual sum.
        old: The normalization.
        rest: What is added to the normalization's result, without its bias.
        shift: The normalization's new shift.
        layers: The linear layers that read the normalization's result.
    """
    normalization = ops.copied(old, [*old.inputs[:2], constant(shift)])
    total = ir.node(root.op_type, [normalization.outputs[0], rest])
    made = {root.outputs[0]: total.outputs[0], old.outputs[0]: normalization.outputs[0]}
    for last, bias in layers:
        operands = [normalization.outputs[0], last.inputs[1], constant(bias), *last.inputs[3:]]
        if is_op(last, "Add", "Sum"):
            operands = [operand_constant(last)[1], constant(bias)]
        made[last.outputs[0]] = ops.copied(last, operands).outputs[0]
    return made


def _row(bias: ir.Value, rest: ir.Value) -> Array:
    need_float32(rest)
    need(len(dims(rest)) > 1 and dims(bias) == dims(rest)[-1:], "it is no bias of the last dimension", bias)
    row: Array = array_of(bias).astype(np.float64)
    need(bool(np.isfinite(row).all()), "the bias is not finite", bias)
    return row


def _shifted(normalization: ir.Node, row: Array) -> np.ndarray:
    """The shift with the bias in it, which must be no larger than what the normalization gives: else digits are lost.

    It gives numbers of mean 0 and deviation 1, times the scale, plus the shift.
    """
    _, scale, shift = inputs(normalization, 3)
    need(ops.OneAxis(normalization).is_last, "the normalization is over several dimensions", normalization)
    need(is_constant(scale) and is_constant(shift), "scale and shift are no constants", normalization)
    need(dims(scale) == dims(shift) == row.shape, "the bias is of another size", shift)
    contents = [array_of(value).astype(np.float64) for value in (scale, shift)]
    size = sum(float(np.square(content).sum()) for content in contents)
    need(float(np.square(row).sum()) <= size, "the bias is larger than what the normalization gives", normalization)
    return rounded(contents[1] + row, FLOAT, shift)


def _layers(readers: list[ir.Node], residual: ir.Value, row: Array) -> Iterator[Layer]:
    """The linear layers among the readers, with the biases that take the row back.

    Raises:
        Refusal: If a reader is neither one nor the projection of keys.
    """
    for node in readers:
        need(node.graph is residual.graph, "a subgraph uses the normalization's result", residual)
        need(residual not in node.inputs[1:], "the normalization's result is multiplied by what is no constant", node)
        if is_op(node, "Attention", domain=MICROSOFT):
            yield _packed_attention(node, row)
            continue
        need(is_op(node, "Gemm", "MatMul"), "the normalization's result is used by no linear layer", node)
        layer = linear(node)
        need_float32(layer.weight)
        need(layer.inputs == row.size, "a linear layer is of another width", layer.weight)
        last = node if is_op(node, "Gemm") else _sum(node.outputs[0])
        if last is None:
            need(_gives_keys(node.outputs[0]), "a linear layer has no bias", node)
            continue
        yield Layer(last, ending_in(last).bias_with(-row))


def _sum(unbiased: ir.Value) -> ir.Node | None:
    """What adds a constant to a product that nothing else reads."""
    user = users(unbiased)[0] if is_used_once(unbiased) else None
    is_sum = is_op(user, "Add", "Sum") and len(user.inputs) == 2
    if user is None or not is_sum or user.graph is not unbiased.graph:
        return None
    return user if any(value is not None and is_constant(value) for value in user.inputs) else None


def _packed_attention(node: ir.Node, row: Array) -> Layer:
    """The projections of queries, keys and values that ONNX Runtime's Attention computes itself."""
    weight, bias = node.inputs[1], optional(node, 2)
    if weight is None or bias is None:
        raise Refusal("a linear layer has no bias", node)
    need(not any(map(is_used, node.outputs[1:])), "its keys and values are used elsewhere", node)
    need_float32(weight)
    columns = array_of(weight)
    need(columns.shape[:1] == row.shape and columns.ndim == 2, "a linear layer is of another width", weight)
    need(is_constant(bias) and dims(bias) == columns.shape[1:], "a linear layer's bias is no row", bias)
    return Layer(node, rounded(array_of(bias) - row_product(row, columns), FLOAT, bias))


def _gives_keys(value: ir.Value) -> bool:
    """Whether a value is the keys of an attention and nothing else: what is added to all of them changes nothing."""
    try:
        block = reading(behind_keys(value))
    except Refusal:
        return False
    return block.keys.value is value and not set(block.keys.groups[-1]) & set(block.positions)
