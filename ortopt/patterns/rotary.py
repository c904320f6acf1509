"""Rotary position embeddings: pairs of elements of a head, turned by angles that depend on the position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortopt.graph.edit import constant
from ortopt.graph.match import (
    FLOAT,
    Refusal,
    array_of,
    attribute,
    axis,
    dims,
    dtype,
    inputs,
    integers,
    is_constant,
    is_op,
    is_used_once,
    need,
    optional,
    producer,
    same_dim,
)
from ortopt.patterns.attention.heads import Heads, heads_of

_ELEMENTWISE = frozenset({"Cos", "Identity", "Neg", "Sin"})
_BY_A_NUMBER = frozenset({"Div", "Mul"})


@dataclass(frozen=True, slots=True)
class Rotary:
    """``x · cos + turned(x) · sin``, where ``turned`` puts the negated second half before the first.

    Attributes:
        nodes: The nodes of the pattern, without the tables.
        x: What is turned.
        cosines: The cosines, [batch, 1, length, size]; both halves of the last dimension are alike.
        sines: The sines, likewise.
        shared: Whether the tables have one batch only, which is used for all.
        y: The result.
    """

    nodes: tuple[ir.Node, ...]
    x: Heads
    cosines: ir.Value
    sines: ir.Value
    shared: bool
    y: ir.Value


def rotary(root: ir.Node) -> Rotary:
    """The embedding whose sum is a node.

    Args:
        root: An Add.

    Raises:
        Refusal: If it is none.
    """
    a, b = inputs(root, 2)
    need(dtype(root.outputs[0]) == FLOAT, "the heads are not single-precision numbers", root.outputs[0])
    for plain, turned in ((a, b), (b, a)):
        sine_product = turned.producer()
        if is_op(sine_product, "Mul") and is_used_once(turned):
            assert sine_product is not None
            for halves, sines in _both_ways(sine_product):
                if is_op(halves.producer(), "Concat"):
                    return _embedding(root, plain, sine_product, halves, sines)
    raise Refusal("no halves change places", root)


def _embedding(root: ir.Node, plain: ir.Value, turned: ir.Node, halves: ir.Value, sines: ir.Value) -> Rotary:
    nodes = [root, turned]
    x = _source(halves, nodes)
    product = producer(plain, "Mul")
    need(is_used_once(plain), "the product with the cosines is used elsewhere", plain)
    nodes.append(product)
    cosines = next((other for one, other in _both_ways(product) if one is x), None)
    if cosines is None:
        raise Refusal("another value is multiplied by the cosines", plain)
    heads = heads_of(x)
    need(heads.size % 2 == 0, "a head has no two halves", x)
    for table in (cosines, sines):
        _, one, length, size = dims(table, 4)
        need(
            one == 1 and same_dim(length, heads.length) and size == heads.size,
            "a table has other dimensions than [batch, 1, length, size]",
            table,
        )
        check_halves(table)
    batches = [dims(table)[0] for table in (cosines, sines)]
    shared = batches == [1, 1]
    need(shared or all(same_dim(batch, heads.batch) for batch in batches), "a table has another batch size", cosines)
    return Rotary(tuple(nodes), heads, cosines, sines, shared, root.outputs[0])


def _both_ways(node: ir.Node) -> tuple[tuple[ir.Value, ir.Value], tuple[ir.Value, ir.Value]]:
    a, b = inputs(node, 2)
    return (a, b), (b, a)


def _source(halves: ir.Value, nodes: list[ir.Node]) -> ir.Value:
    """What was taken apart into halves and put together with the second one negated first."""
    concat = producer(halves, "Concat")
    need(is_used_once(halves), "the halves are used elsewhere", halves)
    second, first = inputs(concat, 2)
    rank = len(dims(halves))
    need(axis(concat, rank, 0) == rank - 1, "the halves are not of the last dimension", halves)
    negation = producer(second, "Neg")
    need(is_used_once(second), "the negated half is used elsewhere", second)
    (second,) = inputs(negation, 1)
    split = producer(first, "Split")
    need(second.producer() is split, "the halves are of different values", second)
    last = axis(split, rank, 0) == rank - 1 and len(split.outputs) == 2
    need(last, "the halves are not of the last dimension", first)
    need(first is split.outputs[0] and second is split.outputs[1], "the halves do not change places", first)
    sizes = [dims(half)[-1] for half in (first, second)]
    need(isinstance(sizes[0], int) and sizes[0] == sizes[1], "the halves have different sizes", first)
    nodes += [concat, negation, split]
    source = split.inputs[0]
    assert source is not None
    return source


def check_halves(table: ir.Value) -> None:
    """Refuse a table whose halves of the last dimension are not known to be alike.

    Raises:
        Refusal: If they are not.
    """
    if is_constant(table):
        content = array_of(table)
        first, second = np.split(content, 2, axis=-1)
        need(np.array_equal(first, second), "the halves of a table differ", table)
        return
    node = table.producer()
    need(node is not None and not node.domain, "the halves of a table are not known to be alike", table)
    assert node is not None
    if node.op_type == "Concat":
        need(len(node.inputs) == 2 and node.inputs[0] is node.inputs[1], "the halves of a table differ", table)
        need(axis(node, len(dims(table)), 0) == len(dims(table)) - 1, "the halves of a table differ", table)
        return
    source = _rest(node)
    check_halves(source)


def _rest(node: ir.Node) -> ir.Value:
    """The operand of a node in which the halves of the last dimension are alike if they are in the result."""
    source = node.inputs[0]
    if node.op_type in _ELEMENTWISE:
        assert source is not None
        return source
    if node.op_type in _BY_A_NUMBER:
        source, number = inputs(node, 2)
        if is_constant(source) and node.op_type == "Mul":
            source, number = number, source
        need(
            is_constant(number) and array_of(number).size == 1,
            "the halves of a table are not known to be alike",
            source,
        )
        need(len(dims(number)) <= len(dims(source)), "a table gets another rank", source)
        return source
    if node.op_type == "Unsqueeze":
        assert source is not None
        need(_new_axes(node)[-1] < len(dims(node.outputs[0])) - 1, "a table gets another last dimension", source)
        return source
    if node.op_type == "Gather":
        assert source is not None
        rank = len(dims(source))
        need(axis(node, rank, 0) < rank - 1, "a table is taken apart in its last dimension", source)
        return source
    raise Refusal("the halves of a table are not known to be alike", node.outputs[0])


def _new_axes(node: ir.Node) -> list[int]:
    rank = len(dims(node.outputs[0]))
    given = optional(node, 1)
    axes = attribute(node, "axes", ()) if given is None else integers(given)
    return sorted(one % rank for one in axes)


def half(table: ir.Value) -> ir.Value:
    """One half of the last dimension of a table that `check_halves` lets pass, computed without the other.

    Args:
        table: A table whose halves are alike.

    Returns:
        A value with half as many elements in its last dimension.
    """
    if is_constant(table):
        return constant(np.ascontiguousarray(np.split(array_of(table), 2, axis=-1)[0]))
    node = table.producer()
    assert node is not None
    if node.op_type == "Concat":
        assert node.inputs[0] is not None
        return node.inputs[0]
    source = _rest(node)
    replaced = [half(source) if operand is source else operand for operand in node.inputs]
    return ir.node(node.op_type, replaced, {name: attr.value for name, attr in node.attributes.items()}).outputs[0]


def without_heads(table: ir.Value) -> ir.Value:
    """One half of a table [batch, 1, length, size], as [batch, length, size / 2]."""
    node = table.producer()
    if is_op(node, "Unsqueeze"):
        assert node is not None
        if _new_axes(node) == [1]:
            assert node.inputs[0] is not None
            return half(node.inputs[0])
    return ir.node("Squeeze", [half(table), constant([1])]).outputs[0]


__all__ = ["Rotary", "check_halves", "half", "rotary", "without_heads"]
