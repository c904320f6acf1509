"""Where one position of what an attention gives is read, one query is enough."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import ops
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Absent,
    Refusal,
    attribute,
    dims,
    inputs,
    integers,
    is_constant,
    is_op,
    need,
    optional,
    plain_attributes,
    rank,
    same_dim,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT

RANK = 3
SEQUENCE = 1
MASK = {"Attention": 3, "MultiHeadAttention": 5}
"""The input that is added to the scores."""

OTHERS = {"Attention": (4, 5, 6), "MultiHeadAttention": (4, 6, 7, 8, 9)}
"""Inputs that must be left out: a past, and how many keys count."""


class QuerySelectionReordering(RewriteRule[Match]):
    """``Gather(Attention(q, k, v), 0)`` → ``Squeeze(Attention(Unsqueeze(Gather(q, 0)), k, v))``.

    The projection of the queries then has one row to compute, as `row_selection_reordering` finds.
    """

    levels = (TransformerLevel.LEVEL3,)
    roots = ("Gather",)
    needs = ("Attention", f"{MICROSOFT}::MultiHeadAttention")
    opsets = (13, NEWEST_OPSET)  # before, axes were no inputs
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """One position, of an attention with queries of three axes whose result nothing else reads."""
        value, listed = inputs(root, 2)
        need(is_constant(listed) and rank(listed) == 0, "it selects no single place", root)
        node = value.producer()
        if node is None or not (is_op(node, "Attention") or is_op(node, "MultiHeadAttention", domain=MICROSOFT)):
            raise Absent("no attention comes before", value)
        need(node.outputs[0] is value, "it selects of a past", value)
        need(ops.Gather(root).axis == SEQUENCE and rank(value) == RANK, "it selects no position", root)
        rest = any(other.uses() or other.is_graph_output() for other in node.outputs[1:])
        need(not rest, "more is asked of the attention", node)
        need(not attribute(node, "is_causal", 0) and not attribute(node, "unidirectional", 0), "it is causal", node)
        need(all(optional(node, place) is None for place in OTHERS[node.op_type]), "it has a past", node)
        plain_attributes(node)
        query, key = optional(node, 0), optional(node, 1)
        if query is None or key is None or rank(query) != RANK:
            raise Refusal("its queries are not by themselves, with three axes", node)
        length = dims(query)[SEQUENCE]
        need(not same_dim(length, 1), "there is one position", query)
        (at,) = integers(listed)
        masks_differ = _differs(optional(node, MASK[node.op_type]), length)
        return Match((node, root), lambda: _of_one(node, at, masks_differ=masks_differ))


def _of_one(old: ir.Node, at: int, *, masks_differ: bool) -> ir.Node:
    """The result of one query.

    Args:
        old: The attention.
        at: The position of the query.
        masks_differ: Whether the mask has a row for each position.
    """
    operands = list(old.inputs)
    query = ir.node("Gather", [operands[0], constant(np.array(at, np.int64))], {"axis": SEQUENCE})
    operands[0] = ir.node("Unsqueeze", [query.outputs[0], constant([SEQUENCE])]).outputs[0]
    place = MASK[old.op_type]
    mask = optional(old, place)
    if mask is not None and masks_differ:
        operands[place] = ir.node("Gather", [mask, constant([at])], {"axis": rank(mask) - 2}).outputs[0]
    return ir.node("Squeeze", [ops.copied(old, operands).outputs[0], constant([SEQUENCE])])


def _differs(mask: ir.Value | None, length: ir.SymbolicDim | int) -> bool:
    """Whether a mask has a row for each position; it may have one for all."""
    if mask is None:
        return False
    need(rank(mask) > 1, "its mask has one axis", mask)
    rows = dims(mask)[-2]
    if same_dim(rows, 1):
        return False
    need(same_dim(rows, length), "its mask has another number of rows", mask)
    return True
