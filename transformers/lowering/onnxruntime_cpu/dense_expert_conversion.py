"""Experts that each compute all rows, most of which are then multiplied by 0, compute the rows that chose them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.framework.fusions import check_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Dim,
    Refusal,
    attribute,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used_once,
    need,
    need_fixed,
    need_float32,
    opset,
    producer,
    rank,
    same_dim,
    shape_of,
    splat,
)
from ortopt.options import Numerics
from ortopt.rule import NEWEST_OPSET
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import BROADCASTING, UNARY
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED, CpuRule
from ortopt.transformers.lowering.onnxruntime_cpu.gathered_product_decomposition import COMPUTED_SIZES_FROM, FOR_EACH

MAX_NODES: Final = 32
"""Nodes of an expert."""


class Routing(Struct, frozen=True):
    """Which experts a row has, and what each counts.

    Attributes:
        chosen: The experts of each row, all different.
        weights: What each counts.
        experts: How many experts there are.
        rows: How many rows there are.
        each: How many experts a row has.
    """

    chosen: ir.Value
    weights: ir.Value
    experts: int
    rows: Dim
    each: int


class DenseExperts(Struct, frozen=True):
    """What experts compute of all rows.

    Attributes:
        nodes: The nodes, in their order, and the sum.
        inner: Those that compute something of rows and matrices.
        sources: Rows that are the same for all experts, each with what it was before it was repeated, of shape
            [1, rows, columns] or [rows, columns].
        result: What the experts give.
        routing: Who has which experts.
    """

    nodes: tuple[ir.Node, ...]
    inner: tuple[ir.Node, ...]
    sources: dict[ir.Value, ir.Value]
    result: ir.Value
    routing: Routing


class DenseExpertConversion(CpuRule[DenseExperts]):
    """``ReduceSum(experts(Tile(x))·Scatter(0, chosen, weights))`` → ``ReduceSum(chosen experts(x)·weights)``.

    Exporters that cannot loop over experts compute all of them for each row (gpt-oss of Hugging Face's transformers 4).
    A number times 0 is 0; where an expert that a row does not have gives an infinity or none, the row holds no number,
    and here it holds one. `gathered_product_decomposition` then multiplies the rows of each expert at once.
    """

    roots = ("ReduceSum",)
    opsets = (COMPUTED_SIZES_FROM, NEWEST_OPSET)
    numerics = Numerics.FINITE
    weighs = (FOR_EACH,)
    lookback = MAX_NODES

    def match(self, root: ir.Node) -> DenseExperts:
        """The sum over all experts of what each gives, times a weight that is 0 but for a few."""
        weighted = inputs(root, len(root.inputs))[0]
        shape = dims(weighted, 3)
        is_over_experts = ops.Reduce(root).axes_of(3) == (0,) and not ops.Reduce(root).keeps_axes
        need(is_over_experts, "it is no sum over the first of three axes", root)
        product = producer(weighted, "Mul")
        first, second = inputs(product, 2)
        result, marks = (first, second) if dims(second)[-1:] == (1,) else (second, first)
        routing = _routing(marks)
        is_whole = same_dim(shape[0], routing.experts) and same_dim(shape[1], routing.rows)
        need(is_whole, "the weights are of other rows", product)
        inner, sources = _experts(result, routing)
        return DenseExperts((*inner, product, root), inner, sources, result, routing)

    def rewrite(self, found: DenseExperts) -> ir.Value:
        """Compute all that an expert computes with one row for each expert that it has."""
        version = opset(found.nodes[-1])
        chosen = found.routing.chosen
        values = {old: _as_rows(new, version) for old, new in found.sources.items()}
        for node in found.inner:
            operands = [value and values.get(value, value) for value in node.inputs]
            for place, value in enumerate(node.inputs):
                if value is not None and value not in values and rank(value) == 3:
                    operands[place] = ir.node("Gather", [value, chosen], {"axis": 0}).outputs[0]
            if is_op(node, "Slice"):
                operands[3] = constant([-1])
            values[node.outputs[0]] = ops.copied(node, operands).outputs[0]
        weights = ops.unsqueezed(found.routing.weights, [2, 3], version)
        weighted = ir.node("Mul", [values[found.result], weights]).outputs[0]
        return ops.node_along("ReduceSum", weighted, [1, 2], version, {"keepdims": 0}).outputs[0]


def _as_rows(value: ir.Value, version: int) -> ir.Value:
    """Rows with two axes of one element in front of the columns: that of a row's experts, and one for a product."""
    if rank(value) == 3:
        return ir.node("Transpose", [ops.unsqueezed(value, [0], version)], {"perm": [2, 0, 1, 3]}).outputs[0]
    return ops.unsqueezed(value, [1, 2], version)


def _routing(marks: ir.Value) -> Routing:
    """Read weights of experts, rows and a last axis of one element, which are 0 where a row has not chosen an expert.

    Raises:
        Refusal: If they are not known to be.
    """
    experts, rows, one = dims(marks, 3)
    need(one == 1, "a row has several weights", marks)
    turned = inputs(producer(marks, "Unsqueeze", "Reshape"), 2)[0]
    turn = producer(turned, "Transpose")
    need(rank(turned) == 2 and ops.Transpose(turn).order == (1, 0), "the weights are arranged otherwise", turn)
    same = same_dim(dims(turned)[0], experts) and same_dim(dims(turned)[1], rows)
    need(same, "the weights are arranged otherwise", marks)
    scatter = producer(inputs(turn, 1)[0], "ScatterElements")
    zeros, chosen, weights = inputs(scatter, 3)
    is_by_row = ops.OneAxis(scatter).axis_of(2) == 1 and attribute(scatter, "reduction", "none") == "none"
    need(is_by_row, "a row's weights do not stay apart", scatter)
    need(not splat(zeros).any(), "an expert that is not chosen has a weight", zeros)
    top = chosen.producer()
    is_best = is_op(top, "TopK") and chosen is top.outputs[1] and ops.OneAxis(top).axis_of(2) == 1
    need(is_best, "a row may have an expert twice", chosen)
    need(same_dim(dims(chosen, 2)[0], rows), "some rows have no experts", chosen)
    count, each = need_fixed((experts, dims(chosen, 2)[1]), "it is not known how many experts a row has", chosen)
    need(same_dim(dims(weights, 2)[1], each), "a part of the chosen experts has weights", weights)
    need(0 < each * 2 <= count, "a row has many of the experts", chosen)  # at half of them it is 1.4 times as fast
    return Routing(chosen, weights, count, rows, each)


def _experts(result: ir.Value, routing: Routing) -> tuple[tuple[ir.Node, ...], dict[ir.Value, ir.Value]]:
    """The nodes between rows that are the same for all experts and what these give, and such rows."""
    sources: dict[ir.Value, ir.Value] = {}
    nodes: dict[ir.Node, None] = {}
    pending, products = [result], 0
    while pending:
        value = pending.pop()
        node = value.producer()
        if value in sources or node in nodes or is_constant(value):
            continue
        if (rows := _rows(value, routing)) is not None:
            sources[value] = rows
            continue
        if node is None:
            raise Refusal("experts get different rows", value)
        nodes[node] = None
        need(len(nodes) <= MAX_NODES, "it is a long way to the rows", node)
        products += is_op(node, "MatMul")
        _check(node, routing)
        pending.extend(other for other in node.inputs if other is not None)
    need(products > 0 and bool(sources), "nothing is multiplied by matrices of experts", result)
    return tuple(_ordered(nodes)), sources


def _ordered(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """A few nodes, each behind those that it reads."""
    left = dict.fromkeys(nodes)
    while left:
        ready = [node for node in left if not any(value and value.producer() in left for value in node.inputs)]
        yield from ready
        for node in ready:
            del left[node]


def _rows(value: ir.Value, routing: Routing) -> ir.Value | None:
    """The rows that are repeated for each expert; None where they are not."""
    node = value.producer()
    shape = shape_of(value)
    if shape is None or len(shape) != 3 or not same_dim(shape[1], routing.rows):
        return None
    if same_dim(shape[0], 1):
        return value
    if is_op(node, "Expand"):
        assert node is not None
        rows = inputs(node, 2)[0]
        has_one = rank(rows) == 3 and same_dim(dims(rows)[0], 1) and same_dim(dims(rows)[1], shape[1])
        return rows if has_one and same_dim(dims(rows)[2], shape[2]) else None
    if not is_op(node, "Reshape"):
        return None
    assert node is not None
    tile = inputs(node, 2)[0].producer()
    if tile is None or not is_op(tile, "Tile"):
        return None
    rows = inputs(tile, 2)[0]
    fits = rank(rows) == 2 and same_dim(dims(rows)[0], shape[1]) and same_dim(dims(rows)[1], shape[2])
    is_by_row = fits and same_dim(dims(tile.outputs[0])[1], shape[2])  # no columns are repeated
    return rows if is_by_row and same_dim(shape[0], routing.experts) else None


def _check(node: ir.Node, routing: Routing) -> None:
    """Refuse a node that does not compute each row of each expert by itself."""
    if is_op(node, "MatMul"):
        rows, matrices = inputs(node, 2)
        need(not is_constant(rows), "the rows are constant", rows)
        need(is_constant(matrices) and is_used_once(matrices), "the matrices are not constant", matrices)
        need_float32(matrices, MEASURED)
        count, inner, outer = need_fixed(dims(matrices, 3), "the matrices have no fixed size", matrices)
        need(count == routing.experts and min(inner, outer) > 0, "the matrices are of others", matrices)
        check_faster(node, FOR_EACH, elements=(routing.rows, routing.each, inner, outer), parts=count)
        return
    if is_op(node, "Slice"):
        is_of_columns = len(node.inputs) > 3 and ops.Slice(node).axes == (2,)
        need(is_of_columns and all(map(is_constant, node.inputs[1:])), "it cuts other than columns", node)
        return
    is_gelu = node.domain == MICROSOFT and node.op_type == "QuickGelu"
    need(is_gelu or is_op(node, *UNARY, *BROADCASTING, "Clip"), "it may compute a row from others", node)
    for value in node.inputs:
        if value is not None and is_constant(value):
            shape = dims(value)
            is_of_expert = len(shape) == 3 and shape[:2] == (routing.experts, 1)
            need(is_of_expert or shape == (), "a constant is neither of experts nor a number", value)
