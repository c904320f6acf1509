"""Query heads that share keys and values are rows of one product: nothing needs to be repeated for them.

At level 3, when the fused ops of level 2 have taken what they could: they look for the heads as they are split.
"""

from __future__ import annotations

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph import facts, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Dim,
    Refusal,
    dims,
    inputs,
    is_constant,
    is_op,
    need,
    producer,
    same_dim,
    shape_of,
)
from ortopt.options import Numerics, TransformerLevel
from ortopt.patterns.attention.heads import heads_of, ungrouped
from ortopt.rule import RewriteRule

SWAPPED = (0, 1, 3, 2)
"""The permutation that swaps the last two dimensions of heads."""


class Found(Struct, frozen=True):
    """The product, and what it is of.

    Attributes:
        nodes: The product.
        left: The first operand, [batch, heads, rows, width].
        right: The heads that are repeated to become the second operand, each once.
        swapped: Whether the second operand is of these with the last two dimensions swapped.
        scaling: A Mul or Div by a number behind the repetition, or None.
        turned: Whether the product reads the second operand with the last two dimensions swapped itself.
    """

    nodes: tuple[ir.Node, ...]
    left: ir.Value
    right: ir.Value
    swapped: bool
    scaling: ir.Node | None
    turned: bool = False


class GroupedHeadsMerging(RewriteRule[Found]):
    """``MatMul(q, repeated heads)`` → ``Reshape(MatMul(Reshape(q), heads))``, a group of q's heads as rows of one.

    A FusedMatMul, with a scale or the heads transposed, stays one.
    """

    levels = (TransformerLevel.LEVEL3,)
    after = ("attention_fusion",)
    roots = ("MatMul", "com.microsoft::FusedMatMul")
    lookback = 6
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Found:
        """A product with heads that are repeated."""
        left, right = inputs(root, 2)
        product = ops.MatMul(root)
        need(
            not (product.transposes_a or product.moves_batches),
            "the product moves other dimensions than the last ones of its second operand",
            root,
        )
        batch, count, _, _ = dims(left, 4)
        whole, heads, *_ = dims(right, 4)
        right, scaling = _unscaled(right)
        once, swapped = _repeated(right)
        need(count == heads and isinstance(count, int), "the heads are broadcast", left)
        need(same_dim(batch, whole), "the batches are not proven to be of one size", left)
        return Found((root,), left, once, swapped, scaling, product.transposes_b)

    def rewrite(self, found: Found) -> ir.Node:
        """The same product with fewer, higher matrices."""
        left, right = found.left, found.right
        batch, count, length, width = dims(left)
        _, fewer, rows, columns = dims(right)
        assert isinstance(count, int)
        assert isinstance(fewer, int)
        if found.swapped != found.turned:
            columns = rows
        if found.swapped:
            right = ir.node("Transpose", [right], {"perm": SWAPPED}).outputs[0]
        if found.scaling is not None:
            right = _scaled(right, found.scaling)
        shapes = _Shapes(left, found.nodes[0], batch, length)
        merged = ir.node("Reshape", [left, shapes.of(fewer, count // fewer, width)])
        root = found.nodes[0]
        product = ops.copied(root, [merged.outputs[0], right])
        return ir.node("Reshape", [product.outputs[0], shapes.of(count, 1, columns)])


def _unscaled(value: ir.Value) -> tuple[ir.Value, ir.Node | None]:
    """An operand before it is multiplied by a number, and the node that does so."""
    node = value.producer()
    if not is_op(node, "Mul", "Div"):
        return value, None
    assert node is not None
    a, b = inputs(node, 2)
    if _is_number(b):
        return a, node
    return (b, node) if node.op_type == "Mul" and _is_number(a) else (value, None)


def _is_number(value: ir.Value) -> bool:
    """Whether a value is a constant of one element that does not raise the rank of heads."""
    shape = shape_of(value)
    return is_constant(value) and shape is not None and len(shape) <= 4 and all(dim == 1 for dim in shape)


def _scaled(value: ir.Value, scaling: ir.Node) -> ir.Value:
    """A value multiplied as by a Mul or Div of another one."""
    a, b = inputs(scaling, 2)
    operands = [value, b] if _is_number(b) else [a, value]
    return ir.node(scaling.op_type, operands).outputs[0]


def _repeated(value: ir.Value) -> tuple[ir.Value, bool]:
    """What is repeated to become a second operand, and whether its last dimensions are still to be swapped.

    Raises:
        Refusal: If nothing is.
    """
    swapped = value.producer()
    if is_op(swapped, "Transpose"):
        assert swapped is not None
        need(ops.Transpose(swapped).order == SWAPPED, "its second operand is not repeated", value)
        source = swapped.inputs[0]
        assert source is not None
        return _once(source), True
    return _once(value), False


def _once(value: ir.Value) -> ir.Value:
    """What heads are before they were repeated for groups.

    Raises:
        Refusal: If they were not.
    """
    try:
        heads = heads_of(value)
        original = ungrouped(heads)
    except Refusal:  # the last dimension is a length, where the heads were transposed before they were repeated
        return _once_transposed(value)
    if original is heads or original.columns is None:
        raise Refusal("its second operand is not repeated", value)
    return original.columns


def _once_transposed(value: ir.Value) -> ir.Value:
    """As `_once`, of heads [batch, heads, size, length]."""
    joined = producer(value, "Reshape")
    expand = producer(joined.inputs[0], "Expand")
    unsqueeze = producer(expand.inputs[0], "Unsqueeze")
    need(ops.Unsqueeze(unsqueeze).axes == (2,), "the group is not the third dimension", value)
    (source,) = unsqueeze.inputs[:1]
    assert source is not None
    batch, count, size, length = dims(source, 4)
    repeated, joint = dims(expand.outputs[0], 5), dims(value, 4)
    group = repeated[2]
    need(
        isinstance(count, int)
        and isinstance(group, int)
        and joint[1] == count * group
        and all(map(same_dim, repeated, (batch, count, group, size, length)))
        and all(map(same_dim, (joint[0], *joint[2:]), (batch, size, length))),
        "the heads are not repeated one by one",
        value,
    )
    return source


class _Shapes(Struct, frozen=True):
    """Shapes [batch, heads, rows, width] of a value with other heads and rows.

    Attributes:
        value: The value, [batch, heads, length, …].
        root: The node that it is an operand of.
        batch: Its batch size.
        length: How many rows it has.
    """

    value: ir.Value
    root: ir.Node
    batch: Dim
    length: Dim

    def of(self, count: int, times: int, width: Dim) -> ir.Value:
        """The shape with some heads, and a multiple of the rows; 0 stands for a dimension that stays."""
        if isinstance(self.length, int):
            return constant([0, count, self.length * times, 0])
        graph = self.root.graph
        positive = graph.meta.get(facts.POSITIVE) or () if isinstance(graph, ir.Graph) else ()
        if all(symbolic.is_positive(dim, positive) for dim in (self.batch, width)):
            return constant([0, count, -1, 0])  # which is not known where a dimension is 0
        whole = ir.node("Shape", [self.value]).outputs[0]
        rows = ir.node("Gather", [whole, constant([2])]).outputs[0]
        if times > 1:
            rows = ir.node("Mul", [rows, constant([times])]).outputs[0]
        return ir.node("Concat", [constant([0, count]), rows, constant([0])], {"axis": 0}).outputs[0]
