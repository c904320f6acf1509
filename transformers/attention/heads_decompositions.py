"""Queries, keys and values of one product, taken apart before their heads are moved: each is then a product's own.

What reads the heads is asked for its map: which columns of the product it has, and how they are moved.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.kernels import CPU
from ortopt.graph.edit import constant
from ortopt.graph.match import (
    Absent,
    array_of,
    dims,
    inputs,
    is_constant,
    is_op,
    is_used,
    is_used_once,
    need,
    need_fixed,
    need_present,
    optional,
    producer,
    rank,
    tensor_of,
    users,
)
from ortopt.linear.weights import MAX_BYTES, SMALL_BYTES
from ortopt.onnx_ir_internals import use_count
from ortopt.options import Numerics, Target, TransformerLevel
from ortopt.rule import NEWEST_OPSET, Match, RewriteRule
from ortopt.semantics.domains import MICROSOFT
from ortopt.views.emission import Chain, chain
from ortopt.views.index_map import narrowed
from ortopt.views.reading import after, through

_MATRIX = 1
"""The position of a product's matrix, [width, columns]."""

_BY_COLUMN: Mapping[tuple[str, str], tuple[int, ...]] = {
    ("", "Gemm"): (2,),
    ("", "MatMul"): (),
    ("", "MatMulInteger"): (3,),
    (MICROSOFT, "DynamicQuantizeMatMul"): (2, 3, 4),
    (MICROSOFT, "MatMulIntegerToFloat"): (3, 5, 6),
}
"""Products, and the positions of operands that have one number for each column, or one for all."""

_ELEMENTWISE = ("Add", "Mul", "Sub")
_LONGEST = 6


def columns_of(value: ir.Value) -> tuple[ir.Node, ...]:
    """The nodes that compute a value column by column: a product with constants, and what follows it.

    Args:
        value: A value that one node reads.

    Returns:
        The nodes, the product first.

    Raises:
        Refusal: If something else computes it, or the columns cannot be reordered for nothing.
    """
    (count,) = need_fixed(dims(value)[-1:], "the number of columns is not known", value)
    path: list[ir.Node] = []
    while len(path) < _LONGEST:
        node = value.producer()
        need(node is not None and node.graph is value.graph and is_used_once(value), "it is used elsewhere", value)
        assert node is not None
        path.insert(0, node)
        if (node.domain, node.op_type) in _BY_COLUMN:
            _check_product(node, count)
            return tuple(path)
        value = inputs(node, 1)[0] if is_op(node, "Cast") else _check_elementwise(node, count)
    raise Absent("no product with a constant matrix comes before", value)


def reordered(path: Sequence[ir.Node], order: np.ndarray) -> ir.Value:
    """What nodes compute, with its columns in another order.

    Args:
        path: The nodes, as `columns_of` gives them.
        order: Which of the old columns each new one is.
    """
    before: ir.Value | None = None
    made: ir.Value | None = None
    for node in path:
        operands = [made if value is before and value is not None else value for value in node.inputs]
        for place in _places(node):
            operands[place] = _taken(node.inputs[place], order, _axis(node, place))
        copy = ir.Node(node.domain, node.op_type, operands, list(node.attributes.values()), version=node.version)
        before, made = node.outputs[0], copy.outputs[0]
    assert made is not None
    return made


def _places(node: ir.Node) -> list[int]:
    """The positions of constants that have something for each column."""
    if is_op(node, *_ELEMENTWISE):
        return [place for place, value in enumerate(node.inputs) if value is not None and is_constant(value)]
    places = (_MATRIX, *_BY_COLUMN.get((node.domain, node.op_type), ())) if not is_op(node, "Cast") else ()
    return [place for place in places if optional(node, place) is not None]


def _axis(node: ir.Node, place: int) -> int:
    """The axis of columns of a constant operand, from the end."""
    turned = node.op_type == "Gemm" and place == _MATRIX and ops.Gemm(node).transposes_b
    return -2 if turned else -1


