"""A linear layer and its bias are one kernel where its rows lie along one axis; blocks of layers can keep them so.

A MatMul of three axes leaves its bias to an Add, which reads and writes everything once more. What stands between the
layers of a block (normalizations, activations, residuals) treats each row by itself, and works on two axes as well: the
block needs a Reshape only where something else looks at its axes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.costs import Form
from ortopt.analysis.kernels import CPU
from ortopt.cancellation import CancellationToken
from ortopt.context import Context
from ortopt.framework.fusions import is_faster
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Refusal,
    dims,
    inputs,
    is_constant,
    is_op,
    need,
    need_fixed,
    opset,
    optional,
    shape_of,
    users,
)
from ortopt.graph.provenance import stands_for
from ortopt.graph.symbolic import INVENTED
from ortopt.graph.walk import WHOLE_GRAPH, Answers, Question, walk
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.quantization import is_dequantizer
from ortopt.patterns.rows import bias_of, rows_of
from ortopt.semantics.domains import MICROSOFT
from ortopt.semantics.op_traits import RESHAPING
from ortopt.semantics.opset_changes import SHAPE_HAS_AN_END_FROM
from ortopt.transformer import GraphTransformer

QKV = 3
ROWS_AND_COLUMNS = 2
PAST = (4, 6, 7, 9)
"""Inputs of MultiHeadAttention that ``com.microsoft.Attention`` has not."""

ATTENDING = ("Attention", "GroupQueryAttention", "RotaryEmbedding")
"""Ops, of ai.onnx or ONNX Runtime, whose results have sizes that follow from those of heads."""

INFER = -1
BIAS_COST_IN_RESHAPES = 2
"""How many Reshapes cost as much as the Add of a bias: they move nothing."""

MAX_NODES = 64
"""Blocks of more nodes are cut, so that what one node refuses holds up no more than a part. Between two parts, one
Reshape undoes another, and both go."""

SLOW_BIAS_COST_IN_RESHAPES = 8
"""The same of the sums that the table of costs knows: of many elements, or of rows of few columns."""

SLOW = Form("", "Gemm", "between eight Reshapes")

SHAPE_AND_CONCAT = 2
"""Nodes that give the shape where several axes are free; they serve all blocks, but there may be one block only."""


class Block(Struct, frozen=True):
    """Nodes that treat each row by itself.

    Attributes:
        nodes: The nodes, in their order.
        rows: For each of them, the operands that have rows.
        entering: Values with rows from elsewhere.
        leaving: Values with rows that are read elsewhere.
        biases: For those that add a bias to a product of the block, the product and the bias.
    """

    nodes: tuple[ir.Node, ...]
    rows: Mapping[ir.Node, tuple[ir.Value, ...]]
    entering: tuple[ir.Value, ...]
    leaving: tuple[ir.Value, ...]
    biases: Mapping[ir.Node, tuple[ir.Node, ir.Value]]


class LeadingAxesMerging(GraphTransformer):
    """``Gelu(Add(MatMul(x, W), b))`` of three axes → the same of two: ``Gelu(Gemm(x, W, b))`` between two Reshapes.

    This is done for whole blocks at once, where they have more biases than new Reshapes outweigh, or where more
    Reshapes to two axes and back go than come, as around the Gemms of an exporter.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = (
        "bias_sum_conversion",
        "channel_affine_conversion",
        "image_projection_conversion",
        "linear_conv_fusion",
        "matmul_conv_conversion",
        "matmul_split_decomposition",
        "query_selection_reordering",
        "reshape_transpose_reordering",
        "residual_sum_conversion",
        "roll_gather_fusion",
        "row_selection_reordering",
        "transpose_optimizer",
        "transposed_matmul_conversion",
    )
    providers = (CPU,)
    targets = (Target.ORT,)
    weighs = (SLOW,)
    numerics = Numerics.REORDERED
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Find the blocks of a graph, and merge the axes of those that gain by it."""
        rows: dict[ir.Node, tuple[ir.Value, ...]] = {}
        is_packable, needs_its_size = (
            partial(walk, partial(_feeds, is_one=is_one), unknown=True, most=WHOLE_GRAPH, answers=Answers())
            for is_one in (_is_packable, _needs_its_size)
        )
        for node in context.cancellation.checked(tuple(graph)):
            try:
                need(not is_packable(node), "com.microsoft.Attention takes it in", node)
                need(not _has_packed_weights(node), "ONNX Runtime joins it with the DequantizeLinear before it", node)
                need(not needs_its_size(node), "an attention must know its size when the model is loaded", node)
                found = rows_of(node)
                need(not _is_last(node, found), "a Reshape that gives a result of the graph copies it", node)
                rows[node] = found
            except Refusal as refusal:
                if is_op(node, "MatMul"):
                    context.refuse(node, refusal.reason)
        changed = False
        shapes = _Shapes(context)
        for block in _blocks(rows, context.cancellation):
            if _gain(block, context.cancellation) <= 0:
                context.refuse(block.nodes[-1], "the Reshapes around would cost more than the biases")
                continue
            changed |= context.attempt(block.nodes, partial(_merge, block, shapes, context), candidate=block.nodes[-1])
        return changed


def _feeds(node: ir.Node, *, is_one: Callable[[ir.Node], bool]) -> Question[ir.Node, bool]:
    """Whether the result of a layer, or of its product, is one that an attention reads."""
    if not is_op(node, "Add", "MatMul"):
        return False
    if is_op(node, "MatMul"):
        for user in users(node.outputs[0]):
            if is_op(user, "Add", "MatMul") and (yield user):
                return True
    return is_one(node)


def _is_packable(node: ir.Node) -> bool:
    """Whether a node gives queries, keys or values that `packed_attention_fusion` may take in with their layers."""
    return any(
        is_op(user, "MultiHeadAttention", domain=MICROSOFT)
        and node.outputs[0] in user.inputs[:QKV]
        and all(optional(user, position) is None for position in PAST)
        for user in users(node.outputs[0])
    )


def _has_packed_weights(node: ir.Node) -> bool:
    """Whether ONNX Runtime may make MatMulNBits of a product, whose weights have few bits: it makes none of Gemm."""
    matrix = optional(node, 1) if is_op(node, "MatMul") else None
    return matrix is not None and is_dequantizer(matrix.producer())


def _needs_its_size(node: ir.Node) -> bool:
    """Whether an attention reads a node's result, whose shape would be computed when the model runs.

    ONNX's own inference takes an unknown size of heads for 0, and what follows does not load.
    """
    attends = any(user.op_type in ATTENDING for user in users(node.outputs[0]))
    return attends and sum(not isinstance(dim, int) for dim in dims(node.outputs[0])) > 1


def _is_last(node: ir.Node, rows: Sequence[ir.Value]) -> bool:
    """Whether a node gives a result of the graph, of one operand: a Reshape before it moves nothing, one behind does.

    What a Reshape gives lies where its operand does, but not in the place that ONNX Runtime has for a result of the
    graph. To copy logits takes 2 to 4 % of the time of a small model. The sum with a bias would take as long.
    """
    value = node.outputs[0]
    return value.is_graph_output() and not users(value) and len(rows) == 1 and bias_of(node) is None


def _blocks(rows: Mapping[ir.Node, tuple[ir.Value, ...]], token: CancellationToken) -> Iterator[Block]:
    """Nodes that share values with rows, together."""
    place = {node: position for position, node in enumerate(rows)}
    sharing: dict[ir.Value, list[ir.Node]] = {}
    for node, operands in token.checked(rows.items()):
        for value in (*operands, node.outputs[0]):
            sharing.setdefault(value, []).append(node)
    left = dict.fromkeys(rows)
    while left:
        nodes, pending = [], [next(iter(left))]
        del left[pending[0]]
        while pending:
            token.check()
            nodes.append(node := pending.pop())
            for value in (*rows[node], node.outputs[0]):
                near = [other for other in dict.fromkeys(sharing.pop(value, ())) if other in left]
                pending += near
                for other in near:
                    del left[other]
        nodes.sort(key=place.__getitem__)
        for first in range(0, len(nodes), MAX_NODES):
            with contextlib.suppress(Refusal):
                yield _block(nodes[first : first + MAX_NODES], token)


def _block(nodes: Sequence[ir.Node], token: CancellationToken) -> Block:
    """A block of some nodes, as they are now: other values may have taken the place of what another part gives."""
    own = {node: rows_of(node) for node in nodes}
    entering: dict[ir.Value, None] = {}
    leaving, biases = [], {}
    for node in token.checked(nodes):
        entering |= dict.fromkeys(value for value in own[node] if value.producer() not in own)
        value = node.outputs[0]
        if value.is_graph_output() or not own.keys() >= set(users(value)):
            leaving.append(value)
        found = bias_of(node)
        if found is not None and found[0] in own:
            biases[node] = found
    return Block(tuple(nodes), own, tuple(entering), tuple(leaving), biases)


def _gain(block: Block, token: CancellationToken) -> int:
    """What is saved, in Reshapes: biases are worth more, and Reshapes that are there already go, or cost nothing."""
    entries = exits = gone = 0
    members, free = block.rows, False
    for value in token.checked(block.entering):
        entries += not is_constant(value) and not is_op(value.producer(), *RESHAPING)
        gone += _is_unfolded(value) and members.keys() >= set(users(value)) and not value.is_graph_output()
    for value in token.checked(block.leaving):
        readers = [user for user in users(value) if user not in members]
        folding = sum(_folds(user, value) for user in readers)
        exits += value.is_graph_output() or not all(is_op(user, *RESHAPING) for user in readers)
        inside = folding == len(readers) and not value.is_graph_output()
        free |= not inside and sum(not isinstance(dim, int) for dim in dims(value)) > 1
        gone += folding
    exits += SHAPE_AND_CONCAT * free
    return sum(map(_worth, block.biases)) + gone - entries - exits


def _is_unfolded(value: ir.Value) -> bool:
    """Whether a Reshape gives a value its leading axes: of two axes, it would be what it was before."""
    node = value.producer()
    return is_op(node, "Reshape") and _is_flat(node.inputs[0], value)


def _folds(node: ir.Node, value: ir.Value) -> bool:
    """Whether a node merges the leading axes of a value: of two axes, it is that already."""
    return is_op(node, "Reshape") and node.inputs[0] is value and _is_flat(node.outputs[0], value)


def _is_flat(flat: ir.Value | None, value: ir.Value) -> bool:
    """Whether one value is of the same rows as another, in two axes."""
    shape = None if flat is None else shape_of(flat)
    return shape is not None and len(shape) == ROWS_AND_COLUMNS and shape[-1] == _columns(value)


def _worth(total: ir.Node) -> int:
    """How many Reshapes cost as much as the sum with a bias."""
    value = total.outputs[0]
    elements = prod(dim for dim in dims(value) if isinstance(dim, int))
    is_slow = is_faster(total, SLOW, columns=_columns(value), elements=elements)
    return SLOW_BIAS_COST_IN_RESHAPES if is_slow else BIAS_COST_IN_RESHAPES


def _merge(block: Block, shapes: _Shapes, context: Context) -> list[ir.Node]:
    """Let values of nodes with two axes stand for those that leave a block."""
    flat = _flat(block, context.cancellation)
    targets, made = shapes.of(block)
    replaced = {}
    for value, target in targets.items():
        reshape = ir.node("Reshape", [flat[value], target], {"allowzero": 1} if target.producer() else {})
        replaced[value] = stands_for(reshape, *filter(None, [value.producer()])).outputs[0]
    new = context.replace(replaced, before=block.nodes[-1], origin=block.nodes)
    return made + new


def _flat(block: Block, token: CancellationToken) -> dict[ir.Value, ir.Value]:
    """The values of a block with two axes, of new nodes."""
    biases = block.biases
    within = {product for product, _ in biases.values()}
    flat: dict[ir.Value, ir.Value] = {}
    for value in block.entering:
        reshape = ir.node("Reshape", [value, constant([INFER, _columns(value)])])
        readers = (node for node in users(value) if node in block.rows)
        flat[value] = stands_for(reshape, *readers).outputs[0]
    for node in token.checked(block.nodes):
        if node in biases:
            product, bias = biases[node]
            x, matrix = inputs(product, 2)
            gemm = stands_for(ir.node("Gemm", [flat[x], matrix, bias]), product, node)
            flat[node.outputs[0]] = gemm.outputs[0]
        elif node not in within:
            flat[node.outputs[0]] = _of_two_axes(node, block.rows[node], flat).outputs[0]
    return flat


def _columns(value: ir.Value) -> int:
    return need_fixed(dims(value)[-1:], "the size of a row is not fixed", value)[0]


def _of_two_axes(node: ir.Node, rows: Sequence[ir.Value], flat: Mapping[ir.Value, ir.Value]) -> ir.Node:
    """A node that does with two axes what another one does with more."""
    operands = [flat[value] if value is not None and value in rows else value for value in node.inputs]
    return ops.copied(node, operands, **({"axis": -1} if ops.OneAxis(node).is_stated else {}))


class _Shapes:
    """The shapes that Reshapes at the ends of blocks need: constants, or computed once for all blocks.

    Args:
        context: The context.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._known: dict[tuple[str, ...], ir.Value] = {}

    def of(self, block: Block) -> tuple[dict[ir.Value, ir.Value], list[ir.Node]]:
        """The shapes of what leaves a block; those of more than one free axis are put in front of the block.

        Returns:
            The shapes, and the nodes that have been added for them.
        """
        targets, nodes = {}, list[ir.Node]()
        for value in block.leaving:
            shape = dims(value)
            need(0 not in shape, "an axis is empty", value)
            need(not any(INVENTED in str(dim) for dim in shape), "an axis depends on data", value)
            if sum(not isinstance(dim, int) for dim in shape) <= 1:
                targets[value] = constant([dim if isinstance(dim, int) else INFER for dim in shape])
            else:
                targets[value] = self._computed(value, block.entering[0], nodes)
        if nodes:
            first = block.nodes[0]
            need(opset(first, "") >= SHAPE_HAS_AN_END_FROM, "the opset has no Shape of some axes", first)
            self._context.edit.insert(nodes, first)
        return targets, nodes

    def _computed(self, value: ir.Value, like: ir.Value, nodes: list[ir.Node]) -> ir.Value:
        key = tuple(map(str, dims(value)))
        leading = key[:-1]
        for wanted in (leading, key):
            if wanted in self._known and (node := self._known[wanted].producer()) and (node.graph or node in nodes):
                continue
            if wanted is leading:
                node = ir.node("Shape", [like], {"start": 0, "end": -1})
            else:
                node = ir.node("Concat", [self._known[leading], constant([_columns(value)])], {"axis": 0})
            nodes.append(node)
            self._known[wanted] = node.outputs[0]
        return self._known[key]
