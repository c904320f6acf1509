"""A linear layer and its bias are one kernel where its rows lie along one axis; blocks of layers can keep them so.

A MatMul of three axes leaves its bias to an Add, which reads and writes everything once more. What stands between the
layers of a block (normalizations, activations, residuals) treats each row by itself, and works on two axes as well: the
block needs a Reshape only where something else looks at its axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from ortopt.analysis.kernels import CPU
from ortopt.context import Context
from ortopt.graph.edit import constant
from ortopt.graph.match import Refusal, dims, is_constant, is_op, need, opset, plain_attributes, users
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.patterns.rows import bias_of, rows_of
from ortopt.semantics.op_traits import RESHAPING
from ortopt.transformer import GraphTransformer

INFER = -1
ALLOWS_ZERO = 14
SHAPE_HAS_AN_END = 15
WORTH_OF_A_BIAS = 2
"""How many Reshapes cost as much as the Add of a bias: they move nothing."""


class Block(NamedTuple):
    """Nodes that treat each row by itself.

    Attributes:
        nodes: The nodes, in their order.
        rows: For each of them, the operands that have rows.
        entering: Values with rows from elsewhere.
        leaving: Values with rows that are read elsewhere.
    """

    nodes: tuple[ir.Node, ...]
    rows: Mapping[ir.Node, tuple[ir.Value, ...]]
    entering: tuple[ir.Value, ...]
    leaving: tuple[ir.Value, ...]


class LeadingAxesMerging(GraphTransformer):
    """``Gelu(Add(MatMul(x, W), b))`` of three axes → the same of two: ``Gelu(Gemm(x, W, b))`` between two Reshapes.

    This is done for whole blocks at once, where they have more biases than new Reshapes outweigh.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = (
        *("bias_sum_conversion", "channel_affine_conversion", "matmul_conv_conversion", "matmul_split_decomposition"),
        *("residual_sum_conversion", "roll_gather_fusion", "transpose_optimizer"),
    )
    providers = (CPU,)
    targets = (Target.ORT,)
    numerics = Numerics.REORDERED
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Find the blocks of a graph, and merge the axes of those that gain by it."""
        rows: dict[ir.Node, tuple[ir.Value, ...]] = {}
        for node in context.cancellation.checked(tuple(graph)):
            try:
                rows[node] = rows_of(node)
            except Refusal as refusal:
                if is_op(node, "MatMul"):
                    context.refuse(node, refusal.reason)
        changed = False
        for block in _blocks(rows):
            context.cancellation.check()
            last = block.nodes[-1]
            if _gain(block) <= 0:
                context.refuse(last, "the Reshapes around would cost more than the biases")
                continue
            try:
                replacements = _merged(block)
            except Refusal as refusal:
                context.refuse(last, refusal.reason)
                continue
            changed |= context.substitute(replacements, before=last, origin=block.nodes, nodes=block.nodes)
        return changed


def _blocks(rows: Mapping[ir.Node, tuple[ir.Value, ...]]) -> list[Block]:
    """Nodes that share values with rows, together."""
    place = {node: position for position, node in enumerate(rows)}
    sharing: dict[ir.Value, list[ir.Node]] = {}
    for node, operands in rows.items():
        for value in (*operands, node.outputs[0]):
            sharing.setdefault(value, []).append(node)
    blocks = []
    left = dict.fromkeys(rows)
    while left:
        nodes, pending = [], [next(iter(left))]
        del left[pending[0]]
        while pending:
            nodes.append(node := pending.pop())
            for value in (*rows[node], node.outputs[0]):
                near = [other for other in sharing[value] if other in left]
                pending += near
                for other in near:
                    del left[other]
        blocks.append(_block(sorted(nodes, key=place.__getitem__), rows))
    return blocks


def _block(nodes: Sequence[ir.Node], rows: Mapping[ir.Node, tuple[ir.Value, ...]]) -> Block:
    members = set(nodes)
    made = [node.outputs[0] for node in nodes]
    entering = dict.fromkeys(value for node in nodes for value in rows[node] if value.producer() not in members)
    leaving = [value for value in made if value.is_graph_output() or not members.issuperset(users(value))]
    return Block(tuple(nodes), {node: rows[node] for node in nodes}, tuple(entering), tuple(leaving))


def _gain(block: Block) -> int:
    """What is saved, in Reshapes: biases are worth more, and Reshapes that are there already cost nothing."""
    biases = sum(bias_of(node) is not None for node in block.nodes)
    entries = sum(not is_constant(value) and not is_op(value.producer(), *RESHAPING) for value in block.entering)
    members = set(block.nodes)
    exits = 0
    for value in block.leaving:
        readers = [user for user in users(value) if user not in members]
        exits += value.is_graph_output() or not all(is_op(user, *RESHAPING) for user in readers)
    return WORTH_OF_A_BIAS * biases - entries - exits if biases else 0


def _merged(block: Block) -> dict[ir.Value, ir.Value]:
    """New values for those that leave a block, of nodes with two axes."""
    biases = {node: found for node in block.nodes if (found := bias_of(node)) is not None}
    within = {product for product, _ in biases.values()}
    flat: dict[ir.Value, ir.Value] = {}
    for value in block.entering:
        flat[value] = ir.node("Reshape", [value, constant([INFER, _columns(value)])]).outputs[0]
    for node in block.nodes:
        if node in biases:
            product, bias = biases[node]
            x, matrix = product.inputs
            assert x is not None
            flat[node.outputs[0]] = ir.node("Gemm", [flat[x], matrix, bias]).outputs[0]
        elif node not in within:
            flat[node.outputs[0]] = _of_two_axes(node, block.rows[node], flat).outputs[0]
    back = _Back(block)
    return {value: back.reshaped(value, flat[value]) for value in block.leaving}


def _columns(value: ir.Value) -> int:
    size = dims(value)[-1]
    assert isinstance(size, int)
    return size


def _of_two_axes(node: ir.Node, rows: Sequence[ir.Value], flat: Mapping[ir.Value, ir.Value]) -> ir.Node:
    """A node that does with two axes what another one does with more."""
    operands = [flat[value] if value is not None and value in rows else value for value in node.inputs]
    attributes = [
        ir.AttrInt64("axis", -1) if name == "axis" else attribute for name, attribute in plain_attributes(node).items()
    ]
    return ir.Node(node.domain, node.op_type, operands, attributes)


class _Back:
    """Makes the Reshapes at the end of a block.

    Args:
        block: The block.
    """

    def __init__(self, block: Block) -> None:
        self._at = block.nodes[-1]
        self._like = block.entering[0]  # it is there before anything of the block is
        self._leading: ir.Value | None = None
        self._targets: dict[int, ir.Value] = {}

    def reshaped(self, value: ir.Value, flat: ir.Value) -> ir.Value:
        """Give a value with two axes the axes of another one."""
        shape = dims(value)
        free = [dim for dim in shape if not isinstance(dim, int)]
        need(0 not in shape, "an axis is empty", value)
        if len(free) <= 1:
            target = constant([dim if isinstance(dim, int) else INFER for dim in shape])
            return ir.node("Reshape", [flat, target]).outputs[0]
        columns = _columns(value)
        if columns not in self._targets:
            self._targets[columns] = self._target(columns)
        return ir.node("Reshape", [flat, self._targets[columns]], {"allowzero": 1}).outputs[0]

    def _target(self, columns: int) -> ir.Value:
        """The sizes at run time."""
        need(opset(self._at, "") >= max(ALLOWS_ZERO, SHAPE_HAS_AN_END), "the opset has no Shape of some axes", self._at)
        if self._leading is None:
            self._leading = ir.node("Shape", [self._like], {"start": 0, "end": -1}).outputs[0]
        return ir.node("Concat", [self._leading, constant([columns])], {"axis": 0}).outputs[0]