def _taken(value: ir.Value | None, order: np.ndarray, axis: int) -> ir.Value | None:
    """A constant with its columns in another order; itself where it has one number for all."""
    if value is None or not _is_for_columns(value, axis):
        return value
    return constant(np.ascontiguousarray(np.take(array_of(value), order, axis)), value.dtype)


def _is_for_columns(value: ir.Value, axis: int) -> bool:
    shape = dims(value)
    return len(shape) >= -axis and shape[axis] != 1


def _check_product(node: ir.Node, count: int) -> None:
    """Refuse a product whose matrix is not constant, or whose other operands by column are not."""
    for place in (_MATRIX, *_BY_COLUMN[node.domain, node.op_type]):
        value = optional(node, place)
        if value is None:
            need(place != _MATRIX, "the product has no matrix", node)
            continue
        if place == _MATRIX:
            need(rank(value) == 2, "the product is of several matrices", value)
        _check_columns(value, count, _axis(node, place))


def _check_elementwise(node: ir.Node, count: int) -> ir.Value:
    """The operand that has all columns, of a node whose other operand is constant, or the same for all columns."""
    need_present(is_op(node, *_ELEMENTWISE), "no product with a constant matrix comes before", node)
    a, b = inputs(node, 2)
    source, other = (b, a) if is_constant(a) or a.producer() is None else (a, b)
    need(not is_constant(source) and dims(source)[-1:] == (count,), "the columns are broadcast", source)
    _check_columns(other, count, -1)
    return source


def _check_columns(value: ir.Value, count: int, axis: int) -> None:
    """Refuse an operand that has something for each column, and is no constant of its own."""
    shape = dims(value)
    if len(shape) < -axis or shape[axis] == 1:
        return
    need(shape[axis] == count, "the columns are broadcast", value)
    need(is_constant(value), "what differs by column is no constant", value)
    size = tensor_of(value).nbytes
    private = use_count(value) == 1 or size <= SMALL_BYTES
    need(private and not value.is_graph_output(), "the matrix is used elsewhere", value)
    need(size <= MAX_BYTES, "the matrix is large", value)


PAIR = 2
"""Parts that are not taken apart: a rotary embedding rotates some of a head, and joins it with the others again."""


class Part(Struct, frozen=True):
    """Some columns of a value, moved.

    Attributes:
        value: What they become.
        columns: Which they are.
        chain: How they get there from a value of these columns alone.
    """

    value: ir.Value
    columns: tuple[int, ...]
    chain: Chain

    @property
    def is_row(self) -> bool:
        """Whether the columns follow one another."""
        return self.columns == tuple(range(self.columns[0], self.columns[0] + len(self.columns)))


