"""Both operands of a product of matrices may be scaled, where one needs to be."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.magnitudes import need_near
from ortopt.graph.edit import constant
from ortopt.graph.match import FLOATS, dims, dtype, inputs, is_op, need, rank
from ortopt.linear.folding import node_alone, scaling_of
from ortopt.options import Numerics
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.op_traits import PERMUTING, REPEATING

MOVES = PERMUTING | REPEATING
MAX_MOVES = 6


class MatmulFactorMerging(RewriteRule[Match]):
    """``MatMul(a * c, b * d)`` → ``MatMul(a * (c · d), b)``, also ``/ c`` and through what moves elements.

    PyTorch's dynamo scales queries and keys by the root of an attention's scale each. The keys are those of the past,
    too: more than the queries, and read and written for nothing. Of matrices of known sizes the larger is not scaled.
    """

    after = ("constant_reassociation", "reshape_merging", "scale_folding", "transpose_merging")
    roots = ("MatMul",)
    opsets = (7, NEWEST_OPSET)  # before, an attribute said how the second operand broadcasts
    numerics = Numerics.REORDERED
    lookback = 6

    def match(self, root: ir.Node) -> Match:
        """A factor of one number on both sides, which nothing else reads."""
        a, b = inputs(root, 2)
        need(dtype(a) in FLOATS, "integers wrap", a)
        stays, goes = _scaling(a, root), _scaling(b, root)
        (rows,), columns = dims(a)[-2:-1] or (1,), dims(b)[-1] if rank(b) > 1 else 1
        if isinstance(rows, int) and isinstance(columns, int) and rows > columns:
            stays, goes = goes, stays
        total = stays.factor * goes.factor
        need_near(1.0, (abs(total),), dtype(a), root)
        return Match((*stays.nodes, *goes.nodes, root), lambda: _scaled_once(root, stays, goes, total))


class _Scaling(Struct, frozen=True):
    """What scales an operand of a product.

    Attributes:
        nodes: The node that does, and those that move its result.
        x: What it scales.
        factor: By what it multiplies.
    """

    nodes: tuple[ir.Node, ...]
    x: ir.Value
    factor: float


def _scaling(value: ir.Value, root: ir.Node) -> _Scaling:
    """What scales an operand, behind what moves its elements; nothing else reads what is between.

    Raises:
        Refusal: If nothing scales it by one number that is finite and not 0.
    """
    path = [node_alone(value, root)]
    while is_op(path[-1], *MOVES) and len(path) <= MAX_MOVES:
        path.append(node_alone(inputs(path[-1], len(path[-1].inputs))[0], root))
    last = path[-1]
    need(is_op(last, "Div", "Mul"), "it is not scaled", last)
    factor, x = scaling_of(last)
    return _Scaling(tuple(reversed(path)), x, factor)


def _scaled_once(root: ir.Node, stays: _Scaling, goes: _Scaling, total: float) -> ir.Node:
    """Build the product of the one operand by both factors, and the other by none."""
    number = constant(np.array(total), dtype(stays.x))
    made = {stays.nodes[0].outputs[0]: ir.node("Mul", [stays.x, number]).outputs[0], goes.nodes[0].outputs[0]: goes.x}
    for old in (*stays.nodes[1:], *goes.nodes[1:]):
        made[old.outputs[0]] = ops.copied(old, [value and made.get(value, value) for value in old.inputs]).outputs[0]
    return ops.copied(root, [made[value] for value in inputs(root, 2)])
