"""A layer that an exporter has unrolled over time is one matrix product for all steps.

Keras applies a layer to each step of a sequence (`TimeDistributed`) in a loop that is exported step by step: the
sequence is split, each row has a product with the same matrix, and the results are joined again.
"""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import symbolic
from ortopt.graph.match import Dim, Refusal, dims, inputs, is_op, need, need_known, optional, plain_attributes
from ortopt.options import Numerics
from ortopt.rule import Match, RewriteRule
from ortopt.semantics.op_traits import RESHAPING

RANK = 3

STEPS_LAST = (0, 2, 1)
"""The transposition of the last two axes."""


class Product(Struct, frozen=True):
    """What is computed of each step.

    Attributes:
        weight: The matrix.
        is_turned: Whether a Gemm transposes it.
        bias: What is added; None if nothing is.
    """

    weight: ir.Value
    is_turned: bool
    bias: ir.Value | None


class Step(Struct, frozen=True):
    """One operand of the Concat: the part that it comes from, the nodes in between, and what they compute."""

    part: ir.Value
    nodes: tuple[ir.Node, ...]
    product: Product


class UnrolledProductMerging(RewriteRule[Match]):
    """``Concat(x₀·W + b, x₁·W + b, …)`` for all steps ``Split(x)`` → ``x·W + b``."""

    roots = ("Concat",)
    lookback = 5
    numerics = Numerics.REORDERED  # of more rows, a kernel may sum in another order
    keeps_elementwise = True

    def match(self, root: ir.Node) -> Match:
        """As many operands as there are steps, in their order, each with one and the same product."""
        values = inputs(root, len(root.inputs))
        need(len(values) > 1, "it joins nothing", root)
        to = ops.Concat(root).axis_of(RANK) if len(dims(root.outputs[0])) == RANK else None
        to = need_known(to, "it gives no sequence of rows", root)
        steps = [_step(value, to) for value in values]
        split = steps[0].part.producer()
        if not is_op(split, "Split"):
            raise Refusal("its operands are no steps of a sequence", root)
        parts = [step.part for step in steps]
        need(parts == list(split.outputs), "its operands are not all the steps, in their order", root)
        need(all(step.product == steps[0].product for step in steps), "the products are not the same", root)
        (x,) = inputs(split, 1)
        of = ops.Split(split).axis_of(len(dims(x, RANK)))
        for step in steps:
            rows = step.nodes[0].outputs[0]  # what was reshaped to a matrix
            need(_is_without(dims(rows), dims(step.part), of), "its operands are no single steps", root)
        between = (node for step in steps for node in step.nodes)
        nodes = (split, *between, root)
        return Match(nodes, lambda: _merged(x, of, to, steps[0].product))


def _merged(x: ir.Value, of: int, to: int, product: Product) -> ir.Value:
    """The product of all steps, along an axis of the sequence, with these where they are wanted."""
    rows, columns = (axis for axis in range(RANK) if axis != of)
    wanted = (of, rows, columns) if to == 0 else (rows, of, columns)
    weight = _transposed(product.weight, (1, 0)) if product.is_turned else product.weight
    result = ir.node("MatMul", [_transposed(x, wanted), weight]).outputs[0]
    if product.bias is not None:
        result = ir.node("Add", [result, product.bias]).outputs[0]
    return _transposed(result, STEPS_LAST) if to == RANK - 1 else result


def _step(value: ir.Value, to: int) -> Step:
    """An operand of a Concat that is a matrix product of a part, in a shape with one more axis of size 1."""
    last = _node(value, *RESHAPING)
    matrix = inputs(last, 1)[0]
    need(_is_without(dims(matrix), dims(value, RANK), to), "its operands are no single steps", last)
    product, nodes, rows = _product(matrix)
    first = _node(rows, *RESHAPING)
    part = inputs(first, 1)[0]
    return Step(part, (first, *nodes, last), product)


def _product(value: ir.Value) -> tuple[Product, tuple[ir.Node, ...], ir.Value]:
    """A product of a matrix by another, with what is added to each row; its nodes, and the left matrix."""
    node = _node(value, "MatMul", "Gemm", "Add")
    if is_op(node, "Gemm"):
        return _gemm(node)
    if is_op(node, "MatMul"):
        rows, weight = inputs(node, 2)
        return Product(_matrix(weight), False, None), (node,), rows
    for product, bias in (inputs(node, 2), inputs(node, 2)[::-1]):
        above = product.producer()
        if is_op(above, "MatMul") and len(dims(bias)) == 1:
            rows, weight = inputs(above, 2)
            _check_row(bias, weight)
            return Product(_matrix(weight), False, bias), (above, node), rows
    raise Refusal("nothing is multiplied", node)


def _gemm(node: ir.Node) -> tuple[Product, tuple[ir.Node, ...], ir.Value]:
    plain_attributes(node)
    gemm = ops.Gemm(node)
    need(gemm.alpha == gemm.beta == 1.0, "the product is scaled", node)
    need(not gemm.transposes_a, "the rows are transposed", node)
    rows, weight = inputs(node, 2)
    is_turned = gemm.transposes_b
    bias = optional(node, 2)
    if bias is not None:
        _check_row(bias, weight, is_turned=is_turned)
    return Product(_matrix(weight), is_turned, bias), (node,), rows


def _matrix(weight: ir.Value) -> ir.Value:
    need(len(dims(weight)) == 2, "the weight is no matrix", weight)
    return weight


def _check_row(bias: ir.Value, weight: ir.Value, *, is_turned: bool = False) -> None:
    """Refuse what does not add one number to each column of the product."""
    shape = dims(weight, 2)
    columns = shape[0] if is_turned else shape[1]
    need(symbolic.same_shape(dims(bias), (columns,)), "what is added is no row of the product's columns", bias)


def _node(value: ir.Value, *ops: str) -> ir.Node:
    node = value.producer()
    if not is_op(node, *ops) or node.graph is not value.graph:
        raise Refusal("its operands are no products of steps", value)
    return node


def _is_without(matrix: tuple[Dim, ...], whole: tuple[Dim, ...], place: int) -> bool:
    """Whether a shape is another one without an axis, which is of size 1: the elements then keep their order."""
    if len(whole) != RANK or whole[place] != 1:
        return False
    return symbolic.same_shape(matrix, tuple(dim for axis, dim in enumerate(whole) if axis != place))


def _transposed(value: ir.Value, perm: tuple[int, ...]) -> ir.Value:
    if perm == tuple(sorted(perm)):
        return value
    return ir.node("Transpose", [value], {"perm": perm}).outputs[0]