class PackedHeadsDecomposition(RewriteRule[Match]):
    """Parts of ``Transpose(Reshape(x, [B, S, 3, N, H]))`` → ``Transpose(Reshape(part, [B, S, N, H]))`` of ``Split(x)``.

    Other passes make products of their own of the parts, and attention that reads heads side by side. Positions may be
    in windows, which are axes of their own, and a Reshape behind the Transpose may join axes, though not the parts.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Transpose",)
    opsets = (13, NEWEST_OPSET)  # the first with the sizes of a Split as an input
    lookback = 1
    looks_downstream = True
    providers = (CPU,)
    targets = (Target.ORT,)

    def match(self, root: ir.Node) -> Match:
        """A Reshape that splits the last axis, and nodes that take all parts of it."""
        (packed,) = inputs(root, 1)
        order = ops.Transpose(root).order
        need(bool(order) and 0 < order[0] < len(order) - 1, "no parts are brought to the front", root)
        reshape = producer(packed, "Reshape", alone="what is packed is used elsewhere")
        x = inputs(reshape, 2)[0]
        need(rank(packed) > rank(x) > 0, "no columns are split into heads", reshape)
        joined = _alone_behind(root, "Reshape")
        parts, takers = _parts(x, (reshape, root, *joined))
        need(len(parts) > 1, "there is one part", packed)
        need(all(part.is_row for part in parts), "the columns of a part do not stand side by side", packed)
        return Match((root, *joined, *takers), lambda: _taken_apart(x, parts), _replaced(parts))


class InterleavedHeadsDecomposition(RewriteRule[Match]):
    """Parts of the last axes of ``Reshape(x · W, [B, S, N, 3 · H])`` → ``Reshape(part, [B, S, N, H])`` of a Split.

    The columns of W, and what is added to them, come in the order of the parts. Queries, keys and values then have
    their heads side by side, which attention reads as they are, and may be products of their own.
    """

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Reshape",)
    opsets = (13, NEWEST_OPSET)  # the first with the sizes of a Split as an input
    lookback = 6
    looks_downstream = True
    providers = (CPU,)
    targets = (Target.ORT,)
    numerics = Numerics.REORDERED  # a kernel may sum the last columns, which fill no block, in another order

    def match(self, root: ir.Node) -> Match:
        """A Reshape that splits the columns of a product into heads, and nodes that take parts of each."""
        x, split = inputs(root, 1)[0], root.outputs[0]
        need(rank(split) - rank(x) in {1, 2}, "no columns are split into heads", root)
        turned = _alone_behind(root, "Transpose")
        parts, takers = _parts(x, (root, *turned))
        need(not all(part.is_row for part in parts), "the columns of each part stand side by side", split)
        need(len(parts) > PAIR, "two parts of a head may be what is rotated, and the rest", split)
        product = columns_of(x)
        order = np.array([column for part in parts for column in part.columns])
        nodes = (root, *turned, *takers, *product)
        return Match(nodes, lambda: _taken_apart(reordered(product, order), parts), _replaced(parts))


def _alone_behind(node: ir.Node, op: str) -> tuple[ir.Node, ...]:
    """The node of an op that alone reads a result, if there is one."""
    result = node.outputs[0]
    need(not result.is_graph_output(), "the parts are a result", result)
    readers = users(result)
    single = is_used_once(result) and is_op(readers[0], op) and readers[0].inputs[0] is result
    return (readers[0],) if single else ()


def _parts(x: ir.Value, moves: Sequence[ir.Node]) -> tuple[list[Part], tuple[ir.Node, ...]]:
    """The parts that are read of a moved value, in the order of their columns, and what reads them.

    Raises:
        Refusal: If anything else is read, or a column not once.
    """
    whole = moves[-1].outputs[0]
    need(not whole.is_graph_output(), "the parts are a result", whole)
    found = through(x, *moves)
    takers = tuple(dict.fromkeys(users(whole)))
    parts = []
    for node in takers:
        need(node.graph is whole.graph and node.inputs[0] is whole, "something else reads the heads", node)
        for value in node.outputs:
            columns, own = narrowed(after(found, node, value))
            parts.append(Part(value, columns, chain(own, moves[-1])))
    parts.sort(key=lambda part: part.columns)
    read = sorted(itertools.chain.from_iterable(part.columns for part in parts))
    complete = read == list(range(len(read))) and dims(x)[-1] == len(read)
    need(complete, "the parts are not all of a head, each once", whole)
    need(not any(part.chain.cuts for part in parts), "a part is of some positions only", whole)
    return parts, takers


def _replaced(parts: Sequence[Part]) -> tuple[ir.Value, ...]:
    return tuple(part.value for part in parts if is_used(part.value))


def _taken_apart(columns: ir.Value, parts: Sequence[Part]) -> dict[ir.Value, ir.Value]:
    """The parts of columns that come in their order: a Split, and of each part that is used the moves.

    Args:
        columns: A value with the columns of all parts, one part behind the other.
        parts: The parts.
    """
    sizes = [len(part.columns) for part in parts]
    attributes = {"axis": len(parts[0].chain.moves.view.parts) - 1}
    split = ir.node("Split", [columns, constant(sizes)], attributes, num_outputs=len(sizes))
    pairs = zip(parts, split.outputs, strict=True)
    return {part.value: part.chain.build(value) for part, value in pairs if is_used(part.value)}
