"""Attention of no sequence, or of no position, on which ONNX Runtime's kernel of Attention fails: an If asks before.

Where the sizes are not proven, the kernel is in one branch. The other has what there is without it: a result without
elements, and a past with nothing behind it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt.analysis import kernel_history, releases
from ortopt.analysis.kernels import CPU
from ortopt.graph import scope, symbolic
from ortopt.graph.detached import new_graph
from ortopt.graph.match import is_never_zero, need, same_dim, shape_of
from ortopt.patterns.attention.block import Attention
from ortopt.patterns.attention.heads import HEADS_FIRST
from ortopt.patterns.attention.mask import Depth


def may_be_empty(block: Attention) -> bool:
    """Whether the batch, the queries or the new keys of a block may be none, as far as is proven."""
    sizes = (block.queries.batch, block.queries.length, block.keys.length)
    return not all(is_never_zero(dim, block.core[0]) for dim in sizes)


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
    reason = "a dimension may be 0, which the kernel of Attention refuses"
    grouped = block.keys.count != block.queries.count  # else MultiHeadAttention does, which expects 0
    need(grouped and flat, reason, *block.core[:1])
    alike = same_dim(block.keys.length, block.queries.length) or is_never_zero(block.keys.length, block.core[0])
    need(alike and block.queries.size == block.values.size, reason, *block.core[:1])


def guarded(block: Attention, node: ir.Node) -> ir.Node:
    """An If around the kernel.

    Args:
        block: The block that `check_guard` lets pass.
        node: The Attention that stands for it, on operands with heads side by side.

    Returns:
        A node with the same results, which are right for empty operands, too.
    """
    then = new_graph([], node.outputs, [node], "some")
    nodes = [ir.node("Identity", [node.inputs[0]])]  # it has no elements, and the shape of the result
    results = [nodes[0].outputs[0]]
    if block.past is not None:
        for past, new in zip((block.past.key, block.past.value), node.inputs[1:3], strict=True):
            nodes += _appended(past, new, block)
            results.append(nodes[-1].outputs[0])
    other = new_graph([], results, nodes, "none")
    attributes = {"then_branch": then, "else_branch": other}
    return ir.node("If", [_any_element(block, node.inputs[0])], attributes, num_outputs=len(results))


def _appended(past: ir.Value, new: ir.Value | None, block: Attention) -> list[ir.Node]:
    """The nodes that put new heads behind a past."""
    shape = ir.node("Constant", [], {"value": ir.tensor(np.array([0, 0, block.keys.count, block.keys.size]))})
    split = ir.node("Reshape", [new, shape.outputs[0]])
    moved = ir.node("Transpose", [split.outputs[0]], {"perm": HEADS_FIRST})
    return [shape, split, moved, ir.node("Concat", [past, moved.outputs[0]], {"axis": 2})]


def _any_element(block: Attention, query: ir.Value | None) -> ir.Value:
    """Whether there is a sequence, and a position: asked of an input of the graph, if one has as many elements."""
    tokens = symbolic.product((block.queries.batch, block.queries.length))
    measured = query
    for value in scope.graph_of(block.core[0]).inputs:
        shape = shape_of(value)
        if shape is not None and same_dim(symbolic.product(shape), tokens):
            measured = value  # the same for all blocks
            break
    size = ir.node("Size", [measured]).outputs[0]
    return ir.node("Cast", [size], {"to": ir.DataType.BOOL}).outputs[0]


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
    if may_be_empty(block):
        check_guard(block, flat=block.flat)
