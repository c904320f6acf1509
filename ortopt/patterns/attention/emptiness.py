"""Attention of no sequence, or of no position, on which kernels of ONNX Runtime fail: an If asks before.

Where the sizes are not proven, the kernel is in one branch. The other has what there is without it: a result without
elements, and a past with nothing behind it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis import kernel_history, releases
from ortopt.analysis.kernels import CPU
from ortopt.graph import scope, symbolic
from ortopt.graph.detached import new_graph
from ortopt.graph.match import Code, Dim, inputs, is_never_zero, need, optional, same_dim, shape_of
from ortopt.options import Fusions
from ortopt.patterns.attention.block import Attention
from ortopt.patterns.attention.heads import HEADS_FIRST
from ortopt.patterns.attention.mask import Depth


def may_have_no_query(block: Attention) -> bool:
    """Whether the batch or the queries of a block may be none, as far as is proven."""
    return not all(is_never_zero(dim, block.core[0]) for dim in (block.queries.batch, block.queries.length))


def may_be_empty(block: Attention) -> bool:
    """Whether the batch, the queries or the new keys of a block may be none, as far as is proven."""
    return may_have_no_query(block) or not is_never_zero(block.keys.length, block.core[0])


def check_guard(block: Attention, *, flat: bool) -> None:
    """Refuse a block that no If can keep from being empty: what it gives then must be there without the kernel.

    Args:
        block: The block.
        flat: Whether its operands have heads side by side.

    Raises:
        Refusal: The reason.
    """
    provider = scope.of_node(block.core[0]).options.providers[0]
    need(provider == CPU, f"a dimension may be 0, and {provider} would wait for the If that asks", *block.core[:1])
    reason = "a dimension may be 0, which the kernel of Attention refuses (--nonempty tells that it is not)"
    grouped = block.keys.count != block.queries.count  # else MultiHeadAttention does, which expects 0
    need(grouped and flat, reason, *block.core[:1], code=Code.OPTION)
    alike = same_dim(block.keys.length, block.queries.length) or is_never_zero(block.keys.length, block.core[0])
    need(alike and block.queries.size == block.values.size, reason, *block.core[:1], code=Code.OPTION)


class Sizes(Struct, frozen=True):
    """The sizes of an attention's operands.

    Attributes:
        batch: How many sequences there are.
        length: How many queries a sequence has.
        heads: How many heads keys and values have.
        size: The size of a head of keys, and of one of values where there is a past.
        widened: The size of all heads of the result, where it is not that of all heads of queries.
    """

    batch: Dim
    length: Dim
    heads: int
    size: int
    widened: int | None = None


PASTS: Final = {"Attention": (4, 5), "MultiHeadAttention": (6, 7)}
"""Where an op has the keys and the values of a past."""


def guarded(node: ir.Node, sizes: Sizes, root: ir.Node, *, keys_first: bool = False) -> ir.Node:
    """An If around a kernel of attention.

    Args:
        node: An Attention or a MultiHeadAttention, of queries with heads side by side, with all its outputs.
        sizes: The sizes of its operands.
        root: What it comes in the place of, or itself.
        keys_first: Whether keys and values have their heads first.

    Returns:
        A node with the same results, which are right for no sequence and for no query, too.
    """
    query, *new = inputs(node, 3)
    nodes = _of_no_query(query, sizes.widened)
    results = [nodes[-1].outputs[0]]
    pasts = [optional(node, position) for position in PASTS[node.op_type]]
    for past, value in zip(pasts, new, strict=True) if len(node.outputs) > 1 else ():
        nodes += _appended(past, value, sizes, keys_first=keys_first)
        results.append(nodes[-1].outputs[0])
    condition = _any_query(query, sizes, root)
    then, other = new_graph([], node.outputs, [node], "some"), new_graph([], results, nodes, "none")
    return ir.node("If", [condition], {"then_branch": then, "else_branch": other}, num_outputs=len(results))


def _of_no_query(query: ir.Value, widened: int | None) -> list[ir.Node]:
    """The nodes that make the result of no query: it has no elements either."""
    if widened is None:
        return [ir.node("Identity", [query])]
    start, end, axis, shape = (
        ir.node("Constant", [], {"value": ir.tensor(np.array(numbers))}) for numbers in ([0], [1], [2], [1, 1, widened])
    )
    first = ir.node("Slice", [query, *(limit.outputs[0] for limit in (start, end, axis))])
    return [start, end, axis, first, shape, ir.node("Expand", [first.outputs[0], shape.outputs[0]])]


def _appended(past: ir.Value | None, new: ir.Value, sizes: Sizes, *, keys_first: bool) -> list[ir.Node]:
    """The nodes that put new heads behind a past."""
    nodes: list[ir.Node] = []
    if not keys_first:
        shape = ir.node("Constant", [], {"value": ir.tensor(np.array([0, 0, sizes.heads, sizes.size]))})
        split = ir.node("Reshape", [new, shape.outputs[0]])
        nodes += [shape, split, ir.node("Transpose", [split.outputs[0]], {"perm": HEADS_FIRST})]
        new = nodes[-1].outputs[0]
    return [*nodes, ir.node("Identity", [new]) if past is None else ir.node("Concat", [past, new], {"axis": 2})]


def _any_query(query: ir.Value, sizes: Sizes, root: ir.Node) -> ir.Value:
    """Whether there is a sequence, and a position: asked of an input of the graph, if one has as many elements."""
    tokens = symbolic.product((sizes.batch, sizes.length))
    measured = query
    for value in scope.graph_of(root).inputs:
        shape = shape_of(value)
        if shape is not None and same_dim(symbolic.product(shape), tokens):
            measured = value  # the same for all blocks
            break
    size = ir.node("Size", [measured]).outputs[0]
    return ir.node("Cast", [size], {"to": ir.DataType.BOOL}).outputs[0]


def expects_none(at: ir.Node) -> bool:
    """Whether MultiHeadAttention runs without any query on all releases that a result is for.

    Args:
        at: A node of the run.
    """
    return releases.least(scope.of_node(at).options) >= kernel_history.measured(kernel_history.NO_QUERY)


def may_read_no_key(block: Attention) -> bool:
    """Whether all keys of a row may be masked by -inf, for which a guard gives 0."""
    return block.guarded and block.bias is not None and block.bias.depth is Depth.UNKNOWN


def check_masked_rows(block: Attention) -> None:
    """Refuse a guard for rows of which all keys are masked, where a release gives NaN for them.

    Raises:
        Refusal: If an ONNX Runtime that the result is for gives NaN.
    """
    if not may_read_no_key(block):
        return
    root = block.core[0]
    least = releases.least(scope.of_node(root).options)
    right = kernel_history.measured(kernel_history.MASKED_ROWS)
    told = f"before {releases.shown(right)}: --min-onnxruntime {releases.shown(right)} allows it"
    need(least >= right, f"ONNX Runtime gives NaN where all keys are masked, {told}", root)


def check_standard_op(block: Attention) -> None:
    """Refuse a block that ONNX Runtime's kernel of Attention is not for, whether an If is put around it or not.

    Raises:
        Refusal: The reason.
    """
    need(
        scope.of_node(block.core[0]).options.fusions is Fusions.ALL or not _is_searched(block),
        "what is added has a number for each score, and would be looked through for rows without any key",
        block.core[0],
    )
    if may_be_empty(block):
        check_guard(block, flat=block.flat)


def _is_searched(block: Attention) -> bool:
    """Whether rows of which all keys are masked are looked for among as many numbers as there are scores.

    It takes three kernels over all of them, which is more than one op for the block saves, in layers that add the
    scores of the one before (Realformer, PatchTST).
    """
    bias = block.bias
    return bias is not None and all(bias.shape[1:]) and bias.is_searched
