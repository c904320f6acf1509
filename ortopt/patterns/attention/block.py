"""One attention block: ``softmax(scale · q · kᵀ + bias) · v``, split into heads and joined again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from ortopt.graph import facts, symbolic
from ortopt.graph.match import (
    FLOAT,
    FLOAT16,
    Dim,
    Refusal,
    attribute,
    axis,
    dims,
    dtype,
    inputs,
    is_constant,
    is_op,
    is_scalar,
    is_used_once,
    need,
    only_user,
    producer,
    same_dim,
    scalar,
)
from ortopt.onnx_ir_internals import use_count
from ortopt.patterns.attention.guard import check_nothing_else_is_guarded
from ortopt.patterns.attention.heads import HEADS_FIRST, Heads, heads_of, heads_of_transposed, ungrouped
from ortopt.patterns.attention.mask import Depth, check_bias, check_half, check_no_nan, depth, is_zero


@dataclass(frozen=True, slots=True)
class Past:
    """Keys and values of earlier positions, put before the new ones.

    Attributes:
        key: The past keys, [batch, heads, past length, size].
        value: The past values, [batch, heads, past length, size of a value's head].
        present_key: The past and new keys together, as the block computes them.
        present_value: The past and new values together.
    """

    key: ir.Value
    value: ir.Value
    present_key: ir.Value
    present_value: ir.Value


@dataclass(frozen=True, slots=True)
class Attention:
    """What a block computes.

    Attributes:
        core: The nodes from the product of queries and keys to that of probabilities and values.
        tail: The nodes that join the heads, as far as they are joined.
        queries: The query heads.
        keys: The key heads, without what a group repeats, and without the past.
        values: The value heads, likewise.
        read_keys: The key heads as the product with the queries reads them.
        read_values: The value heads as the product with the probabilities reads them.
        scale: What the products of queries and keys are multiplied by.
        biases: What is added to the scores, in order; each broadcasts to `scores`.
        scores: The dimensions of the scores: [batch, heads, length of the queries, length of the keys].
        guarded: Whether NaNs among the probabilities are set to 0.
        past: The past, if there is one.
        context: The result with dimensions [batch, heads, length, size].
        joined: The result with dimensions [batch, length, heads, size], or None where nobody wants it so.
        merged: The result with dimensions [batch, length, heads · size], or None.
        keys_first: Whether `keys` and `values` are read with their heads first, and queries side by side.
    """

    core: tuple[ir.Node, ...]
    tail: tuple[ir.Node, ...]
    queries: Heads
    keys: Heads
    values: Heads
    read_keys: Heads
    read_values: Heads
    scale: float
    biases: tuple[ir.Value, ...]
    scores: tuple[Dim, ...]
    guarded: bool
    past: Past | None
    context: ir.Value
    joined: ir.Value | None
    merged: ir.Value | None
    keys_first: bool = False

    @property
    def flat(self) -> bool:
        """Whether the operands can be had, and the result is wanted, with the heads side by side in each position."""
        parts = (self.queries, self.keys, self.values)
        return self.joined is not None and (self.keys_first or all(part.rows is not None for part in parts))

    def as_read(self) -> Attention:
        """The block with keys and values as the products read them: with the past, and repeated for groups."""
        return replace(self, keys=self.read_keys, values=self.read_values, past=None, keys_first=True)

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes that go."""
        return (*self.core, *self.tail) if self.flat else self.core

    @property
    def replaced(self) -> tuple[ir.Value, ...]:
        """The values that the block gives."""
        result = (self.merged or self.joined or self.context) if self.flat else self.context
        return (result,) if self.past is None else (result, self.past.present_key, self.past.present_value)


def attention(root: ir.Node) -> Attention:
    """The block whose product of probabilities and values is a MatMul.

    Args:
        root: The MatMul.

    Raises:
        Refusal: If it is none, or computes something else.
    """
    probabilities, value = inputs(root, 2)
    nodes = [root]
    probabilities, guarded = _unguarded(probabilities, nodes)
    softmax = producer(probabilities, "Softmax")
    nodes.append(softmax)
    logits, *_ = softmax.inputs
    assert logits is not None
    need(dtype(logits) in {FLOAT, FLOAT16}, "the scores are not single- or half-precision numbers", logits)
    scores = dims(logits, 4)
    need(axis(softmax, 4, -1) == 3, "the softmax is not over the keys", logits)
    product, scale, biases = _terms(logits, nodes)
    query, transposed_key = inputs(product, 2)
    query, factor = _unscaled(query)
    transposed_key, other_factor = _unscaled(transposed_key)
    scale *= factor * other_factor
    need(scale > 0, "the scale is not positive", product.outputs[0])
    queries, keys, values = heads_of(query), ungrouped_keys(transposed_key), heads_of(value)
    _check(queries, keys[0], values, scores, value)
    for bias in biases:
        check_bias(bias, scores)
        if guarded:
            check_no_nan(bias)
        if dtype(logits) == FLOAT16:
            check_half(bias)
            need(guarded or depth(bias) is Depth.SHALLOW, "a half-precision mask may leave no key", bias)
    read_values, values = values, ungrouped(values)
    need(keys[1].count == values.count, "keys and values have different numbers of heads", value)
    key_heads, value_heads, past = _before(keys[1], values)
    if guarded:
        check_nothing_else_is_guarded([part.any for part in (queries, key_heads, value_heads)])
    tail: list[ir.Node] = []
    joined, merged = _joined(root.outputs[0], queries, values, tail)
    return Attention(
        tuple(nodes), tuple(tail), queries, key_heads, value_heads, keys[0], read_values, scale, tuple(biases),
        scores, guarded, past, root.outputs[0], joined, merged,
    )  # fmt: skip


def check_sizes_are_positive(block: Attention) -> None:
    """Refuse if the batch, the queries or the new keys may be none: ONNX Runtime's kernel of Attention fails then.

    Raises:
        Refusal: If one of them is not proven to be at least 1 wherever the model runs.
    """
    graph = block.core[0].graph
    positive = graph.meta.get(facts.POSITIVE) or () if isinstance(graph, ir.Graph) else ()
    for dim in (block.queries.batch, block.queries.length, block.keys.length):
        if not symbolic.is_positive(dim, positive):
            raise Refusal("a dimension may be 0, which the kernel of Attention refuses", *block.core[:1])


def ungrouped_keys(transposed: ir.Value) -> tuple[Heads, Heads]:
    """The key heads as the product reads them, and before they were repeated for groups of queries."""
    keys = heads_of_transposed(transposed)
    return keys, ungrouped(keys)


def _unguarded(probabilities: ir.Value, nodes: list[ir.Node]) -> tuple[ir.Value, bool]:
    """The probabilities before their NaNs were set to 0, and whether they were."""
    guard = probabilities.producer()
    if not is_op(guard, "Where"):
        return probabilities, False
    assert guard is not None
    condition, fill, kept = inputs(guard, 3)
    test = producer(condition, "IsNaN")
    need(test.inputs[0] is kept, "the guard tests another value", condition)
    need(is_constant(fill) and is_scalar(fill, 0.0), "the guard's fill is not 0", fill)
    need(use_count(kept) == 2 and not kept.is_graph_output(), "the probabilities are used elsewhere", kept)
    nodes += [guard, test]
    return kept, True


def _terms(logits: ir.Value, nodes: list[ir.Node]) -> tuple[ir.Node, float, list[ir.Value]]:
    """The product of queries and keys, its factor, and what is added to it."""
    biases: list[ir.Value] = []
    at = logits
    while is_op(at.producer(), "Add"):
        node = at.producer()
        assert node is not None
        need(is_used_once(at), "the scores are used elsewhere", at)
        a, b = inputs(node, 2)
        nodes.append(node)
        at, bias = (a, b) if _holds_product(a) else (b, a)
        if not is_zero(bias):
            biases.append(bias)
    node = at.producer()
    scale = 1.0
    if is_op(node, "Mul", "Div"):
        assert node is not None
        need(is_used_once(at), "the scores are used elsewhere", at)
        at, scale = _factor(node)
        nodes.append(node)
    product = producer(at, "MatMul")
    need(is_used_once(at), "the scores are used elsewhere", at)
    nodes.append(product)
    return product, scale, biases[::-1]


def _holds_product(value: ir.Value) -> bool:
    """Whether a value is a product with constant factors and terms: the operand of an Add that leads to the scores."""
    node = value.producer()
    while is_op(node, "Add", "Mul", "Div"):
        assert node is not None
        following = [v.producer() for v in node.inputs if v is not None and _leads_to_product(v)]
        if not following:
            return False
        node = following[0]
    return is_op(node, "MatMul")


def _leads_to_product(value: ir.Value) -> bool:
    node = value.producer()
    return is_op(node, "Add", "Mul", "Div", "MatMul")


def _factor(node: ir.Node) -> tuple[ir.Value, float]:
    """The operand of a Mul or Div whose other operand is a number, and what it is multiplied by."""
    a, b = inputs(node, 2)
    if is_constant(b):
        number = scalar(b)
        need(node.op_type == "Mul" or number != 0, "the scores are divided by 0", b)
        return a, number if node.op_type == "Mul" else 1 / number
    need(node.op_type == "Mul" and is_constant(a), "the factor is not a constant", node)
    return b, scalar(a)


def _unscaled(value: ir.Value) -> tuple[ir.Value, float]:
    """An operand of the product before it was multiplied by a number, and the number."""
    node = value.producer()
    if not is_op(node, "Mul", "Div") or not is_used_once(value):
        return value, 1.0
    assert node is not None
    try:
        source, factor = _factor(node)
    except Refusal:
        return value, 1.0
    return (source, factor) if len(dims(source)) == 4 else (value, 1.0)


def _check(queries: Heads, keys: Heads, values: Heads, scores: tuple[Dim, ...], about: ir.Value) -> None:
    """Refuse batches, heads or lengths that are only alike after broadcasting."""
    need(queries.size == keys.size, "queries and keys have heads of different sizes", about)
    need(queries.count == keys.count == values.count, "the heads are broadcast", about)
    for heads in (keys, values):
        need(same_dim(heads.batch, queries.batch), "the batches are not proven to be of one size", about)
        need(same_dim(heads.length, scores[3]), "the keys are not proven to be as many as the values", about)
    need(same_dim(scores[0], queries.batch) and same_dim(scores[2], queries.length), "the scores are broadcast", about)


def _before(keys: Heads, values: Heads) -> tuple[Heads, Heads, Past | None]:
    """The new keys and values, and the past that was put before both; all as it is if there is none."""
    past_key, past_value = _concatenated(keys), _concatenated(values)
    if past_key is None or past_value is None:
        return keys, values, None
    new_keys, new_values = heads_of(past_key[1]), heads_of(past_value[1])
    if not same_dim(new_keys.length, new_values.length) or keys.columns is None or values.columns is None:
        return keys, values, None
    past = Past(past_key[0], past_value[0], keys.columns, values.columns)
    return new_keys, new_values, past


def _concatenated(heads: Heads) -> tuple[ir.Value, ir.Value] | None:
    """The two parts of heads along their length; None if there are not two."""
    node = None if heads.columns is None else heads.columns.producer()
    if not is_op(node, "Concat"):
        return None
    assert node is not None
    if len(node.inputs) != 2 or attribute(node, "axis", 0) not in {2, -2}:
        return None
    past, new = inputs(node, 2)
    try:
        before, after = heads_of(past), heads_of(new)
    except Refusal:
        return None
    alike = before.count == after.count == heads.count and before.size == after.size == heads.size
    return (past, new) if alike and same_dim(before.batch, after.batch) else None


def _joined(
    context: ir.Value, queries: Heads, values: Heads, nodes: list[ir.Node]
) -> tuple[ir.Value | None, ir.Value | None]:
    """The result with heads joined again, as far as it is: behind a Transpose, and behind a Reshape."""
    try:
        transpose = only_user(context, "Transpose")
        need(tuple(attribute(transpose, "perm", ())) == HEADS_FIRST, "the heads are not joined", context)
    except Refusal:
        return None, None
    nodes.append(transpose)
    joined = transpose.outputs[0]
    try:
        reshape = only_user(joined, "Reshape")
        batch, length, width = dims(reshape.outputs[0], 3)
        need(
            same_dim(batch, queries.batch)
            and same_dim(length, queries.length)
            and width == queries.count * values.size
            and reshape.inputs[0] is joined,
            "the heads are not joined",
            joined,
        )
    except Refusal:
        return joined, None
    nodes.append(reshape)
    return joined, reshape.outputs[0]


__all__ = ["Attention", "Past", "attention"]
