"""Experts that each compute all rows, most of which are then multiplied by 0, compute the rows that chose them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
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
from ortopt.graph.provenance import stands_for
from ortopt.options import MEASURED_TARGETS, Numerics
from ortopt.rule import NEWEST_OPSET
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import BROADCASTING, UNARY, ZERO_OF_ZERO
from ortopt.transformers.lowering.onnxruntime_cpu._rules import MEASURED, CpuRule
from ortopt.transformers.lowering.onnxruntime_cpu.gathered_product_decomposition import COMPUTED_SIZES_FROM

CHOSEN: Final = Form("", "Gemm", "for the chosen matrices")

MAX_NODES: Final = 32
"""Nodes of an expert."""


class Routing(Struct, frozen=True):
    """Which experts a row has, and what each counts.

    Attributes:
        chosen: The experts of each row, all different.
        weights: What each counts, before `activation`.
        activation: The nodes that make a weight of that, in their order.
        each: How many experts a row has.
    """

    chosen: ir.Value
    weights: ir.Value
    activation: tuple[ir.Node, ...]
    each: int


class Rows(Struct, frozen=True):
    """Rows that are repeated for each expert.

    Attributes:
        of: What they are before, of shape [1, rows, columns] or [rows, columns].
        marks: What they are multiplied by; None where they are not.
    """

    of: ir.Value
    marks: ir.Value | None = None


class DenseExperts(Struct, frozen=True):
    """What experts compute of all rows.

    Attributes:
        nodes: The nodes, in their order, and the sum.
        inner: Those that compute something of rows and matrices.
        sources: Rows that are the same for all experts, by what they are repeated to.
        result: What the experts give.
        routing: Who has which experts.
    """

    nodes: tuple[ir.Node, ...]
    inner: tuple[ir.Node, ...]
    sources: dict[ir.Value, Rows]
    result: ir.Value
    routing: Routing


class DenseExpertConversion(CpuRule[DenseExperts]):
    """``ReduceSum(experts(Tile(x))·Scatter(0, chosen, weights))`` → ``ReduceSum(chosen experts(x)·weights)``.

    Exporters that cannot loop over experts compute all of them for each row (gpt-oss of Hugging Face's transformers 4).
    A number times 0 is 0; where an expert that a row does not have gives an infinity or none, the row holds no number,
    and here it holds one. Where rows are multiplied by their weights before the experts (Llama 4), an expert has to
    give 0 for a row of zeros. `gathered_product_decomposition` then multiplies the rows of each expert at once.
    """

    targets = MEASURED_TARGETS
    roots = ("ReduceSum",)
    opsets = (COMPUTED_SIZES_FROM, NEWEST_OPSET)
    numerics = Numerics.FINITE
    weighs = (CHOSEN,)
    lookback = MAX_NODES

    def match(self, root: ir.Node) -> DenseExperts:
        """The sum over all experts of what each gives, of rows or times a weight that are 0 but for a few."""
        weighted = inputs(root, len(root.inputs))[0]
        experts, rows, _ = dims(weighted, 3)
        is_over_experts = ops.Reduce(root).axes_of(3) == (0,) and not ops.Reduce(root).keeps_axes
        need(is_over_experts, "it is no sum over the first of three axes", root)
        (count,) = need_fixed([experts], "it is not known how many experts there are", weighted)
        result, marks = _unweighted(weighted)
        inner, sources = _experts(result, count, rows)
        of_rows = {source.marks for source in sources.values()}
        need(len(of_rows) == 1, "experts get different rows", result)
        if marks is None:
            (marks,) = of_rows
            need(_is_zero(result, inner, sources), "an expert gives something for a row of zeros", result)
        else:
            need(of_rows == {None}, "experts get different rows", result)
        routing = _routing(marks, count, rows)
        for node in inner:
            if is_op(node, "MatMul"):
                side = max(need_fixed(dims(inputs(node, 2)[1])[1:], "the matrices have no fixed size", node))
                check_faster(node, CHOSEN, side=side, left=-(-100 * routing.each // count))
        ahead = () if result is weighted else (producer(weighted, "Mul"),)
        return DenseExperts((*inner, *ahead, root), inner, sources, result, routing)

    def rewrite(self, found: DenseExperts) -> ir.Value:
        """Compute all that an expert computes with one row for each expert that it has."""
        version = opset(found.nodes[-1])
        routing = found.routing
        weights = ops.unsqueezed(ops.followed(routing.weights, routing.activation), [2, 3], version)
        values: dict[ir.Value, ir.Value] = {}
        for old, new in found.sources.items():
            rows = _as_rows(new.of, version)
            values[old] = rows if new.marks is None else ir.node("Mul", [rows, weights]).outputs[0]
        for node in found.inner:
            operands = [value and values.get(value, value) for value in node.inputs]
            for place, value in enumerate(node.inputs):
                if value is not None and value not in values and rank(value) == 3:
                    operands[place] = ir.node("Gather", [value, routing.chosen], {"axis": 0}).outputs[0]
            if is_op(node, "Slice"):
                operands[3] = constant([-1])
            settings = {"axis": -1} if is_op(node, "Split") else {}
            attributes = ops.changed(node.attributes.values(), **settings)
            new_node = ir.Node(node.domain, node.op_type, operands, attributes, num_outputs=len(node.outputs))
            values |= zip(node.outputs, stands_for(new_node, node).outputs, strict=True)
        result = values[found.result]
        if len(found.nodes) > len(found.inner) + 1:
            result = ir.node("Mul", [result, weights]).outputs[0]
        return ops.node_along("ReduceSum", result, [1, 2], version, {"keepdims": 0}).outputs[0]


def _unweighted(weighted: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """What experts give, and what it is multiplied by: one number for each row of an expert, if there is one."""
    product = weighted.producer()
    if product is not None and is_op(product, "Mul"):
        first, second = inputs(product, 2)
        for result, marks in ((first, second), (second, first)):
            if rank(marks) == 3 and dims(marks)[2] == 1 and dims(result) == dims(weighted):
                return result, marks
    return weighted, None


def _is_zero(result: ir.Value, inner: Iterable[ir.Node], sources: Iterable[ir.Value]) -> bool:
    """Whether experts give 0 for rows of zeros: a number times 0 is 0.

    Args:
        result: What the experts give.
        inner: What they compute, in their order.
        sources: The rows.
    """
    zeros = set(sources)
    for node in inner:
        operands = [value in zeros for value in node.inputs if value is not None]
        is_of_one = is_op(node, *ZERO_OF_ZERO, "MatMul", "Slice", "Split") or node.domain == MICROSOFT
        is_kept = operands[0] if is_of_one else any(operands) if is_op(node, "Mul") else False
        if is_kept or (is_op(node, "Add", "Sub") and all(operands)):
            zeros.update(node.outputs)
    return result in zeros


def _as_rows(value: ir.Value, version: int) -> ir.Value:
    """Rows with two axes of one element in front of the columns: that of a row's experts, and one for a product."""
    if rank(value) == 3:
        return ir.node("Transpose", [ops.unsqueezed(value, [0], version)], {"perm": [2, 0, 1, 3]}).outputs[0]
    return ops.unsqueezed(value, [1, 2], version)


def _routing(marks: ir.Value | None, experts: int, rows: Dim) -> Routing:
    """Read a number for each row of each expert, which is 0 where a row has not chosen the expert.

    Args:
        marks: The numbers, with a last axis of one element.
        experts: How many experts there are.
        rows: How many rows an expert has.

    Raises:
        Refusal: If they are not known to be.
    """
    turned = inputs(producer(marks, "Unsqueeze", "Reshape"), 2)[0]
    turn = producer(turned, "Transpose")
    need(rank(turned) == 2 and ops.Transpose(turn).order == (1, 0), "the weights are arranged otherwise", turn)
    same = all(map(same_dim, dims(turned), (experts, rows)))
    need(same, "the weights are arranged otherwise", marks)
    spread, activation = inputs(turn, 1)[0], []
    if is_op(spread.producer(), "Sigmoid"):
        activation.append(producer(spread, "Sigmoid"))
        (spread,) = inputs(activation[0], 1)
    scatter = producer(spread, "ScatterElements")
    filling, chosen, weights = inputs(scatter, 3)
    is_by_row = ops.OneAxis(scatter).axis_of(2) == 1 and attribute(scatter, "reduction", "none") == "none"
    need(is_by_row, "a row's weights do not stay apart", scatter)
    is_none = splat(filling) == (-math.inf if activation else 0)
    need(bool(is_none), "an expert that is not chosen has a weight", filling)
    top = chosen.producer()
    is_best = is_op(top, "TopK") and chosen is top.outputs[1] and ops.OneAxis(top).axis_of(2) == 1
    need(is_best, "a row may have an expert twice", chosen)
    need(same_dim(dims(chosen, 2)[0], rows), "some rows have no experts", chosen)
    (each,) = need_fixed(dims(chosen, 2)[1:], "it is not known how many experts a row has", chosen)
    need(same_dim(dims(weights, 2)[1], each), "a part of the chosen experts has weights", weights)
    need(0 < each <= experts, "a row has no experts", chosen)
    return Routing(chosen, weights, tuple(activation), each)


def _experts(result: ir.Value, experts: int, size: Dim) -> tuple[tuple[ir.Node, ...], dict[ir.Value, Rows]]:
    """The nodes between rows that are the same for all experts and what these give, and such rows.

    Args:
        result: What the experts give.
        experts: How many there are.
        size: How many rows there are.
    """
    sources: dict[ir.Value, Rows] = {}
    nodes: dict[ir.Node, None] = {}
    pending, products = [result], 0
    while pending:
        value = pending.pop()
        node = value.producer()
        if value in sources or node in nodes or is_constant(value):
            continue
        if (rows := _rows(value, experts, size)) is not None:
            sources[value] = rows
            continue
        if node is None:
            raise Refusal("experts get different rows", value)
        nodes[node] = None
        need(len(nodes) <= MAX_NODES, "it is a long way to the rows", node)
        products += is_op(node, "MatMul")
        _check(node, experts)
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


def _rows(value: ir.Value, experts: int, size: Dim) -> Rows | None:
    """The rows that are repeated for each expert, and perhaps multiplied by a number each; None where they are not."""
    shape = shape_of(value)
    if shape is None or len(shape) != 3 or not same_dim(shape[1], size):
        return None
    if same_dim(shape[0], 1):
        return Rows(value)
    node = value.producer()
    if is_op(node, "Expand"):
        assert node is not None
        rows = inputs(node, 2)[0]
        has_one = rank(rows) == 3 and same_dim(dims(rows)[0], 1) and same_dim(dims(rows)[1], shape[1])
        return Rows(rows) if has_one and same_dim(dims(rows)[2], shape[2]) else None
    if not is_op(node, "Reshape") or not same_dim(shape[0], experts):
        return None
    assert node is not None
    repeated, marks = _unmarked(inputs(node, 2)[0])
    tile = repeated.producer()
    if tile is None or not is_op(tile, "Tile"):
        return None
    rows = inputs(tile, 2)[0]
    fits = rank(rows) == 2 and same_dim(dims(rows)[0], shape[1]) and same_dim(dims(rows)[1], shape[2])
    is_by_row = fits and same_dim(dims(repeated)[1], shape[2])  # no columns are repeated
    return Rows(rows, marks) if is_by_row else None


def _unmarked(rows: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Rows, and what each of them is multiplied by: a column of numbers, if there is one."""
    product = rows.producer()
    if product is not None and is_op(product, "Mul"):
        first, second = inputs(product, 2)
        for repeated, marks in ((first, second), (second, first)):
            if is_op(repeated.producer(), "Tile") and rank(marks) == 2 and dims(marks)[1] == 1:
                return repeated, marks
    return rows, None


def _check(node: ir.Node, experts: int) -> None:
    """Refuse a node that does not compute each row of each expert by itself."""
    if is_op(node, "MatMul"):
        rows, matrices = inputs(node, 2)
        need(not is_constant(rows), "the rows are constant", rows)
        need(is_constant(matrices) and is_used_once(matrices), "the matrices are not constant", matrices)
        need_float32(matrices, MEASURED)
        count, inner, outer = need_fixed(dims(matrices, 3), "the matrices have no fixed size", matrices)
        need(count == experts and min(inner, outer) > 0, "the matrices are of others", matrices)
        return
    if is_op(node, "Slice", "Split"):
        is_split = is_op(node, "Split")
        is_of_columns = ops.Split(node).axis_of(3) == 2 if is_split else _cuts_columns(node)
        need(is_of_columns and all(map(is_constant, node.inputs[1:])), "it cuts other than columns", node)
        return
    is_gelu = node.domain == MICROSOFT and node.op_type == "QuickGelu"
    need(is_gelu or is_op(node, *UNARY, *BROADCASTING, "Clip"), "it may compute a row from others", node)
    for value in node.inputs:
        if value is not None and is_constant(value):
            shape = dims(value)
            is_of_expert = len(shape) == 3 and shape[:2] == (experts, 1)
            need(is_of_expert or shape == (), "a constant is neither of experts nor a number", value)


def _cuts_columns(node: ir.Node) -> bool:
    """Whether a Slice cuts the last of three axes alone, and says so."""
    return len(node.inputs) > 3 and ops.Slice(node).axes == (2,)
