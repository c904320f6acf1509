"""What a loop computes from its own row of a tensor is computed for all rows at once, in front of the loop.

TensorFlow's recurrences are loops that take a step of a sequence in each iteration and multiply it by a matrix: one
product of all steps takes a fraction of the time.
"""

from __future__ import annotations

from functools import partial

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.totality import check_cannot_fail
from ortopt.graph.detached import new_nodes
from ortopt.graph.match import (
    broadcasts_to,
    dims,
    inputs,
    is_op,
    need,
    plain_attributes,
    rank,
    same_dim,
    users,
)
from ortopt.options import Numerics
from ortopt.semantics.op_traits import BROADCASTING, UNARY
from ortopt.transformer import Context, GraphTransformer
from ortopt.transformers.control_flow._loops import (
    Repeated,
    bring_out,
    count,
    iterations,
    loops_below,
    outside,
    repeated,
)


class Row(Struct, frozen=True):
    """What a node of a body computes from the row that belongs to the iteration.

    Attributes:
        gather: What takes the row.
        x: All rows, from outside the loop.
        node: The node.
        operands: Its operands as there are outside the loop, all rows in place of the one.
    """

    gather: ir.Node
    x: ir.Value
    node: ir.Node
    operands: tuple[ir.Value, ...]


class LoopRowHoisting(GraphTransformer):
    """``MatMul(Gather(x, i), W)`` in a ``Loop`` that counts i → ``MatMul(x, W)`` before it, ``Gather`` in it.

    Likewise Gemm, and what is computed element by element.
    """

    after = ("loop_carried_elimination", "loop_invariant_code_motion")
    needs = ("Loop",)
    numerics = Numerics.REORDERED  # of more rows, a kernel may sum in another order
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Move what is computed of single rows out of the loops of a graph, innermost first."""
        changed = False
        for _, loop in context.answered(loops_below(graph, context, "Loop"), repeated):
            pending = list(loop.body)
            while pending:
                for node, row in context.answered([pending.pop(0)], partial(_row, loop=loop)):
                    result, why = node.outputs[0], "all rows can be computed at once"
                    if row and context.attempt((row.gather, node), partial(_hoist, row, loop, context), why):
                        changed = True
                        pending[:0] = users(result)  # what reads it may follow it
        return changed


def _row(node: ir.Node, loop: Repeated) -> Row | None:
    """What a node computes from the row that the iteration's number names; None if it reads no Gather of its body."""
    gathers = (value.producer() for value in node.inputs if value is not None)
    gather = next((each for each in gathers if is_op(each, "Gather")), None)
    if gather is None or not gather.graph is node.graph is loop.body:
        return None
    x, index = inputs(gather, 2)
    need(x.graph is not loop.body, "its rows are made in the loop", gather)
    counted = count(index, loop)
    is_row = rank(index) == 0 and counted is not None and abs(counted.step) == 1
    need(is_row, "the iteration does not say which row it takes", gather)
    axis = ops.Gather(gather).axis_of(rank(x))
    _check_rows_stay_apart(node, gather.outputs[0], rank(x) - 1 - axis)
    check_cannot_fail(node)
    made = iterations(loop)
    need(made is not None and same_dim(made, dims(x)[axis]), "the loop may need a part of the rows only", loop.node)
    gathered = gather.outputs[0]
    operands = (x if value is gathered else outside(value, loop) for value in inputs(node, len(node.inputs)))
    return Row(gather, x, node, tuple(operands))


def _check_rows_stay_apart(node: ir.Node, row: ir.Value, behind: int) -> None:
    """Refuse a node that would not compute the same of each of several rows.

    Args:
        node: The node.
        row: One row.
        behind: How many axes follow the one along which the rows lie.
    """
    operands = inputs(node, len(node.inputs))
    others = [value for value in operands if value is not row]
    if is_op(node, "MatMul", "Gemm"):
        is_of_rows = operands[0] is row and row not in operands[1:] and behind > 0 and rank(operands[1]) == 2
        need(is_of_rows, "it is no product of rows", node)
        if is_op(node, "Gemm"):
            plain_attributes(node)
            gemm = ops.Gemm(node)
            need(gemm.alpha == gemm.beta == 1.0 and not gemm.transposes_a, "the product is scaled or transposed", node)
            need(all(rank(value) <= 1 for value in operands[2:]), "what is added has rows of its own", node)
        return
    need(is_op(node, *UNARY, *BROADCASTING) and not is_op(node, "Identity"), "it needs more than the row", node)
    for value in others:
        fits = rank(value) <= behind and broadcasts_to(value, dims(row))
        need(fits, "another operand has rows of its own", value)


def _hoist(row: Row, loop: Repeated, context: Context) -> list[ir.Node]:
    """Compute all rows in front of the loop, and take the iteration's one in it."""
    node = row.node
    operands = [bring_out(value, loop.node, loop.body, context) for value in row.operands]
    if is_op(node, "Gemm"):
        weight = operands[1]
        if ops.Gemm(node).transposes_b:
            weight = ir.node("Transpose", [weight], {"perm": [1, 0]}).outputs[0]
        rows = ir.node("MatMul", [row.x, weight]).outputs[0]
        for added in operands[2:]:
            rows = ir.node("Add", [rows, added]).outputs[0]
    else:
        rows = ops.copied(node, operands).outputs[0]
    before = new_nodes([rows])
    context.edit.insert(before, loop.node, [node])
    taken = ops.copied(row.gather, [rows, inputs(row.gather, 2)[1]]).outputs[0]
    return [*before, *context.replace({node.outputs[0]: taken}, node, (row.gather, node))]
